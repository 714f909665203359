"""A recorder on the `tx` of a handler: sees every statement pass, and can break the connection under it.

Invariant: the handler's connection stays what it was, the same object and an instance of the same class, so what
works in production works here; the recorder is off when the handler has ended.
"""

from __future__ import annotations

import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import cache
from inspect import iscoroutinefunction
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from onceward.stores.sqlite.guard import HandlerConnection, HandlerCursor

_NOT_THE_HANDLER = (
    *("onceward", "psycopg", "sqlite3", "aiosqlite", "pymysql", "asyncmy", "sqlalchemy"),
    *("asyncio", "contextlib", "threading", "concurrent"),
)


class Listener(Protocol):
    """Who hears of the statements."""

    def passing(self, sql: str, recorder: Recorder) -> AbstractContextManager[None]:
        """A statement is about to run, and has run when the block ends."""


class Recorder(ABC):
    """One recorded connection."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.caller = ""

    def passing(self, sql: Any) -> AbstractContextManager[None]:
        """Tell the listener."""
        return self.listener.passing(" ".join(_text(sql).split()), self)

    def where(self) -> str:
        """File and line of the handler that runs the statement."""
        return handler_line(sys._getframe(1)) or self.caller  # noqa: SLF001 - the only way to a calling line

    @abstractmethod
    def lose(self) -> Exception:
        """Break the connection, as a network would; returns the error that its driver would raise."""


class _SqliteRecorder(Recorder):
    def __init__(self, listener: Listener, connection: HandlerConnection) -> None:
        super().__init__(listener)
        self._connection = connection

    def lose(self) -> Exception:
        # There is no network: the nearest thing is a disk that fails, on which SQLite rolls back by itself.
        if self._connection.in_transaction:
            sqlite3.Cursor(self._connection).execute("ROLLBACK")
        error = sqlite3.OperationalError("disk I/O error (onceward.testing)")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        error.sqlite_errorname = "SQLITE_IOERR"
        return error


class _PostgresRecorder(Recorder):
    def __init__(self, listener: Listener, connection: Any) -> None:
        super().__init__(listener)
        self._connection = connection

    def lose(self) -> Exception:
        import psycopg  # noqa: PLC0415 - only where it is the driver

        self._connection.pgconn.finish()
        return psycopg.OperationalError("the connection is lost (onceward.testing)")


class _MysqlRecorder(Recorder):
    def __init__(self, listener: Listener, connection: Any) -> None:
        super().__init__(listener)
        self._connection = connection

    def lose(self) -> Exception:
        from onceward.stores.mysql.failures import lost  # noqa: PLC0415 - only where it is the driver

        self._connection.force_close()
        return lost(self._connection, "the connection is lost (onceward.testing)")


class _RecordedCursor(HandlerCursor):
    connection: _RecordedConnection

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        with self.connection.recorder.passing(sql):
            return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> Any:
        with self.connection.recorder.passing(sql):
            return super().executemany(sql, parameters)


class _RecordedConnection(HandlerConnection):
    recorder: Recorder

    def cursor(self, factory: Any = _RecordedCursor) -> Any:
        return super().cursor(factory)

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return _RecordedCursor(self).execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> Any:
        return _RecordedCursor(self).executemany(sql, parameters)


@contextmanager
def recorded(tx: Any, listener: Listener) -> Iterator[None]:
    """Record the statements on the `tx` of a handler for as long as the block lasts."""
    if isinstance(tx, HandlerConnection):
        with _recorded_sqlite(tx, _SqliteRecorder(listener, tx)):
            yield
    elif isinstance(inner := getattr(tx, "_conn", None), HandlerConnection):
        recorder = _SqliteRecorder(listener, inner)
        with _recorded_sqlite(inner, recorder), _noted_caller(tx, recorder):
            yield
    elif type(tx).__module__.startswith("onceward.stores.mysql."):  # each statement of a cursor is one call
        query, telling = tx.query, _MysqlRecorder(listener, tx)
        recorded_query = _recorded_async if iscoroutinefunction(query) else _recorded
        tx.__dict__["query"] = recorded_query(telling, query)
        try:
            yield
        finally:
            del tx.__dict__["query"]
    else:
        factories = tx.cursor_factory, tx.server_cursor_factory
        tx.recorder = _PostgresRecorder(listener, tx)
        tx.cursor_factory, tx.server_cursor_factory = (_recorded_class(factory) for factory in factories)
        try:
            yield
        finally:
            tx.cursor_factory, tx.server_cursor_factory = factories


def _recorded(recorder: Recorder, query: Callable[..., Any]) -> Callable[..., Any]:
    def passed(sql: Any, *more: Any, **options: Any) -> Any:
        with recorder.passing(sql):
            return query(sql, *more, **options)

    return passed


def _recorded_async(recorder: Recorder, query: Callable[..., Any]) -> Callable[..., Any]:
    async def passed(sql: Any, *more: Any, **options: Any) -> Any:
        with recorder.passing(sql):
            return await query(sql, *more, **options)

    return passed


@contextmanager
def _recorded_sqlite(connection: HandlerConnection, recorder: Recorder) -> Iterator[None]:
    # The same object with other methods: whoever holds it, or asks for its class, notices nothing.
    other: Any = connection
    other.__class__ = _RecordedConnection
    other.recorder = recorder
    try:
        yield
    finally:
        other.__class__ = HandlerConnection


@contextmanager
def _noted_caller(tx: Any, recorder: Recorder) -> Iterator[None]:
    """Aiosqlite runs a statement in another thread; who asked for it is seen only here."""
    original = tx._execute  # noqa: SLF001 - every call of an aiosqlite connection goes through it

    async def noted(function: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.caller = handler_line(sys._getframe(1)) or recorder.caller  # noqa: SLF001 - the only way to a calling line
        return await original(function, *args, **kwargs)

    tx._execute = noted  # noqa: SLF001 - as above
    try:
        yield
    finally:
        del tx._execute  # noqa: SLF001 - as above


@cache
def _recorded_class(factory: Any) -> Any:
    """The class of a psycopg cursor, with a recorder."""
    import psycopg  # noqa: PLC0415 - only where it is the driver

    is_async = issubclass(factory, psycopg.AsyncCursor | psycopg.AsyncServerCursor)
    return type(f"Recorded{factory.__name__}", (_RecordedAsync if is_async else _RecordedSync, factory), {})


class _RecordedSync:
    connection: Any

    def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        with self.connection.recorder.passing(query):
            return super().execute(query, *args, **options)  # type: ignore[misc] # mixed into a cursor

    def executemany(self, query: Any, *args: Any, **options: Any) -> Any:
        with self.connection.recorder.passing(query):
            return super().executemany(query, *args, **options)  # type: ignore[misc] # mixed into a cursor

    @contextmanager
    def copy(self, statement: Any, *args: Any, **options: Any) -> Iterator[Any]:
        with (
            self.connection.recorder.passing(statement),
            super().copy(statement, *args, **options) as copy,  # type: ignore[misc] # mixed into a cursor
        ):
            yield copy


class _RecordedAsync:
    connection: Any

    async def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        with self.connection.recorder.passing(query):
            return await super().execute(query, *args, **options)  # type: ignore[misc] # mixed into a cursor

    async def executemany(self, query: Any, *args: Any, **options: Any) -> Any:
        with self.connection.recorder.passing(query):
            return await super().executemany(query, *args, **options)  # type: ignore[misc] # mixed into a cursor

    @asynccontextmanager
    async def copy(self, statement: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        with self.connection.recorder.passing(statement):
            async with super().copy(statement, *args, **options) as copy:  # type: ignore[misc] # mixed in
                yield copy


def handler_line(frame: FrameType | None) -> str:
    """The nearest calling line that belongs to neither onceward nor a driver."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _NOT_THE_HANDLER:
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _text(sql: Any) -> str:
    if isinstance(sql, bytes):
        return sql.decode(errors="replace")
    return str(sql.as_string(None)) if hasattr(sql, "as_string") else str(sql)
