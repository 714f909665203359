"""SQLite: the embedded store. WAL, synchronous FULL, one writer at a time, no third-party package.

Invariant: every write happens between BEGIN IMMEDIATE and COMMIT of a session, also the handler's: the connection a handler gets
begins the transaction at its first statement and refuses to end it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from onceward.errors import (
    ConfigurationError,
    ContractViolation,
    GuardFailed,
    StoreError,
    StoreUnavailable,
)
from onceward.flow import Begin, Call, Commit, Each, Outcome, Query, Reconnect, Rollback
from onceward.stores import migrate
from onceward.stores.calls import awaited_outcome, outcome, refuse_transaction_control
from onceward.stores.statements import load

OLDEST = (3, 35, 0)
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_AWAY = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
}


class HandlerCursor(sqlite3.Cursor):
    """A cursor that begins the handler's transaction at its first statement."""

    connection: HandlerConnection

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        self.connection.before_statement(sql)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        self.connection.before_statement(sql)
        return super().executemany(sql, parameters)

    def executescript(self, _script: str, /) -> NoReturn:
        raise ContractViolation("executescript() commits the transaction; use execute() for each statement")


class HandlerConnection(sqlite3.Connection):
    """The `tx` of a handler: an ordinary sqlite3 connection that cannot end the transaction it is in."""

    armed: Begin | None = None
    in_handler: bool = False

    def before_statement(self, sql: str) -> None:
        """Begin lazily, and keep the handler inside its one transaction."""
        if not self.in_handler:
            raise ContractViolation("tx was used outside of its handler; its transaction is over")
        refuse_transaction_control(sql)
        self.start()
        if not self.in_transaction:
            raise ContractViolation("the transaction has ended before the handler did, perhaps because the disk is full")

    def start(self) -> None:
        """BEGIN IMMEDIATE, unless the transaction has begun already."""
        if self.armed is not None:
            self.armed = None
            sqlite3.Cursor(self).execute("BEGIN IMMEDIATE")

    def cursor(self, factory: Any = HandlerCursor) -> Any:
        return super().cursor(factory)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return HandlerCursor(self).execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        return HandlerCursor(self).executemany(sql, parameters)

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        return HandlerCursor(self).executescript(script)

    def commit(self) -> None:
        self._refuse("commit()")

    def rollback(self) -> None:
        self._refuse("rollback()")

    def __enter__(self) -> NoReturn:  # type: ignore[override] # it never returns a connection
        self._refuse("`with tx:`, which commits at its end")

    def _refuse(self, what: str) -> NoReturn:
        raise ContractViolation(
            f"the handler called {what}; the transaction belongs to onceward: returning commits, raising rolls back"
        )


