"""The `tx` of a handler on PostgreSQL: a psycopg connection that begins lazily and cannot end its transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from onceward.errors import (
    ContractViolation,
    HandlerTimeout,
)
from onceward.stores.calls import Owned, refuse_transaction_control, remembered
from onceward.stores.dry_run import Statement
from onceward.stores.leftovers import Left
from onceward.stores.postgres.leftovers import left_by
from onceward.stores.postgres.script import statements
from onceward.stores.postgres.statement import Asked
from onceward.stores.postgres.wire import IMMEDIATE, OWN_ROLE, OWN_SETTINGS, OWN_USER, send, send_async

_REPORTED = (b"client_encoding", b"DateStyle", b"IntervalStyle", b"TimeZone", b"session_authorization", b"is_superuser")
"""Settings that the server tells of whenever they change, also by other means; to ask for them costs nothing."""


@remembered
def _check(script: str, setters: frozenset[str]) -> Left:
    """Refuse what ends the transaction; returns what the statements leave behind."""
    left = Left.NOTHING
    for statement in statements(script):
        refuse_transaction_control(statement)
        left = max(left, left_by(statement, setters))
    return left


class Guard(Owned):
    """What both worlds check before a handler's statement."""

    pending_begin: list[Asked] | None = None
    handled: bool = False
    """A handler has had it since our last statement."""
    left: Left = Left.NOTHING
    """What handlers have left behind since the transaction began."""
    is_foreign: bool = False
    """The transaction is under settings of the handler's, perhaps under another role."""
    setters: frozenset[str] = frozenset()
    """The names of the functions that set something."""
    reported: tuple[bytes | None, ...] = ()
    """The settings that the server tells of, as they were."""
    recorded: list[Statement] | None = None
    """Where the handler's statements are recorded, in a dry run."""
    pgconn: Any
    row_factory: Any
    prepare_threshold: int | None
    closed: Any
    cursor_factory: Any
    server_cursor_factory: Any
    _habits: tuple[Any, ...] = ()
    pipelined: bool = True
    """Whether statements of ours travel together."""
    prepared: set[str]
    """The names of our own statements that the server has prepared."""

    def check(self, query: Any, params: Any = None) -> None:
        """Keep the handler inside its one transaction."""
        self.check_owner()
        if self.recorded is not None and query:
            self.recorded.append(Statement.of(_text(query), params))
        if self.overrun:
            raise HandlerTimeout("the handler has run longer than its timeout")
        text = query if type(query) is str else _text(query)
        left = _check(text, self.setters)
        if left:
            self.leave(left)
        self.sends(text)
        if self.pending_begin is None and self.pgconn.transaction_status == TransactionStatus.IDLE:
            raise ContractViolation("the transaction has ended before the handler did")

    def refuse(self, what: str) -> None:
        """Refuse to end the transaction from inside a handler."""
        if self.in_handler:
            raise ContractViolation(
                f"the handler called {what}; the transaction belongs to onceward: returning commits, raising rolls back"
            )

    def leave(self, what: Left) -> None:
        """Remember what the handler leaves behind."""
        if what:
            self.left, self.is_foreign = max(self.left, what), True

    def settle_in(self, setters: Iterable[str], *, pipelined: bool) -> None:
        """Remember how a new connection is, and which functions would change that."""
        self.pipelined = pipelined
        self.setters = frozenset(setters)
        self.reported = self._reported()

    def restoring(self, limits: Mapping[str, Any]) -> list[Asked]:
        """What brings our own rights and settings back, once, before a statement of ours follows a handler's."""
        was_foreign, self.is_foreign = self.is_foreign, False
        return [(IMMEDIATE, {}), (OWN_USER, {}), (OWN_ROLE, {}), (OWN_SETTINGS, limits)] if was_foreign else []

    def undone(self) -> None:
        """What handlers did is rolled back, and so are their settings; unless one of them has hidden a COMMIT."""
        self.is_foreign = False
        self.left = Left.NOTHING if self.left < Left.SESSION else Left.CONNECTION

    @property
    def is_spent(self) -> bool:
        """Whether no transaction is under way, and the connection is not as it was: the next one needs another."""
        is_idle = self.pending_begin is None and self.pgconn.transaction_status == TransactionStatus.IDLE
        return self.left == Left.CONNECTION and is_idle

    def begin(self, opening: list[Asked]) -> None:
        """A transaction begins with these, at its first statement; handlers get the connection as it is now."""
        self.pending_begin, self.handled = opening, False
        self.left, self.is_foreign = Left.NOTHING, False
        self._habits = self._own_habits()

    def reclaim(self) -> None:
        """The handler has ended; what it set for itself is forgotten."""
        super().reclaim()
        self.handled = True
        if self._habits != self._own_habits():
            self.row_factory, self.prepare_threshold, self.cursor_factory, self.server_cursor_factory = self._habits
        if self.statements and not self.closed and self.reported != self._reported():
            self.leave(Left.SESSION)

    def _own_habits(self) -> tuple[Any, ...]:
        return self.row_factory, self.prepare_threshold, self.cursor_factory, self.server_cursor_factory

    def _reported(self) -> tuple[bytes | None, ...]:
        return tuple(map(self.pgconn.parameter_status, _REPORTED))

    def add_notice_handler(self, callback: Any) -> None:
        self.leave(Left.CONNECTION if self.in_handler else Left.NOTHING)
        super().add_notice_handler(callback)  # type: ignore[misc] # mixed into a connection

    def add_notify_handler(self, callback: Any) -> None:
        self.leave(Left.CONNECTION if self.in_handler else Left.NOTHING)
        super().add_notify_handler(callback)  # type: ignore[misc] # mixed into a connection

    def take_pending_begin(self) -> list[Asked]:
        """The statements that begin the transaction, once."""
        pending, self.pending_begin = self.pending_begin, None
        return pending or []

    def _start_query(self) -> Any:
        # Cursors that a handler makes by itself, past `tx.cursor()`, begin here too: they have used the transaction.
        self.statements += 1
        return super()._start_query()  # type: ignore[misc] # mixed into a connection

    def _deallocate(self, name: bytes | None) -> Any:
        """As psycopg's; when it discards all that it has prepared, the server discards ours too."""
        if name is None:
            self.prepared.clear()
        return super()._deallocate(name)  # type: ignore[misc] # mixed into a connection


