"""The pooled connections of a process to PostgreSQL.

Invariant: what waits for a connection of a pool holds none of it, nor of a later pool; so there is always one that
comes back. A handler has a connection, so what it calls (`message.once`, `receive`, `process`, `send`) gets another
from a second pool; what a handler calls that was called by a handler, from a third.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from onceward.stores.calls import running
from onceward.stores.postgres.guard import AsyncHandlerConnection, HandlerConnection
from onceward.stores.postgres.leftovers import SETTERS

POOL_WAIT = 5.0


def inner_size(size: int) -> int:
    """How many connections the calls of handlers share, beside so many for all other calls: they are short."""
    return max(1, size // 2)


class Pool(ConnectionPool[HandlerConnection]):
    """Of threads."""

    @staticmethod
    def check_connection(conn: Any) -> None:
        # As psycopg's own check, past the guard, which would take it for a handler that has ended.
        conn.set_autocommit(True)
        psycopg.Cursor(conn).execute("")
        conn.set_autocommit(False)


class AsyncPool(AsyncConnectionPool[AsyncHandlerConnection]):
    """Of the tasks of an event loop."""

    @staticmethod
    async def check_connection(conn: Any) -> None:
        await conn.set_autocommit(True)
        await psycopg.AsyncCursor(conn).execute("")
        await conn.set_autocommit(False)


class Pools:
    """Made when they are first used: one for each depth of handlers, for threads and for each event loop."""

    def __init__(self, conninfo: str, options: Mapping[str, Any], size: int, *, pipelined: bool) -> None:
        self._conninfo, self._options, self._size, self._pipelined = conninfo, options, size, pipelined
        self._lock = threading.Lock()
        self._of_threads: dict[int, Pool] = {}
        self._of_tasks: dict[asyncio.AbstractEventLoop, dict[int, AsyncPool]] = {}

    def of_threads(self) -> Pool:
        """The one for what this thread does now."""
        level = len(running.get())
        with self._lock:
            if level not in self._of_threads:
                self._of_threads[level] = Pool(
                    connection_class=HandlerConnection,
                    configure=partial(settle_in, pipelined=self._pipelined),
                    open=True,
                    **self._usual(level),
                )
            return self._of_threads[level]

    async def of_tasks(self) -> AsyncPool:
        """The one for what this task does now."""
        loop, level = asyncio.get_running_loop(), len(running.get())
        if loop not in self._of_tasks:
            self._of_tasks = {known: pools for known, pools in self._of_tasks.items() if not known.is_closed()}
        pools = self._of_tasks.setdefault(loop, {})
        if level not in pools:
            pools[level] = AsyncPool(
                connection_class=AsyncHandlerConnection,
                configure=partial(settle_in_async, pipelined=self._pipelined),
                open=False,
                **self._usual(level),
            )
            await pools[level].open()
        return pools[level]

    def _usual(self, level: int) -> dict[str, Any]:
        return {
            "conninfo": self._conninfo,
            "kwargs": dict(self._options),
            "min_size": 0,
            "max_size": inner_size(self._size) if level else self._size,
            "name": "onceward",
            "reconnect_timeout": POOL_WAIT,  # its pauses double: after an outage it would sleep on
        }

    def close(self) -> None:
        """Close those of threads."""
        with self._lock:
            pools, self._of_threads = self._of_threads, {}
        for pool in pools.values():
            pool.close()

    async def async_close(self) -> None:
        """Close those of the running event loop."""
        for pool in self._of_tasks.pop(asyncio.get_running_loop(), {}).values():
            await pool.close()


def settle_in(connection: HandlerConnection, *, pipelined: bool) -> None:
    """Make a new connection ours: READ COMMITTED whatever the role's default is, and no autocommit from here on.

    Statements are prepared where the server that answers is the one we connected to; a pooler hides who that is.
    """
    who_answers, setters = psycopg.Cursor(connection).execute(SETTERS).fetchall()[0]
    connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
    connection.set_autocommit(False)
    if who_answers == connection.info.backend_pid:
        connection.prepare_threshold = 5
    connection.settle_in(setters, pipelined=pipelined)


async def settle_in_async(connection: AsyncHandlerConnection, *, pipelined: bool) -> None:
    """As `settle_in`, awaited."""
    cursor = await psycopg.AsyncCursor(connection).execute(SETTERS)
    who_answers, setters = (await cursor.fetchall())[0]
    await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
    await connection.set_autocommit(False)
    if who_answers == connection.info.backend_pid:
        connection.prepare_threshold = 5
    connection.settle_in(setters, pipelined=pipelined)