class SqliteSession:
    """One connection and its transaction."""

    def __init__(self, store: SqliteStore, connection: sqlite3.Connection, *, joined: bool = False) -> None:
        self._store = store
        self._statements = load("sqlite", store.prefix)
        self._joined = joined
        self.connection = connection

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return not self.connection.in_transaction

    def perform(self, request: Any) -> Any:
        if isinstance(request, tuple):
            return tuple(self.perform(part) for part in request)
        if isinstance(request, Call):
            return self._call(request)
        if isinstance(request, Reconnect):
            return self._reconnect()
        try:
            return self._statement(request)
        except sqlite3.Error as error:
            raise translated(error) from error

    def _statement(self, request: Any) -> list[tuple[Any, ...]]:
        if isinstance(request, Query):
            return self._run(request.name, request.params)
        if isinstance(request, Each):
            rows = []
            for record in request.records:
                rows += self._run(request.name, {**request.shared, **record})
            return rows
        if not self._joined:
            self._boundary(request)
        return []

    def _boundary(self, request: Any) -> None:
        connection = self.connection
        assert isinstance(connection, HandlerConnection)  # noqa: S101 - only joined sessions have another kind
        if isinstance(request, Begin):
            connection.armed = request
        elif isinstance(request, Commit):
            if connection.armed is None and not connection.in_transaction:
                raise ContractViolation("the transaction was ended before onceward could commit it")
            if connection.armed is None:
                sqlite3.Cursor(connection).execute("COMMIT")
            connection.armed = None
        elif isinstance(request, Rollback):
            connection.armed = None
            if connection.in_transaction:
                sqlite3.Cursor(connection).execute("ROLLBACK")

    def _run(self, name: str, params: Any) -> list[tuple[Any, ...]]:
        connection = self.connection
        if isinstance(connection, HandlerConnection):
            connection.start()
            if not connection.in_transaction:
                raise ContractViolation("the transaction was ended before onceward could finish it")
        bound = {key: json.dumps(value) if isinstance(value, list) else value for key, value in params.items()}
        bound["now"] = self._store.clock()
        rows: list[tuple[Any, ...]] = []
        for statement in self._statements[name]:
            rows += sqlite3.Cursor(connection).execute(statement, bound).fetchall()
        return rows

    def _call(self, call: Call) -> Outcome:
        connection = self.connection
        assert isinstance(connection, HandlerConnection)  # noqa: S101 - handlers never run on joined sessions
        connection.in_handler = True
        try:
            return outcome(call, connection, is_infrastructure)
        finally:
            connection.in_handler = False

    def _reconnect(self) -> bool:
        self.close()
        try:
            self.connection = self._store.open_connection()
        except StoreError:
            return False
        return True

    def interrupt(self) -> None:
        self.connection.interrupt()

    def close(self) -> None:
        if not self._joined:
            self.connection.close()


class AsyncSqliteSession:
    """The same session, living in the thread of an aiosqlite connection."""

    def __init__(self, tx: Any, session: SqliteSession) -> None:
        self._tx = tx
        self._session = session

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return self._session.idle

    async def perform(self, request: Any) -> Any:
        if isinstance(request, Call):
            return await self._call(request)
        if isinstance(request, Reconnect):
            return await self._reconnect()
        # One hop into the connection's thread however many statements travel together.
        return await self._tx._execute(self._session.perform, request)  # noqa: SLF001 - no public way to run a function

    async def _call(self, call: Call) -> Outcome:
        connection = self._session.connection
        assert isinstance(connection, HandlerConnection)  # noqa: S101 - handlers never run on joined sessions
        connection.in_handler = True
        try:
            return await awaited_outcome(call, self._tx, is_infrastructure)
        finally:
            connection.in_handler = False

    async def _reconnect(self) -> bool:
        await self.close()
        try:
            fresh = await self._session._store.async_connect()  # noqa: SLF001 - its own store
        except StoreError:
            return False
        self._tx, self._session = fresh._tx, fresh._session
        return True

    def abandon(self) -> None:
        # Queued behind whatever the thread is doing; closing rolls back.
        self._tx.stop()

    async def close(self) -> None:
        await self._tx.close()


