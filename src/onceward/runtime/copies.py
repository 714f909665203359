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
    """Whose turn it is, by the source and id of a message."""

    def __init__(self, patience: timedelta) -> None:
        self._patience = patience.total_seconds()
        self._lock = threading.Lock()
        self._turns: dict[tuple[str, str], list[_Ahead]] = {}
        """Who waits for each that is under way."""
        self._pid = os.getpid()

    @contextmanager
    def turn(self, delivery: Delivery) -> Iterator[None]:
        """Go to the database with a delivery when no copy of it is there; raises `StoreBusy` when one is for long."""
        with self._taken(delivery, is_mine=run_sync(self._wait(delivery, takes=True), _result)):
            yield

    @asynccontextmanager
    async def async_turn(self, delivery: Delivery) -> AsyncIterator[None]:
        """As `turn`, awaited."""
        with self._taken(delivery, is_mine=await run_async(self._wait(delivery, takes=True), _awaited)):
            yield

    def wait(self, delivery: Delivery) -> None:
        """Wait while a copy is under way, without taking a turn."""
        if self._is_under_way(delivery):
            run_sync(self._wait(delivery, takes=False), _result)

    async def async_wait(self, delivery: Delivery) -> None:
        """As `wait`, awaited."""
        if self._is_under_way(delivery):
            await run_async(self._wait(delivery, takes=False), _awaited)

    def _is_under_way(self, delivery: Delivery) -> bool:
        return (delivery.source, delivery.id) in self._turns

    def _wait(self, delivery: Delivery, *, takes: bool) -> Generator[Any, bool, bool]:
        """Yields what to wait for, and for how long at most; answers whether the turn was taken."""
        until, is_known = time.monotonic() + self._patience, False
        while not is_known:
            ahead = self._line_up((delivery.source, delivery.id), takes=takes)
            if ahead is None:
                return takes
            try:
                is_known = yield ahead, max(until - time.monotonic(), 0)
            except TimeoutError:
                raise StoreBusy(
                    f"another copy of message {delivery.id!r} from {delivery.source!r} is being processed, and was not "
                    f"done within {self._patience:g} s (lock_wait). This one was not stored: deliver it again"
                ) from None
        return False

    def _line_up(self, identity: tuple[str, str], *, takes: bool) -> _Ahead | None:
        with self._lock:
            if self._pid != os.getpid():  # a forked child: what the parent has in hand is not ours
                self._turns, self._pid = {}, os.getpid()
            waiting = self._turns.get(identity)
            if waiting is None:
                if takes:
                    self._turns[identity] = []
                return None
            ahead: _Ahead = futures.Future()
            waiting.append(ahead)
            return ahead

    @contextmanager
    def _taken(self, delivery: Delivery, *, is_mine: bool) -> Iterator[None]:
        if not is_mine:
            yield
            return
        is_known = False
        try:
            yield
            is_known = True
        finally:
            with self._lock:
                waiting = self._turns.pop((delivery.source, delivery.id), [])
            for ahead in waiting:
                if ahead.set_running_or_notify_cancel():
                    ahead.set_result(is_known)


def _result(waiting: tuple[_Ahead, float]) -> bool:
    ahead, seconds = waiting
    return ahead.result(seconds)


async def _awaited(waiting: tuple[_Ahead, float]) -> bool:
    ahead, seconds = waiting
    return await asyncio.wait_for(asyncio.wrap_future(ahead), seconds)
