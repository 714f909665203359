"""The pooled sessions of a process to MySQL.

Invariant: what waits for a connection of a pool holds none of it, nor of a later pool; so there is always one that
comes back. A handler has a connection, so what it calls (`message.once`, `receive`, `process`, `send`) gets another
from a second pool; what a handler calls that was called by a handler, from a third.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from onceward.errors import StoreUnavailable
from onceward.stores.calls import running
from onceward.stores.mysql.failures import DRIVER
from onceward.stores.mysql.session import AsyncMysqlSession, MysqlSession
from onceward.stores.mysql.wire import send, send_async

POOL_WAIT = 5.0
_PROVEN_SECONDS = 10.0
"""For how long a connection is believed in; one that was idle for longer is asked first."""


def inner_size(size: int) -> int:
    """How many connections the calls of handlers share, beside so many for all other calls: they are short."""
    return max(1, size // 2)


def _full(size: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"no connection to MySQL was free for {POOL_WAIT:g} s: all {size} of the pool are in use; raise "
        "Settings(pool=...)"
    )


class Pool:
    """Of threads."""

    def __init__(self, size: int, make: Callable[[], MysqlSession]) -> None:
        self._size, self._make = size, make
        self._idle: list[MysqlSession] = []
        self._free = threading.Semaphore(size)

    def get(self) -> MysqlSession:
        """A session that no transaction is open on."""
        if not self._free.acquire(timeout=POOL_WAIT):
            raise _full(self._size)
        try:
            while (session := self._kept()) is not None:
                if _is_fresh(session) or _answers(session):
                    return session
            return self._make()
        except BaseException:
            self._free.release()
            raise

    def _kept(self) -> MysqlSession | None:
        """One that is not in use. Asked for at once: what was there a moment ago, another thread may have taken."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def put(self, session: MysqlSession) -> None:
        """Give a session back."""
        if session.idle and not session.is_spent:
            session.connection.__dict__["used_at"] = time.monotonic()
            self._idle.append(session)
        else:
            lost = session.connection.closed
            session.close()
            if lost:  # after a restart of the server every idle connection is stale, not only this one
                self.clear()
        self._free.release()

    def clear(self) -> None:
        """Close those that are not in use."""
        while (session := self._kept()) is not None:
            session.close()


class AsyncPool:
    """Of the tasks of an event loop."""

    def __init__(self, size: int, make: Callable[[], Coroutine[Any, Any, AsyncMysqlSession]]) -> None:
        self._size, self._make = size, make
        self._idle: list[AsyncMysqlSession] = []
        self._free = asyncio.Semaphore(size)

    async def get(self) -> AsyncMysqlSession:
        """A session that no transaction is open on."""
        try:
            async with asyncio.timeout(POOL_WAIT):
                await self._free.acquire()
        except TimeoutError:
            raise _full(self._size) from None
        try:
            while self._idle:
                session = self._idle.pop()
                if _is_fresh(session) or await _answers_async(session):
                    return session
            return await self._make()
        except BaseException:
            self._free.release()
            raise

    def put(self, session: AsyncMysqlSession, *, done: bool) -> None:
        """Give a session back; of one that was cancelled nothing is known."""
        if done and session.idle and not session.is_spent:
            session.connection.__dict__["used_at"] = time.monotonic()
            self._idle.append(session)
        else:
            lost = session.connection.closed
            session.abandon()
            if lost and done:
                self.clear()
        self._free.release()

    def clear(self) -> None:
        """Close those that are not in use."""
        while self._idle:
            self._idle.pop().abandon()


def _is_fresh(session: Any) -> bool:
    return bool(time.monotonic() - session.connection.used_at < _PROVEN_SECONDS)


def _answers(session: MysqlSession) -> bool:
    try:
        send(session.connection, [b"DO 0"])
    except DRIVER:
        session.close()
        return False
    return True


async def _answers_async(session: AsyncMysqlSession) -> bool:
    try:
        await send_async(session.connection, [b"DO 0"])
    except DRIVER:
        session.abandon()
        return False
    return True


class Pools:
    """Made when they are first used: one for each depth of handlers, for threads and for each event loop."""

    def __init__(
        self,
        size: int,
        make: Callable[[], MysqlSession],
        make_async: Callable[[], Coroutine[Any, Any, AsyncMysqlSession]],
    ) -> None:
        self._size, self._make, self._make_async = size, make, make_async
        self._lock = threading.Lock()
        self._of_threads: dict[int, Pool] = {}
        self._of_tasks: dict[asyncio.AbstractEventLoop, dict[int, AsyncPool]] = {}

    def of_threads(self) -> Pool:
        """The one for what this thread does now."""
        level = len(running.get())
        with self._lock:
            if level not in self._of_threads:
                self._of_threads[level] = Pool(self._size_of(level), self._make)
            return self._of_threads[level]

    def of_tasks(self) -> AsyncPool:
        """The one for what this task does now."""
        loop, level = asyncio.get_running_loop(), len(running.get())
        if loop not in self._of_tasks:
            self._of_tasks = {known: pools for known, pools in self._of_tasks.items() if not known.is_closed()}
        pools = self._of_tasks.setdefault(loop, {})
        if level not in pools:
            pools[level] = AsyncPool(self._size_of(level), self._make_async)
        return pools[level]

    def _size_of(self, level: int) -> int:
        return inner_size(self._size) if level else self._size

    def close(self) -> None:
        """Close those of threads."""
        with self._lock:
            pools, self._of_threads = self._of_threads, {}
        for pool in pools.values():
            pool.clear()

    def async_close(self) -> None:
        """Close those of the running event loop."""
        for pool in self._of_tasks.pop(asyncio.get_running_loop(), {}).values():
            pool.clear()
