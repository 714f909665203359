"""The `tx` of an `async def` handler on MySQL: a connection of asyncmy, guarded as the other one."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any, NoReturn

from asyncmy.connection import Connection

from onceward.stores.mysql.guard import Guard
from onceward.stores.mysql.wire import send_async


class AsyncHandlerConnection(Guard, Connection):
    """The `tx` of an `async def` handler."""

    def __init__(self, **arguments: Any) -> None:
        self.__dict__["busy"] = asyncio.Lock()
        super().__init__(**arguments)

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent over it any more."""
        return not self.connected

    async def query(self, sql: Any, unbuffered: bool = False) -> Any:  # noqa: FBT001, FBT002 - asyncmy's signature
        async with self.__dict__["busy"]:
            text, began = self.check(sql), perf_counter()
            try:
                if self.pending_begin is not None:
                    await send_async(self, self.take_pending_begin())
                changed = await super().query(sql, unbuffered)
            except BaseException as error:
                self.failed(error)
                raise
            finally:
                self.__dict__["inside"] += perf_counter() - began
            if not unbuffered:
                self.passed(text)
            return changed

    async def execute(self, query: str, args: Any = None) -> Any:
        """As other drivers have it: a cursor that has executed a statement."""
        cursor = self.cursor()
        await cursor.execute(query, args)
        return cursor

    async def own_query(self, sql: bytes) -> None:
        """Send statements of ours."""
        await super().query(sql)

    def force_close(self) -> None:
        """Close at once, also while it is in use, without waiting: the socket goes, the server rolls back."""
        super().close()

    async def begin(self) -> None:
        self.refuse("begin()")

    async def commit(self) -> None:
        self.refuse("commit()")

    async def rollback(self) -> None:
        self.refuse("rollback()")

    def close(self) -> None:
        # The driver calls it as well: where it was cancelled, and where the server has gone.
        is_gone = self.is_broken or self._stream_broken  # type: ignore[attr-defined] # its stubs leave that out
        if self.in_handler and not is_gone:
            self.refuse("close()")
        super().close()

    def _close_on_cancel(self) -> None:
        self.breaks(InterruptedError("it was cancelled before its answer had come"))
        super()._close_on_cancel()  # type: ignore[misc] # as above

    async def ensure_closed(self) -> None:
        self.refuse("ensure_closed()")

    async def autocommit(self, value: Any) -> None:
        if self.number:  # else it is being opened
            self.refuse("autocommit()")
        await super().autocommit(value)

    async def select_db(self, db: Any) -> None:
        await self.query("USE " + "`" + str(db).replace("`", "``") + "`")

    async def __aenter__(self) -> NoReturn:
        self.refuse("`async with tx:`, which closes the connection at its end")