class SqliteStore:
    """An inbox in a SQLite file, or in memory for tests and demonstrations."""

    dialect = "sqlite"

    def __init__(self, url: str, prefix: str, lock_wait: timedelta) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise ConfigurationError(f"SQLite {sqlite3.sqlite_version} is too old; 3.35 or newer is needed")
        self.url, self.prefix = url, prefix
        self.path, self._uri = _location(url)
        self._timeout = lock_wait.total_seconds() * 5
        self._idle: list[SqliteSession] = []
        self._idle_async: dict[Any, list[AsyncSqliteSession]] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._checked = False
        self._bells: set[_FileBell] = set()
        # A database in memory lives as long as somebody has it open.
        self._anchor = self._plain() if self._uri else None

    def clock(self) -> int:
        """Microseconds since 1970. The database runs in this process, so its clock is this machine's."""
        return time.time_ns() // 1000

    def open_connection(self) -> HandlerConnection:
        """A new guarded connection with the settings that durability needs."""
        try:
            connection = sqlite3.connect(self._target(), factory=HandlerConnection, **self._options())
            return self._prepared(connection)
        except sqlite3.Error as error:
            raise translated(error) from error

    def _target(self) -> str:
        return self._uri or str(self.path)

    def _options(self) -> dict[str, Any]:
        return {
            "isolation_level": None,
            "check_same_thread": False,
            "timeout": self._timeout,
            "uri": bool(self._uri),
            "cached_statements": 256,
        }

    def _prepared(self, connection: HandlerConnection) -> HandlerConnection:
        cursor = sqlite3.Cursor(connection)
        if not self._uri:
            cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        return connection

    def connect(self) -> SqliteSession:
        self.check_schema()
        return SqliteSession(self, self.open_connection())

    async def async_connect(self) -> AsyncSqliteSession:
        self.check_schema()
        try:
            import aiosqlite  # noqa: PLC0415 - only async work needs it
        except ImportError as error:
            message = "async work on SQLite needs aiosqlite: pip install 'onceward[sqlite]'"
            raise ConfigurationError(message) from error
        try:
            tx = await aiosqlite.connect(self._target(), factory=HandlerConnection, **self._options())
            connection = await tx._execute(lambda: self._prepared(tx._conn))  # noqa: SLF001 - see AsyncSqliteSession
        except sqlite3.Error as error:
            raise translated(error) from error
        return AsyncSqliteSession(tx, SqliteSession(self, connection))

    @contextmanager
    def session(self) -> Iterator[SqliteSession]:
        with self._lock:
            if self._pid != os.getpid():  # after a fork: the parent's connections are not ours
                self._idle, self._idle_async, self._pid = [], {}, os.getpid()
            session = self._idle.pop() if self._idle else None
        session = session or self.connect()
        try:
            yield session
        finally:
            if session.idle:
                self._idle.append(session)
            else:
                session.close()

    @asynccontextmanager
    async def async_session(self) -> AsyncIterator[AsyncSqliteSession]:
        import asyncio  # noqa: PLC0415 - only async work needs it

        pool = self._idle_async.setdefault(asyncio.get_running_loop(), [])
        session = pool.pop() if pool else await self.async_connect()
        done = False
        try:
            yield session
            done = True
        finally:
            if done and session.idle:
                pool.append(session)
            else:
                session.abandon()

    def join(self, tx: Any) -> SqliteSession:
        if not isinstance(tx, sqlite3.Connection):
            raise ConfigurationError(f"tx= must be a sqlite3 connection to {self.url}, not {type(tx).__name__}")
        if not isinstance(tx, HandlerConnection) and not tx.in_transaction:
            if tx.isolation_level is None:
                raise ConfigurationError("tx= has no open transaction; run BEGIN IMMEDIATE on it first")
            tx.execute("BEGIN IMMEDIATE")
        return SqliteSession(self, tx, joined=True)

    def async_join(self, tx: Any) -> AsyncSqliteSession:
        connection = getattr(tx, "_conn", None)
        if not isinstance(connection, sqlite3.Connection):
            raise ConfigurationError(f"tx= must be an aiosqlite connection to {self.url}, not {type(tx).__name__}")
        if not isinstance(connection, HandlerConnection) and not connection.in_transaction:
            raise ConfigurationError("tx= has no open transaction; run BEGIN IMMEDIATE on it first")
        return AsyncSqliteSession(tx, SqliteSession(self, connection, joined=True))

    def _plain(self) -> sqlite3.Connection:
        return sqlite3.connect(self._target(), **self._options())

    @contextmanager
    def raw(self) -> Iterator[sqlite3.Connection]:
        connection = self._plain()
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()

    def ring(self) -> None:
        for bell in list(self._bells):
            bell.wake()

    def watch(self, wake: Callable[[], None]) -> _FileBell:
        bell = _FileBell(self._plain(), wake, self._bells)
        self._bells.add(bell)
        return bell

    def migrate(self) -> list[str]:
        connection = self._plain()
        try:
            if not self._uri:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            applied = migrate.apply(self.dialect, self.prefix, lambda sql: connection.execute(sql).fetchall())
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise translated(error) from error
        finally:
            connection.close()
        return applied

    def migration_sql(self) -> str:
        return migrate.as_text(self.dialect, self.prefix)

    def check_schema(self) -> None:
        if self._checked:
            return
        if not self._uri and not self.path.exists():
            raise migrate.missing(self.url, self.prefix)
        connection = self._plain()
        try:
            version = connection.execute(migrate.version_query(self.prefix)).fetchone()[0]
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                raise migrate.missing(self.url, self.prefix) from None
            raise translated(error) from error
        finally:
            connection.close()
        migrate.check(self.dialect, self.prefix, self.url, version)
        self._checked = True

    def findings(self) -> Sequence[tuple[str, str, str]]:
        found = [("ok", f"SQLite {sqlite3.sqlite_version}, journal WAL, synchronous FULL", "")]
        if sqlite3.sqlite_version_info < (3, 51, 3) and not self._uri:
            found.append(
                (
                    "warning",
                    f"SQLite {sqlite3.sqlite_version} has a rare WAL-reset bug when several processes share a file",
                    "use SQLite 3.51.3 or newer, or PostgreSQL, where many processes work on one database",
                )
            )
        if self._uri:
            found.append(("warning", "the database is in memory and is gone with this process", "use sqlite:///path"))
        return found

    def close(self) -> None:
        with self._lock:
            sessions, self._idle = self._idle, []
        for session in sessions:
            session.close()

    async def async_close(self) -> None:
        """Close the pooled connections of the running event loop."""
        import asyncio  # noqa: PLC0415 - only async work needs it

        for session in self._idle_async.pop(asyncio.get_running_loop(), []):
            await session.close()


