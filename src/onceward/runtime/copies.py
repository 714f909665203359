"""Copies of a message that this process has in hand at the same time: one goes to the database, the others wait here.

There they would wait for the first one's transaction, each with a connection that other messages need. Invariant: who
waits holds nothing, and not for longer than `lock_wait`. When the first has ended well, its message is in the ledger,
and all the others may look at once; when it has failed, one of them is next.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from onceward.deferred import asyncio, futures
from onceward.errors import StoreBusy
from onceward.flow import run_async, run_sync
from onceward.message import Delivery

if TYPE_CHECKING:
    from concurrent.futures import Future

    _Ahead: TypeAlias = Future[bool]
    """Done when the copy ahead has ended: with True where its message is in the ledger."""


class Copies:
    """Which copy has the turn, by the source and id of a message."""

    def __init__(self, patience: timedelta) -> None:
        self._patience = patience.total_seconds()
        self._lock = threading.Lock()
        self.turns: dict[tuple[str, str], list[_Ahead]] = {}
        """What is under way, and who waits for each."""
        self._pid = os.getpid()

    @contextmanager
    def turn(self, delivery: Delivery) -> Iterator[None]:
        """Go to the database with a delivery when no copy of it is there; raises `StoreBusy` when one is for long."""
        ahead = self._line_up(delivery, takes=True)
        is_mine = ahead is None or run_sync(self._wait(delivery, ahead, takes=True), _result)
        is_known = False
        try:
            yield
            is_known = True
        finally:
            if is_mine:
                self._leave(delivery, is_known=is_known)

    @asynccontextmanager
    async def async_turn(self, delivery: Delivery) -> AsyncIterator[None]:
        """As `turn`, awaited."""
        ahead = self._line_up(delivery, takes=True)
        is_mine = ahead is None or await run_async(self._wait(delivery, ahead, takes=True), _awaited)
        is_known = False
        try:
            yield
            is_known = True
        finally:
            if is_mine:
                self._leave(delivery, is_known=is_known)

    def wait(self, delivery: Delivery) -> None:
        """Wait while a copy is under way, without taking a turn."""
        if self._is_under_way(delivery):
            run_sync(self._wait(delivery, self._line_up(delivery, takes=False), takes=False), _result)

    async def async_wait(self, delivery: Delivery) -> None:
        """As `wait`, awaited."""
        if self._is_under_way(delivery):
            await run_async(self._wait(delivery, self._line_up(delivery, takes=False), takes=False), _awaited)

    def _is_under_way(self, delivery: Delivery) -> bool:
        return (delivery.source, delivery.id) in self.turns

    def _wait(self, delivery: Delivery, ahead: _Ahead | None, *, takes: bool) -> Generator[Any, bool, bool]:
        """Yields what to wait for, and for how long at most; returns whether the turn was taken."""
        until = time.monotonic() + self._patience
        while ahead is not None:
            try:
                is_known = yield ahead, max(until - time.monotonic(), 0)
            except TimeoutError:
                raise StoreBusy(
                    f"another copy of message {delivery.id!r} from {delivery.source!r} is being processed, and was not "
                    f"done within {self._patience:g} s (lock_wait). This one was not stored: deliver it again"
                ) from None
            if is_known:
                return False
            ahead = self._line_up(delivery, takes=takes)
        return takes

    def _line_up(self, delivery: Delivery, *, takes: bool) -> _Ahead | None:
        """What is to be waited for; None where no copy is under way. Then the turn is taken, if it is wanted."""
        identity = delivery.source, delivery.id
        with self._lock:
            if self._pid != os.getpid():  # a forked child: what the parent has in hand is not ours
                self.turns, self._pid = {}, os.getpid()
            waiting = self.turns.get(identity)
            if waiting is None:
                if takes:
                    self.turns[identity] = []
                return None
            ahead: _Ahead = futures.Future()
            waiting.append(ahead)
            return ahead

    def _leave(self, delivery: Delivery, *, is_known: bool) -> None:
        """The copy that has the turn has ended: the others look, or one of them is next."""
        with self._lock:
            waiting = self.turns.pop((delivery.source, delivery.id), [])
        for ahead in waiting:
            if ahead.set_running_or_notify_cancel():
                ahead.set_result(is_known)


def _result(waiting: tuple[_Ahead, float]) -> bool:
    ahead, seconds = waiting
    return ahead.result(seconds)


async def _awaited(waiting: tuple[_Ahead, float]) -> bool:
    ahead, seconds = waiting
    return await asyncio.wait_for(asyncio.wrap_future(ahead), seconds)
