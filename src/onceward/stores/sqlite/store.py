"""The SQLite store, the embedded one: WAL, synchronous FULL, one writer at a time, no third-party package."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from onceward.deferred import asyncio
from onceward.domain import identity
from onceward.errors import ConfigurationError, ContractViolation, SchemaMissing, StoreError, StoreUnavailable
from onceward.stores import migrate
from onceward.stores.calls import lent, running
from onceward.stores.protocol import EVERYTHING, Capability, TimeLimits
from onceward.stores.relational import RelationalMoves
from onceward.stores.sqlite.guard import Guard, HandlerConnection
from onceward.stores.sqlite.lent import callers, lent_over
from onceward.stores.sqlite.notifier import FileListener
from onceward.stores.sqlite.session import AsyncSqliteSession, SqliteSession, translated
from onceward.stores.statements import load

log = logging.getLogger("onceward")

OLDEST = (3, 35, 0)


class SqliteStore:
    """An inbox in a SQLite file, or in memory for tests and demonstrations."""

    dialect = "sqlite"
    connections = ("sqlite3.Connection", "aiosqlite.core.Connection")
    single_writer = True
    capabilities: frozenset[Capability]

    def __init__(self, url: str, prefix: str, lock_wait: timedelta) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise ConfigurationError(f"SQLite {sqlite3.sqlite_version} is too old; 3.35 or newer is needed")
        self.url, self.prefix = url, prefix
        self.path, self._uri = _location(url)
        self.capabilities = EVERYTHING - {"durability"} if self._uri else EVERYTHING
        self._timeout = lock_wait.total_seconds() * 5
        self._statements = load(self.dialect, prefix)
        self._idle: list[SqliteSession] = []
        self._idle_async: dict[Any, list[AsyncSqliteSession]] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._newer: list[str] | None = None
        self._listeners: set[FileListener] = set()
        if self._uri:  # a database in memory lives as long as a connection to it does: as long as this store
            weakref.finalize(self, self._plain().close)

    clock: Callable[[], int] | None = None
    """Microseconds since 1970, where a test has a clock of its own."""

    def moves(self, limits: TimeLimits) -> RelationalMoves:
        """What steps may ask of it."""
        return RelationalMoves(limits)

    def open_connection(self) -> HandlerConnection:
        """A new guarded connection with the settings that durability needs."""
        try:
            connection = sqlite3.connect(self._target(), factory=HandlerConnection, **self._options())
            connection.target = self._target()
            return self._prepared(connection)
        except sqlite3.Error as error:
            raise self._unopened(error) from error

    def _unopened(self, error: sqlite3.Error) -> StoreError:
        """The error for a file that cannot be opened: SQLite does not say which."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CANTOPEN:
            return translated(error)
        path = self.path.absolute()
        if not path.parent.is_dir():
            return StoreUnavailable(f"{path} cannot be opened: its folder does not exist. Run: mkdir -p {path.parent}")
        return StoreUnavailable(
            f"{path} cannot be opened ({error}): the file and its folder must be readable and writable for this process"
        )

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
        return SqliteSession(self._statements, self.clock, self.open_connection(), reopen=self.open_connection)

    def check_async(self) -> None:
        try:
            import aiosqlite  # noqa: F401, PLC0415 - only async work needs it
        except ImportError as error:
            message = "async handlers on SQLite need aiosqlite: pip install 'onceward[sqlite]'"
            raise ConfigurationError(message) from error

    async def async_connect(self) -> AsyncSqliteSession:
        self.check_schema()
        self.check_async()
        from onceward.stores.sqlite.aio import AsyncHandlerConnection  # noqa: PLC0415 - only async work needs it

        tx = AsyncHandlerConnection(self.open_connection)
        await tx
        session = SqliteSession(self._statements, self.clock, tx.guarded, reopen=self.open_connection)
        return AsyncSqliteSession(tx, session, reopen=self.async_connect)

    def check_caller(self) -> None:
        for tx in lent():
            if isinstance(tx, Guard) and tx.target == self._target() and tx.in_transaction:
                raise ContractViolation(
                    "the handler has used tx, and then called the inbox without it. SQLite has one writer, so the call "
                    "would wait for the handler itself. Pass tx=tx, use message.send, or call it before the first use "
                    "of tx"
                )

    @contextmanager
    def session(self) -> Iterator[SqliteSession]:
        if running.get():
            self.check_caller()
        with self._lock:
            if self._pid != os.getpid():  # after a fork: the parent's connections are not ours
                self._idle, self._idle_async, self._pid = [], {}, os.getpid()
            session = self._idle.pop() if self._idle else None
        session = session or self.connect()
        try:
            yield session
        finally:
            if session.idle and not session.is_spent:
                self._idle.append(session)
            else:
                session.close()

    @asynccontextmanager
    async def async_session(self) -> AsyncIterator[AsyncSqliteSession]:
        self.check_caller()
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
        tx = callers(tx)
        if not isinstance(tx, sqlite3.Connection):
            raise ConfigurationError(
                f"tx= must be a sqlite3 connection to {self.url}, or SQLAlchemy's Session or Connection, not "
                f"{type(tx).__name__}"
            )
        if isinstance(tx, HandlerConnection):
            tx.check_owner()
        elif not tx.in_transaction:
            if tx.isolation_level is None:
                raise ConfigurationError("tx= has no open transaction; run BEGIN IMMEDIATE on it first")
            try:
                tx.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                raise translated(error) from error
        return SqliteSession(self._statements, self.clock, tx)

    def async_join(self, tx: Any) -> AsyncSqliteSession:
        connection = callers(getattr(tx, "_conn", None))
        if not isinstance(connection, sqlite3.Connection):
            raise ConfigurationError(
                f"tx= must be an aiosqlite connection to {self.url}, or SQLAlchemy's AsyncSession or AsyncConnection, "
                f"not {type(tx).__name__}"
            )
        if isinstance(connection, HandlerConnection):
            connection.check_owner()
        elif not connection.in_transaction:
            raise ConfigurationError("tx= has no open transaction; run BEGIN IMMEDIATE on it first")
        return AsyncSqliteSession(tx, SqliteSession(self._statements, self.clock, connection))

    def lend(self, tx: Any) -> SqliteSession:
        session = self.join(tx)
        lent = lent_over(tx, self._target())
        return SqliteSession(self._statements, self.clock, session.connection, lent=lent)

    async def async_lend(self, tx: Any) -> AsyncSqliteSession:
        self.async_join(tx)
        from onceward.stores.sqlite.aio import AsyncLentConnection  # noqa: PLC0415 - only async work needs it

        lent = lent_over(tx._conn, self._target())  # noqa: SLF001 - as in `async_join`
        session = SqliteSession(self._statements, self.clock, tx._conn, lent=lent)  # noqa: SLF001 - as above
        return AsyncSqliteSession(AsyncLentConnection(tx, lent), session)

    def _plain(self) -> sqlite3.Connection:
        try:
            connection: sqlite3.Connection = sqlite3.connect(self._target(), **self._options())
        except sqlite3.Error as error:
            raise self._unopened(error) from error
        return connection

    @contextmanager
    def raw(self) -> Iterator[sqlite3.Connection]:
        connection = self._plain()
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()

    def notify(self) -> None:
        for listener in list(self._listeners):
            listener.wake()

    def watch(self, wake: Callable[[], None]) -> FileListener:
        listener = FileListener(self._plain(), wake, self._listeners)
        self._listeners.add(listener)
        return listener

    def migrate(self) -> list[str]:
        connection = self._plain()
        try:
            if not self._uri:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            applied = migrate.apply(self.dialect, self.prefix, self.url, lambda sql: connection.execute(sql).fetchall())
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise translated(error) from error
        finally:
            connection.close()
        return applied

    def make_missing(self) -> None:
        try:
            self.check_schema()
        except SchemaMissing:
            self.migrate()
            # Seen also without any logging set up: a mistyped path makes a file, and this is where it is.
            where = "memory" if self._uri else self.path.absolute()
            log.log(logging.INFO if self._uri else logging.WARNING, "created the onceward tables in %s", where)

    def migration_sql(self) -> str:
        return migrate.as_text(self.dialect, self.prefix)

    def check_schema(self) -> list[str]:
        if self._newer is not None:
            return self._newer
        if not self._uri and not self.path.exists():
            raise migrate.missing(self.url, self.prefix)
        connection = self._plain()
        try:
            applied = connection.execute(migrate.applied_query(self.prefix)).fetchall()
        except sqlite3.Error as error:
            if "no such table" in str(error):
                raise migrate.missing(self.url, self.prefix) from None
            raise translated(error) from error
        finally:
            connection.close()
        self._newer = migrate.check(self.dialect, self.prefix, self.url, applied)
        return self._newer

    def findings(self, _destinations: int = 0, /) -> Sequence[tuple[str, str, str]]:
        found = [("ok", f"SQLite {sqlite3.sqlite_version}, journal WAL, synchronous FULL", "")]
        if sqlite3.sqlite_version_info < (3, 51, 3) and not self._uri:
            found.append(
                (
                    "warning",
                    f"SQLite {sqlite3.sqlite_version} has a rare WAL-reset bug when several processes share a file",
                    "use SQLite 3.51.3 or newer, or PostgreSQL, where many processes work on one database",
                )
            )
        return found

    def close(self) -> None:
        with self._lock:
            sessions, self._idle = self._idle, []
        for session in sessions:
            session.close()

    async def async_close(self) -> None:
        """Close the pooled connections of the running event loop."""
        for session in self._idle_async.pop(asyncio.get_running_loop(), []):
            await session.close()


def _location(url: str) -> tuple[Path, str]:
    """The file of a URL, or the URI of a database in memory."""
    rest = url.removeprefix("sqlite:")
    if rest in ("//", "///:memory:"):
        return Path(":memory:"), f"file:/onceward-{identity.new_id()}?vfs=memdb"
    if not rest.startswith("///") or rest == "///":
        raise ConfigurationError(
            f"{url!r} is not a SQLite URL; use sqlite:///path, sqlite:////absolute/path or sqlite://"
        )
    return Path(rest.removeprefix("///")), ""