class _FileBell(threading.Thread):
    """Looks every few milliseconds whether another connection has written: a counter in memory, not a query."""

    INTERVAL = 0.01

    def __init__(self, connection: sqlite3.Connection, wake: Callable[[], None], bells: set[_FileBell]) -> None:
        super().__init__(name="onceward-bell", daemon=True)
        self._connection, self.wake, self._bells = connection, wake, bells
        self._stopping = threading.Event()
        self.start()

    def run(self) -> None:
        seen = None
        while not self._stopping.wait(self.INTERVAL):
            try:
                version = self._connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error:  # the poll of the worker itself is the fallback
                continue
            if version != seen:
                seen = version
                self.wake()
        self._connection.close()

    def close(self) -> None:
        self._bells.discard(self)
        self._stopping.set()
        self.join()


def _location(url: str) -> tuple[Path, str]:
    """The file of a URL, or the URI of a database in memory."""
    rest = url.removeprefix("sqlite:")
    if rest in ("//", "///:memory:"):
        return Path(":memory:"), f"file:/onceward-{uuid.uuid4().hex}?vfs=memdb"
    if not rest.startswith("///") or rest == "///":
        raise ConfigurationError(f"{url!r} is not a SQLite URL; use sqlite:///path, sqlite:////absolute/path or sqlite://")
    return Path(rest.removeprefix("///")), ""


def is_infrastructure(error: BaseException) -> bool:
    """Whether the database was at fault rather than the message."""
    if isinstance(error, StoreUnavailable):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.Error) and code is not None and (code & 0xFF) in _BUSY | _AWAY


def translated(error: sqlite3.Error) -> StoreError:
    """A driver error as one of ours."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _BUSY:
        return StoreUnavailable(f"the SQLite database is busy: {error}; another writer holds it for too long")
    if code in _AWAY:
        return StoreUnavailable(f"the SQLite database cannot be used: {error}")
    if isinstance(error, sqlite3.IntegrityError) and "run.messages" in str(error):
        return GuardFailed("a row is not in the state its writer believed")
    return StoreError(f"SQLite refused a statement: {error}")

