"""The `tx` of an `async def` handler on SQLite: an aiosqlite connection that cannot end the transaction it is in."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Self

import aiosqlite

from onceward.stores.sqlite.guard import HandlerConnection, refused
from onceward.stores.sqlite.lent import LentConnection


class AsyncHandlerConnection(aiosqlite.Connection):
    """Refuses what the connection in its thread cannot see; that one refuses the rest."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        # A program that ends without `aclose` is not kept alive by it; what is not committed rolls back, as at a crash.
        self._thread.daemon = True

    @property
    def guarded(self) -> HandlerConnection:
        """The connection in the thread."""
        connection = self._conn
        assert isinstance(connection, HandlerConnection)  # noqa: S101 - our connector makes no other
        return connection

    @property
    def _in_handler(self) -> bool:
        return self._connection is not None and self.guarded.in_handler

    async def _execute(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        # In the context of whoever asks, by which the connection in the thread knows them.
        return await super()._execute(copy_context().run, fn, *args, **kwargs)  # type: ignore[no-untyped-call]

    def stop(self) -> asyncio.Future[Any] | None:
        self._refuse("stop()")
        return super().stop()

    async def close(self) -> None:
        self._refuse("close()")
        await super().close()

    async def __aenter__(self) -> Self:
        self._refuse("`async with tx:`, which closes the connection at its end")
        await super().__aenter__()
        return self

    def _refuse(self, what: str) -> None:
        if self._in_handler:
            raise refused(what)


class AsyncLentConnection(AsyncHandlerConnection):
    """The connection of a caller as a handler has it: in the caller's thread, and not the handler's to end."""

    def __init__(self, callers: aiosqlite.Connection, lent: LentConnection) -> None:
        super().__init__(lambda: callers._conn)  # noqa: SLF001 - it is connected already
        self._connection, self._lent = lent, lent  # type: ignore[assignment] # it has the methods of one
        self._tx, self._thread = callers._tx, callers._thread  # noqa: SLF001 - what it asks is asked there

    def __del__(self) -> None:
        """It is the caller's, and not left open by us."""

    @property
    def _in_handler(self) -> bool:
        return self._lent.in_handler

    def stop(self) -> asyncio.Future[Any] | None:
        raise refused("stop()")

    async def close(self) -> None:
        raise refused("close()")