def _text(query: Any) -> str:
    if isinstance(query, sql.Composable):
        return query.as_string(None)
    return query.decode(errors="replace") if isinstance(query, bytes) else str(query)


class _OwnedCursor:
    connection: Any

    def _start_query(self, *args: Any) -> Any:
        # Once more now that the connection is locked: the handler may have ended while its helper waited for that.
        self.connection.check_owner()
        return super()._start_query(*args)  # type: ignore[misc] # mixed into a cursor


class _GuardedCursor(_OwnedCursor):
    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        connection, began = self.connection, perf_counter()
        try:
            connection.start(query, params)
            return super().execute(query, params, **options)  # type: ignore[misc] # mixed into a cursor
        finally:
            connection.inside += perf_counter() - began

    def executemany(self, query: Any, params_seq: Any, **options: Any) -> Any:
        self.connection.start(query, params_seq)
        return super().executemany(query, params_seq, **options)  # type: ignore[misc] # mixed into a cursor

    def stream(self, query: Any, params: Any = None, **options: Any) -> Any:
        self.connection.start(query, params)
        return super().stream(query, params, **options)  # type: ignore[misc] # mixed into a cursor

    def copy(self, statement: Any, params: Any = None, **options: Any) -> Any:
        self.connection.start(statement, params)
        return super().copy(statement, params, **options)  # type: ignore[misc] # mixed into a cursor


class HandlerCursor(_GuardedCursor, psycopg.Cursor[Any]):
    """A cursor that begins the handler's transaction at its first statement."""


