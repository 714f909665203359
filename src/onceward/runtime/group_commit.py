"""Group commit: deliveries that arrive at the same time share a transaction.

The first caller stores for all that wait, so a commit is paid once for many callers, and one that is alone never waits.
Invariant: each caller gets the receipt or the error of its own message. Where a shared transaction fails, everyone in
it tries again alone, so that no message suffers from another for long.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from onceward.deferred import asyncio
from onceward.domain import checks
from onceward.message import Arguments, Delivery, Receipt, delivery_of
from onceward.stores.calls import running

T = TypeVar("T")

SHARED = 500
"""How many messages share a transaction at most: 1000 was no faster."""
LEADERS = 2
"""How many transactions `receive` may have under way where the database takes several writers: the second when the
first is slow, as behind a lock, or many wait. Two for few callers were slower: each had fewer to share its commit. A
worker that sees the later of two committed first finds the other by its full scan, within a second."""
SLOW = 0.05
"""From how many seconds on the next ones do not wait for it."""
CROWD = 32
"""From how many on they do not wait for it either. With 24 it was no faster."""


def batches(messages: Iterable[Arguments], call: str = "receive_many") -> Iterator[list[Delivery]]:
    """Many messages in the parts that share a transaction."""
    if isinstance(messages, Mapping | str) or not isinstance(messages, Iterable):
        checks.refuse(f"{call}()", "messages", messages, "a list of mappings, each with the arguments of receive()")
    iterator = iter(messages)
    while batch := [delivery_of(call, message) for message in itertools.islice(iterator, SHARED)]:
        yield batch


class Sharing(Generic[T]):
    """The rule of it, for threads and tasks: who waits to be stored, and when the next transaction may begin."""

    def __init__(self, leaders: int) -> None:
        self.waiting: list[T] = []
        self.leaders = leaders
        self.begun: dict[object, float] = {}
        """The transactions that are under way, the oldest first, and since when."""

    def may_begin(self, now: float) -> bool:
        """Whether another one may begin: not while one is quick, unless a crowd waits for it."""
        if not self.waiting or len(self.begun) >= self.leaders:
            return False
        return len(self.waiting) >= CROWD or all(now - since >= SLOW for since in self.begun.values())

    def take(self) -> list[T]:
        """Those who share the next one.

        Where none is under way, half of two crowds: the others follow at once, and the database stores these while
        Python prepares those. Of threads one leads already.
        """
        halves = self.leaders > 1 and not self.begun and len(self.waiting) >= 2 * CROWD
        most = min(len(self.waiting) // 2, SHARED) if halves else SHARED
        shared, self.waiting = self.waiting[:most], self.waiting[most:]
        return shared

    def leave(self, one: T) -> None:
        """It does not wait any more."""
        if one in self.waiting:
            self.waiting.remove(one)


class _Waiter:
    """A thread that waits."""

    __slots__ = ("delivery", "error", "is_done", "leads", "receipt", "woken")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.woken = threading.Event()
        self.leads = self.is_done = False
        self.receipt: Receipt | None = None
        self.error: Exception | None = None


class GroupCommit:
    """For threads: one of those that wait leads, which is to store for all of them."""

    def __init__(self, store: Callable[[list[Delivery]], list[Receipt]], leaders: int) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._sharing: Sharing[_Waiter] = Sharing(leaders)

    def receive(self, delivery: Delivery) -> Receipt:
        """Store one delivery, together with whatever else waits to be stored."""
        waiter = _Waiter(delivery)
        with self._lock:
            self._sharing.waiting.append(waiter)
            self._appoint(waiter)
        try:
            self._take_part(waiter)
        except BaseException:  # interrupted, perhaps when it was just to lead
            self._leave(waiter)
            raise
        if waiter.error is not None:
            raise waiter.error
        return waiter.receipt or self._store([delivery])[0]

    def _take_part(self, waiter: _Waiter) -> None:
        """Wait until it is stored, and lead when it is its turn."""
        while True:
            if waiter.leads:
                waiter.leads = False
                self._lead(waiter)
            if waiter.is_done:
                return
            if waiter.woken.wait(SLOW):
                waiter.woken.clear()
            else:
                with self._lock:
                    self._appoint(waiter)

    def _appoint(self, waiter: _Waiter) -> None:
        """Let it lead if another transaction may begin, unless it is being stored already."""
        now = time.monotonic()
        if self._sharing.may_begin(now) and waiter in self._sharing.waiting:
            self._sharing.begun[waiter] = now
            waiter.leads = True

    def _lead(self, leader: _Waiter) -> None:
        """Store for everyone who waits now, and let the first who came meanwhile lead the next."""
        with self._lock:
            shared = self._sharing.take()
        try:
            receipts = self._store([waiter.delivery for waiter in shared]) if shared else []
            for waiter, receipt in zip(shared, receipts, strict=True):
                waiter.receipt = receipt
        except Exception as error:  # noqa: BLE001 - it belongs to one of them, who meets it again alone
            if len(shared) == 1:
                shared[0].error = error
        finally:
            for waiter in shared:
                waiter.is_done = True
                waiter.woken.set()
            with self._lock:  # it waits on where so many came before it that it was not among those
                self._next_leads(leader)

    def _leave(self, waiter: _Waiter) -> None:
        """It neither waits nor leads any more."""
        with self._lock:
            self._sharing.leave(waiter)
            self._next_leads(waiter)

    def _next_leads(self, leader: _Waiter) -> None:
        """It does not lead any more: perhaps another leads now."""
        self._sharing.begun.pop(leader, None)
        if self._sharing.waiting:
            self._appoint(self._sharing.waiting[0])
            self._sharing.waiting[0].woken.set()


_Caller: TypeAlias = "tuple[Delivery, asyncio.Future[Receipt | None]]"


class AsyncGroupCommit:
    """For the tasks of an event loop. Storing is a task of its own, so a caller may be cancelled without the others."""

    def __init__(self, store: Callable[[list[Delivery]], Coroutine[Any, Any, list[Receipt]]], leaders: int) -> None:
        self._store = store
        self._sharing: Sharing[_Caller] = Sharing(leaders)
        self._storing: dict[asyncio.Future[list[Receipt]], list[_Caller]] = {}
        """What is under way, and for whom."""
        self._coming = False
        self._later: asyncio.TimerHandle | None = None

    async def receive(self, delivery: Delivery) -> Receipt:
        """Store one delivery, together with whatever else waits to be stored."""
        caller: _Caller = delivery, asyncio.get_running_loop().create_future()
        self._sharing.waiting.append(caller)
        self._soon()
        try:
            receipt = await caller[1]
        except asyncio.CancelledError:
            await self._leave(caller)
            raise
        return receipt or (await self._store([delivery]))[0]

    async def finish(self) -> None:
        """Wait until nothing is being stored."""
        while self._sharing.waiting or self._storing:
            await (asyncio.wait(self._storing) if self._storing else asyncio.sleep(0))

    def _soon(self) -> None:
        """Begin when the loop has gone round: callers that were served together come again together, and share."""
        if not self._coming:
            self._coming = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._coming = False
        sharing, loop = self._sharing, asyncio.get_running_loop()
        now = loop.time()
        if not sharing.may_begin(now):
            if sharing.waiting and len(sharing.begun) < sharing.leaders:  # one that is quick may turn out slow
                self._later = self._later or loop.call_later(SLOW, self._look_again)
            return
        shared = sharing.take()
        if sharing.waiting:
            self._soon()
        task = loop.create_task(self._store([delivery for delivery, _ in shared]))
        sharing.begun[task], self._storing[task] = now, shared
        task.add_done_callback(self._end)

    def _look_again(self) -> None:
        self._later = None
        self._begin()

    def _end(self, task: asyncio.Future[list[Receipt]]) -> None:
        del self._sharing.begun[task]
        shared = self._storing.pop(task)
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
        """A caller was cancelled: what is stored for it alone is given up, and is at rest when this returns."""
        self._sharing.leave(caller)
        for task, shared in list(self._storing.items()):
            if caller in shared and all(answer.cancelled() for _, answer in shared):
                task.cancel()
                await asyncio.wait([task])


class GroupCommits:
    """One for the threads of this process, one for each event loop; others for what handlers receive.

    A handler holds a connection, so it must not wait for a caller that waits for one: each depth of handlers, which has
    its own connections, has its own group commit.
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
        self._threads: tuple[int, dict[int, GroupCommit]] = os.getpid(), {}
        self._tasks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, AsyncGroupCommit]] = WeakKeyDictionary()

    def of_threads(self) -> GroupCommit:
        """For a caller in any thread; a leader in the parent does not lead in a forked child."""
        if self._threads[0] != os.getpid():
            self._threads = os.getpid(), {}
        level = len(running.get())
        return self._threads[1].get(level) or self._threads[1].setdefault(
            level, GroupCommit(self._store, self._leaders)
        )

    def of_tasks(self) -> AsyncGroupCommit:
        """For a caller on the running event loop."""
        loop, level = asyncio.get_running_loop(), len(running.get())
        group_commits = self._tasks.setdefault(loop, {})
        if level not in group_commits:
            group_commits[level] = AsyncGroupCommit(self._store_async, self._leaders)
        return group_commits[level]

    async def finish(self) -> None:
        """Wait until nothing is being stored on the running event loop."""
        for group_commit in list(self._tasks.get(asyncio.get_running_loop(), {}).values()):
            await group_commit.finish()
