"""Gather: deliveries that arrive at the same time share a transaction.

Whoever comes first stores for all that wait, so a commit is paid once for many callers, and nobody waits who is alone.
Invariant: each caller gets the receipt or the error of its own message. Where a shared transaction fails, everyone in
it tries again alone, so that no message suffers from another for long.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from onceward.deferred import asyncio
from onceward.domain import checks
from onceward.message import Arguments, Delivery, Receipt, delivery_of
from onceward.stores.calls import depth

SHARED = 500
"""How many messages share a transaction at most: 1000 was no faster."""
LEADERS = 2
"""How many transactions `receive` may have under way where the database takes several writers: the second when the
first is slow, as behind a lock, or many wait. Two for few callers were slower: each had fewer to share its commit. A
worker that sees the later of two committed first finds the other by its sweep, within a second."""
SLOW = 0.05
"""From how many seconds on the next ones do not wait for it."""
CROWD = 32
"""From how many on they do not wait for it either. With 24 it was no faster."""


def batches(messages: Iterable[Arguments]) -> Iterator[list[Delivery]]:
    """Many messages in the parts that share a transaction."""
    if isinstance(messages, Mapping | str) or not isinstance(messages, Iterable):
        checks.refuse(
            "receive_many()", "messages", messages, "a list of mappings, each with the arguments of receive()"
        )
    iterator = iter(messages)
    while batch := [delivery_of("receive_many", message) for message in itertools.islice(iterator, SHARED)]:
        yield batch


_Caller: TypeAlias = "tuple[Delivery, asyncio.Future[Receipt | None]]"


class _Place:
    """A caller that waits."""

    __slots__ = ("answered", "delivery", "error", "leads", "receipt", "woken")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.woken = threading.Event()
        self.leads = self.answered = False
        self.receipt: Receipt | None = None
        self.error: Exception | None = None


class Gathering:
    """For threads; so many of them store at the same time."""

    def __init__(self, store: Callable[[list[Delivery]], list[Receipt]], leaders: int) -> None:
        self._store, self._leaders = store, leaders
        self._lock = threading.Lock()
        self._waiting: list[_Place] = []
        self._leading: dict[_Place, float] = {}
        """Who stores for the others, and since when."""

    def receive(self, delivery: Delivery) -> Receipt:
        """Store one delivery, together with whatever else waits to be stored."""
        place = _Place(delivery)
        with self._lock:
            self._waiting.append(place)
            self._appoint(place)
        try:
            self._take_part(place)
        except BaseException:  # interrupted, perhaps when it was just to lead
            self._leave(place)
            raise
        if place.error is not None:
            raise place.error
        return place.receipt or self._store([delivery])[0]

    def _take_part(self, place: _Place) -> None:
        """Wait until it is answered, and lead when it is its turn."""
        while True:
            if place.leads:
                place.leads = False
                self._lead(place)
            if place.answered:
                return
            if place.woken.wait(SLOW):
                place.woken.clear()
            else:
                with self._lock:
                    self._appoint(place)

    def _leave(self, place: _Place) -> None:
        with self._lock:
            if place in self._waiting:
                self._waiting.remove(place)
        self._hand_on(place)

    def _hand_on(self, leader: _Place) -> None:
        with self._lock:
            self._leading.pop(leader, None)
            if self._waiting:
                self._appoint(self._waiting[0])
                self._waiting[0].woken.set()

    def _appoint(self, place: _Place) -> None:
        """Let it lead, unless others do and are quick, or it is being stored already."""
        quick = any(time.monotonic() - since < SLOW for since in self._leading.values())
        may = not quick or len(self._waiting) >= CROWD
        if may and len(self._leading) < self._leaders and place in self._waiting:
            self._leading[place] = time.monotonic()
            place.leads = True

    def _lead(self, leader: _Place) -> None:
        """Store for everyone who waits now, and let the first who came meanwhile lead the next."""
        with self._lock:
            shared, self._waiting = self._waiting[:SHARED], self._waiting[SHARED:]
        try:
            receipts = self._store([place.delivery for place in shared]) if shared else []
            for place, receipt in zip(shared, receipts, strict=True):
                place.receipt = receipt
        except Exception as error:  # noqa: BLE001 - it belongs to one of them, who meets it again alone
            if len(shared) == 1:
                shared[0].error = error
        finally:
            for place in shared:
                place.answered = True
                place.woken.set()
            self._hand_on(leader)


class AsyncGathering:
    """For the tasks of an event loop. Storing is a task of its own, so a caller may be cancelled without the others."""

    def __init__(self, store: Callable[[list[Delivery]], Coroutine[Any, Any, list[Receipt]]], leaders: int) -> None:
        self._store, self._leaders = store, leaders
        self._waiting: list[_Caller] = []
        self._storing: dict[asyncio.Future[list[Receipt]], tuple[float, list[_Caller]]] = {}
        """What is under way, the oldest first: since when, and for whom."""
        self._coming = False
        self._later: asyncio.TimerHandle | None = None

    async def receive(self, delivery: Delivery) -> Receipt:
        """Store one delivery, together with whatever else waits to be stored."""
        caller: _Caller = delivery, asyncio.get_running_loop().create_future()
        self._waiting.append(caller)
        self._soon()
        try:
            receipt = await caller[1]
        except asyncio.CancelledError:
            await self._leave(caller)
            raise
        return receipt or (await self._store([delivery]))[0]

    async def finish(self) -> None:
        """Wait until nothing is being stored."""
        while self._waiting or self._storing:
            await (asyncio.wait(self._storing) if self._storing else asyncio.sleep(0))

    def _soon(self) -> None:
        """Begin when the loop has gone round: who was answered together comes again together, and shares the next."""
        if not self._coming:
            self._coming = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._coming = False
        loop = asyncio.get_running_loop()
        if not self._waiting or len(self._storing) == self._leaders:
            return
        quick = any(loop.time() - since < SLOW for since, _ in self._storing.values())
        if quick and len(self._waiting) < CROWD:
            self._later = self._later or loop.call_later(SLOW, self._look_again)
            return
        some = self._how_many()
        shared, self._waiting = self._waiting[:some], self._waiting[some:]
        if self._waiting:
            self._soon()
        task = loop.create_task(self._store([delivery for delivery, _ in shared]))
        self._storing[task] = loop.time(), shared
        task.add_done_callback(self._end)

    def _how_many(self) -> int:
        """Half of two crowds where the others follow at once: the database stores these while Python prepares those."""
        halves = self._leaders > 1 and not self._storing and len(self._waiting) >= 2 * CROWD
        return min(len(self._waiting) // 2, SHARED) if halves else SHARED

    def _look_again(self) -> None:
        self._later = None
        self._begin()

    def _end(self, task: asyncio.Future[list[Receipt]]) -> None:
        _, shared = self._storing.pop(task)
        error = None if task.cancelled() else task.exception()
        receipts: list[Receipt | None] = [None] * len(shared)
        if not task.cancelled() and error is None:
            receipts = [*task.result()]
        for (_, answer), receipt in zip(shared, receipts, strict=True):
            if answer.done():
                continue
            if error is None or (isinstance(error, Exception) and len(shared) > 1):
                answer.set_result(receipt)
            else:
                answer.set_exception(error)
        self._soon()

    async def _leave(self, caller: _Caller) -> None:
        """A caller was cancelled: what is stored for nobody else is given up, and is at rest when this returns."""
        if caller in self._waiting:
            self._waiting.remove(caller)
        for task, (_, shared) in list(self._storing.items()):
            if caller in shared and all(answer.cancelled() for _, answer in shared):
                task.cancel()
                await asyncio.wait([task])


class Gatherings:
    """One for the threads of this process, one for each event loop; others for what handlers receive.

    A handler holds a connection, so it must not wait for a caller that waits for one: each depth of handlers, which has
    its own connections, has its own gathering.
    """

    def __init__(
        self,
        store: Callable[[list[Delivery]], list[Receipt]],
        store_async: Callable[[list[Delivery]], Coroutine[Any, Any, list[Receipt]]],
        *,
        single_writer: bool,
    ) -> None:
        self._store, self._store_async = store, store_async
        self._leaders = 1 if single_writer else LEADERS
        self._threads: tuple[int, dict[int, Gathering]] = os.getpid(), {}
        self._tasks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, AsyncGathering]] = WeakKeyDictionary()

    def of_threads(self) -> Gathering:
        """For a caller in any thread; whoever led in the parent does not lead in a forked child."""
        if self._threads[0] != os.getpid():
            self._threads = os.getpid(), {}
        level = depth()
        return self._threads[1].get(level) or self._threads[1].setdefault(level, Gathering(self._store, self._leaders))

    def of_tasks(self) -> AsyncGathering:
        """For a caller on the running event loop."""
        loop, level = asyncio.get_running_loop(), depth()
        gatherings = self._tasks.setdefault(loop, {})
        if level not in gatherings:
            gatherings[level] = AsyncGathering(self._store_async, self._leaders)
        return gatherings[level]

    async def finish(self) -> None:
        """Wait until nothing is being stored on the running event loop."""
        for gathering in list(self._tasks.get(asyncio.get_running_loop(), {}).values()):
            await gathering.finish()