class HandlerServerCursor(_GuardedCursor, psycopg.ServerCursor[Any]):
    """The same for named cursors."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        self.connection.leave(Left.CONNECTION if self.withhold else Left.TRANSACTION)
        return super().execute(query, params, **options)


class HandlerConnection(Guard, psycopg.Connection[Any]):
    """The `tx` of a `def` handler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared = set()
        self.cursor_factory = HandlerCursor
        self.server_cursor_factory = HandlerServerCursor

    def start(self, query: Any = "", params: Any = None) -> None:
        """Begin the transaction if it has not begun."""
        self.check(query, params)
        if self.pending_begin is not None:
            send(self, self.take_pending_begin())

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        self.start()  # before it: what begins the transaction is a pipeline too
        with super().pipeline() as pipeline:
            yield pipeline

    @contextmanager
    def transaction(self, *args: Any, **kwargs: Any) -> Iterator[psycopg.Transaction]:
        self.start("SAVEPOINT")
        with super().transaction(*args, **kwargs) as nested:
            yield nested

    def commit(self) -> None:
        self.refuse("commit()")
        super().commit()

    def rollback(self) -> None:
        self.refuse("rollback()")
        super().rollback()

    def close(self) -> None:
        self.refuse("close()")
        super().close()

    def set_autocommit(self, value: bool) -> None:  # noqa: FBT001 - psycopg's signature
        self.refuse("set_autocommit()")
        super().set_autocommit(value)

    def force_close(self) -> None:
        """Close, also while it is in use."""
        super().close()

    def __enter__(self) -> Any:
        self.refuse("`with tx:`, which commits at its end")
        return super().__enter__()


class AsyncHandlerCursor(_OwnedCursor, psycopg.AsyncCursor[Any]):
    """A cursor that begins the handler's transaction at its first statement."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        began = perf_counter()
        try:
            await self.connection.start(query, params)
            return await super().execute(query, params, **options)
        finally:
            self.connection.inside += perf_counter() - began

    async def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        await self.connection.start(query, params_seq)
        await super().executemany(query, params_seq, **options)

    async def stream(self, query: Any, params: Any = None, **options: Any) -> AsyncIterator[Any]:
        await self.connection.start(query, params)
        async for row in super().stream(query, params, **options):
            yield row

    @asynccontextmanager
    async def copy(self, statement: Any, params: Any = None, **options: Any) -> AsyncIterator[Any]:
        await self.connection.start(statement, params)
        async with super().copy(statement, params, **options) as copy:
            yield copy


class AsyncHandlerServerCursor(_OwnedCursor, psycopg.AsyncServerCursor[Any]):
    """The same for named cursors."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        self.connection.leave(Left.CONNECTION if self.withhold else Left.TRANSACTION)
        await self.connection.start(query, params)
        return await super().execute(query, params, **options)


class AsyncHandlerConnection(Guard, psycopg.AsyncConnection[Any]):
    """The `tx` of an `async def` handler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared = set()
        self.cursor_factory = AsyncHandlerCursor
        self.server_cursor_factory = AsyncHandlerServerCursor

    async def start(self, query: Any = "", params: Any = None) -> None:
        """Begin the transaction if it has not begun."""
        self.check(query, params)
        if self.pending_begin is not None:
            await send_async(self, self.take_pending_begin())

    @asynccontextmanager
    async def pipeline(self) -> AsyncIterator[psycopg.AsyncPipeline]:
        await self.start()  # before it: what begins the transaction is a pipeline too
        async with super().pipeline() as pipeline:
            yield pipeline

    @asynccontextmanager
    async def transaction(self, *args: Any, **kwargs: Any) -> AsyncIterator[psycopg.AsyncTransaction]:
        await self.start("SAVEPOINT")
        async with super().transaction(*args, **kwargs) as nested:
            yield nested

    async def commit(self) -> None:
        self.refuse("commit()")
        await super().commit()

    async def rollback(self) -> None:
        self.refuse("rollback()")
        await super().rollback()

    async def close(self) -> None:
        self.refuse("close()")
        await super().close()

    async def set_autocommit(self, value: bool) -> None:  # noqa: FBT001 - psycopg's signature
        self.refuse("set_autocommit()")
        await super().set_autocommit(value)

    def force_close(self) -> None:
        """Close at once, also while it is in use, without waiting: the socket goes, the server rolls back."""
        self.pgconn.finish()

    async def __aenter__(self) -> Any:
        self.refuse("`async with tx:`, which commits at its end")
        return await super().__aenter__()
