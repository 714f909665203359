"""PostgreSQL through psycopg 3, sync and async.

Invariants: every transaction begins with READ COMMITTED, whatever the role's default; all settings are local to the transaction, so
transaction pooling works; COMMIT counts only when the server answers COMMIT (to an aborted transaction it answers ROLLBACK).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from onceward.errors import ConfigurationError, StoreUnavailable
from onceward.flow import Begin, Call, Commit, Each, Outcome, Query, Reconnect, Rollback
from onceward.stores import migrate
from onceward.stores.calls import awaited_outcome, outcome
from onceward.stores.postgres_bell import PostgresBell, Ringer
from onceward.stores.postgres_guard import (
    AsyncHandlerConnection,
    Guard,
    HandlerConnection,
    Statement,
    is_infrastructure,
    translated,
    unreachable,
)
from onceward.stores.statements import load

_COMMIT = "COMMIT"
_POOL_WAIT = 5.0
_POOL_SIZE = 16
# Find a peer that has vanished without a word; values a user puts into the URL win.
_DEAD_PEER = {
    "connect_timeout": "10",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "onceward",
}


class _PostgresSession:
    """What both worlds share: requests become statements, answers are checked."""

    def __init__(self, store: PostgresStore, connection: Any, *, joined: bool = False) -> None:
        self._store = store
        self._statements = {name: parts[0] for name, parts in load("postgres", store.prefix).items()}
        self._joined = joined
        self.connection = connection

    @property
    def idle(self) -> bool:
        """Whether the connection is proven usable and no transaction is open."""
        return bool(self.connection.info.transaction_status == TransactionStatus.IDLE)

    def _plan(self, requests: tuple[Any, ...]) -> tuple[list[Statement], list[int | None]]:
        """The statements to send, and for each request which of them answers it."""
        plan: list[Statement] = []
        answered_by: list[int | None] = []
        for request in requests:
            statement = self._statement(request)
            if statement and isinstance(self.connection, Guard):
                plan += self.connection.take_armed()  # BEGIN travels with the first statement
            answered_by.append(len(plan) if statement else None)
            if statement:
                plan.append(statement)
        return plan, answered_by

    def _statement(self, request: Any) -> Statement | None:
        if isinstance(request, Query):
            return self._statements[request.name], request.params
        if isinstance(request, Each):
            columns = {name: [record[name] for record in request.records] for name in request.records[0]}
            return self._statements[request.name], {**request.shared, **columns}
        if self._joined:
            return None
        if isinstance(request, Begin):
            self.connection.armed = self._opening(request)
            return None
        if isinstance(request, Rollback):
            self.connection.armed = None
            return None if self.idle else ("ROLLBACK", None)
        if self.connection.armed:  # a commit of nothing
            self.connection.armed = None
            return None
        return _COMMIT, None

    def _opening(self, begin: Begin) -> list[Statement]:
        limits = {
            "statement_limit": f"{begin.statement_limit * 1000:.0f}",
            "lock_limit": f"{begin.lock_limit * 1000:.0f}",
            "idle_limit": f"{begin.idle_limit * 1000:.0f}",
            "mark": begin.mark,
        }
        return [("BEGIN ISOLATION LEVEL READ COMMITTED", None), (self._statements["begin_limits"], limits)]

    def _is_infrastructure(self, error: BaseException) -> bool:
        return is_infrastructure(error, self.connection)


def _check_commit(statement: Statement, status: str | None) -> None:
    if statement == (_COMMIT, None) and status != _COMMIT:
        raise pg.InFailedSqlTransaction(f"COMMIT was answered with {status}")


class PostgresSession(_PostgresSession):
    """One connection and its transaction."""

    def perform(self, request: Any) -> Any:
        if isinstance(request, Call):
            return self._call(request)
        if isinstance(request, Reconnect):
            return self._reconnect()
        plan, answered_by = self._plan(request if isinstance(request, tuple) else (request,))
        try:
            rows = self._send(plan)
        except psycopg.Error as error:
            raise translated(error, self.connection) from error
        answers = tuple([] if index is None else rows[index] for index in answered_by)
        return answers if isinstance(request, tuple) else answers[0]

    def _send(self, plan: list[Statement]) -> list[list[Any]]:
        if len(plan) > 1:
            with psycopg.Connection.pipeline(self.connection):
                cursors = [self._run(statement) for statement in plan]
        else:
            cursors = [self._run(statement) for statement in plan]
        answers = []
        for statement, cursor in zip(plan, cursors, strict=True):
            answers.append(cursor.fetchall() if cursor.description else [])
            _check_commit(statement, cursor.statusmessage)
        return answers

    def _run(self, statement: Statement) -> Any:
        return psycopg.Cursor(self.connection).execute(*statement, binary=True)

    def _call(self, call: Call) -> Outcome:
        self.connection.in_handler = True
        try:
            return outcome(call, self.connection, self._is_infrastructure)
        finally:
            self.connection.in_handler = False

    def _reconnect(self) -> bool:
        self.close()
        try:
            self.connection = self._store.open_connection()
        except StoreUnavailable:
            return False
        return True

    def interrupt(self) -> None:
        # Cancel what the server is doing, then end the connection: the transaction rolls back either way.
        connection = self.connection
        try:
            connection.cancel_safe(timeout=5)
        except psycopg.Error:  # gone already, which is what is wanted
            pass
        finally:
            connection.force_close()

    def close(self) -> None:
        if not self._joined:
            self.connection.force_close()


class AsyncPostgresSession(_PostgresSession):
    """One async connection and its transaction."""

    async def perform(self, request: Any) -> Any:
        if isinstance(request, Call):
            return await self._call(request)
        if isinstance(request, Reconnect):
            return await self._reconnect()
        plan, answered_by = self._plan(request if isinstance(request, tuple) else (request,))
        try:
            rows = await self._send(plan)
        except psycopg.Error as error:
            raise translated(error, self.connection) from error
        answers = tuple([] if index is None else rows[index] for index in answered_by)
        return answers if isinstance(request, tuple) else answers[0]

    async def _send(self, plan: list[Statement]) -> list[list[Any]]:
        if len(plan) > 1:
            async with psycopg.AsyncConnection.pipeline(self.connection):
                cursors = [await self._run(statement) for statement in plan]
        else:
            cursors = [await self._run(statement) for statement in plan]
        answers = []
        for statement, cursor in zip(plan, cursors, strict=True):
            answers.append(await cursor.fetchall() if cursor.description else [])
            _check_commit(statement, cursor.statusmessage)
        return answers

    async def _run(self, statement: Statement) -> Any:
        return await psycopg.AsyncCursor(self.connection).execute(*statement, binary=True)

    async def _call(self, call: Call) -> Outcome:
        self.connection.in_handler = True
        try:
            return await awaited_outcome(call, self.connection, self._is_infrastructure)
        finally:
            self.connection.in_handler = False

    async def _reconnect(self) -> bool:
        await self.close()
        try:
            self.connection = await self._store.open_async_connection()
        except StoreUnavailable:
            return False
        return True

    def abandon(self) -> None:
        if not self._joined:
            self.connection.force_close()

    async def close(self) -> None:
        self.abandon()


class PostgresStore:
    """An inbox in a PostgreSQL database."""

    dialect = "postgres"

    def __init__(self, url: str, prefix: str) -> None:
        self.url, self.prefix = url, prefix
        try:
            self._conninfo = make_conninfo(url, **{**_DEAD_PEER, **psycopg.conninfo.conninfo_to_dict(url)})
        except psycopg.ProgrammingError as error:
            raise ConfigurationError(f"{migrate.masked(url)!r} is not a PostgreSQL URL: {error}") from error
        # Prepared statements are session state, which transaction pooling does not keep.
        self._options: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}
        self._lock = threading.Lock()
        self._checked = False
        self._forget()

    def _forget(self) -> None:
        """Start without connections: at first, and in a forked child, where the parent's are not ours."""
        self._pid = os.getpid()
        self._pool: ConnectionPool[HandlerConnection] | None = None
        self._pools: dict[asyncio.AbstractEventLoop, AsyncConnectionPool[AsyncHandlerConnection]] = {}
        self._ringer: Ringer | None = None
        self._wakes: set[Callable[[], None]] = set()

    def open_connection(self) -> HandlerConnection:
        """A new guarded connection."""
        try:
            return HandlerConnection.connect(self._conninfo, **self._options)
        except psycopg.Error as error:
            unreachable(error, migrate.masked(self.url))

    async def open_async_connection(self) -> AsyncHandlerConnection:
        """A new guarded async connection."""
        try:
            return await AsyncHandlerConnection.connect(self._conninfo, **self._options)
        except psycopg.Error as error:
            unreachable(error, migrate.masked(self.url))

    def _plain(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self._conninfo, **self._options)

    def connect(self) -> PostgresSession:
        self.check_schema()
        return PostgresSession(self, self.open_connection())

    async def async_connect(self) -> AsyncPostgresSession:
        self.check_schema()
        return AsyncPostgresSession(self, await self.open_async_connection())

    @contextmanager
    def session(self) -> Iterator[PostgresSession]:
        self.check_schema()
        pool = self._sync_pool()
        try:
            connection = pool.getconn(timeout=_POOL_WAIT)
        except PoolTimeout as error:
            unreachable(error, migrate.masked(self.url))
        session = PostgresSession(self, connection)
        try:
            yield session
        except StoreUnavailable:
            pool.check()  # after a restart of the server every idle connection is stale, not only this one
            raise
        finally:
            session.connection.armed = None
            if not session.idle:
                session.close()
            pool.putconn(session.connection)

    def _sync_pool(self) -> ConnectionPool[HandlerConnection]:
        with self._lock:
            if self._pid != os.getpid():
                self._forget()
            if self._pool is None:
                self._pool = ConnectionPool(
                    self._conninfo,
                    connection_class=HandlerConnection,
                    kwargs=self._options,
                    min_size=0,
                    max_size=_POOL_SIZE,
                    open=True,
                    name="onceward",
                )
            return self._pool

    @asynccontextmanager
    async def async_session(self) -> AsyncIterator[AsyncPostgresSession]:
        self.check_schema()
        pool = await self._async_pool()
        try:
            connection = await pool.getconn(timeout=_POOL_WAIT)
        except PoolTimeout as error:
            unreachable(error, migrate.masked(self.url))
        session = AsyncPostgresSession(self, connection)
        try:
            yield session
        except StoreUnavailable:
            await pool.check()
            raise
        finally:
            session.connection.armed = None
            if not session.idle:
                session.abandon()
            await asyncio.shield(pool.putconn(session.connection))

    async def _async_pool(self) -> AsyncConnectionPool[AsyncHandlerConnection]:
        loop = asyncio.get_running_loop()
        if self._pid != os.getpid():
            self._forget()
        if loop not in self._pools:
            self._pools = {known: pool for known, pool in self._pools.items() if not known.is_closed()}
            pool = AsyncConnectionPool(
                self._conninfo,
                connection_class=AsyncHandlerConnection,
                kwargs=self._options,
                min_size=0,
                max_size=_POOL_SIZE,
                open=False,
                name="onceward",
            )
            self._pools[loop] = pool
            await pool.open()
        return self._pools[loop]

    def join(self, tx: Any) -> PostgresSession:
        if not isinstance(tx, psycopg.Connection):
            raise ConfigurationError(f"tx= must be a psycopg.Connection, not {type(tx).__name__}")
        self._check_open(tx)
        return PostgresSession(self, tx, joined=True)

    def async_join(self, tx: Any) -> AsyncPostgresSession:
        if not isinstance(tx, psycopg.AsyncConnection):
            raise ConfigurationError(f"tx= must be a psycopg.AsyncConnection, not {type(tx).__name__}")
        self._check_open(tx)
        return AsyncPostgresSession(self, tx, joined=True)

    @staticmethod
    def _check_open(tx: Any) -> None:
        inside_handler = isinstance(tx, Guard) and tx.in_handler
        if tx.autocommit and tx.info.transaction_status == TransactionStatus.IDLE and not inside_handler:
            raise ConfigurationError(
                "tx= has no open transaction (it is in autocommit mode), so nothing would be joined; "
                "use `with connection.transaction():`"
            )

    @contextmanager
    def raw(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with psycopg.connect(self._conninfo, prepare_threshold=None) as connection:
            yield connection

    def ring(self) -> None:
        for wake in list(self._wakes):
            wake()
        with self._lock:
            if self._pid != os.getpid():
                self._forget()
            if self._ringer is None:
                self._ringer = Ringer(self._plain, f"{self.prefix}bell")
        self._ringer.ring()

    def watch(self, wake: Callable[[], None]) -> PostgresBell:
        self._wakes.add(wake)
        return PostgresBell(self._plain, f"{self.prefix}bell", wake, lambda: self._wakes.discard(wake))

    def migrate(self) -> list[str]:
        try:
            with psycopg.connect(self._conninfo, prepare_threshold=None) as connection:
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"{self.prefix}migration"])
                return migrate.apply(self.dialect, self.prefix, lambda sql: _rows(connection.execute(sql.encode())))
        except psycopg.OperationalError as error:
            unreachable(error, migrate.masked(self.url))

    def migration_sql(self) -> str:
        return migrate.as_text(self.dialect, self.prefix)

    def check_schema(self) -> None:
        if self._checked:
            return
        try:
            with self._plain() as connection:
                version = connection.execute(migrate.version_query(self.prefix).encode()).fetchall()[0][0]
        except pg.UndefinedTable:
            raise migrate.missing(self.url, self.prefix) from None
        except psycopg.OperationalError as error:
            unreachable(error, migrate.masked(self.url))
        migrate.check(self.dialect, self.prefix, self.url, version)
        self._checked = True

    def findings(self) -> Sequence[tuple[str, str, str]]:
        with self._plain() as connection:
            row = connection.execute(load("postgres", self.prefix)["settings"][0].encode()).fetchall()[0]
        version, fsync, synchronous, full_pages, isolation, recovery, _ = row
        found = [("ok", f"PostgreSQL {version}, fsync {fsync}, synchronous_commit {synchronous}", "")]
        if fsync != "on" or full_pages != "on":
            found.append(
                ("error", "fsync or full_page_writes is off: a crash of the server can lose everything", "turn both on")
            )
        if synchronous == "off":
            found.append(
                ("error", "synchronous_commit is off: a crash can lose messages that were acknowledged", "turn it on")
            )
        if recovery == "true":
            found.append(("error", "this server is a read-only replica", "connect to the primary"))
        if isolation != "read committed":
            found.append(("ok", f"default isolation is {isolation}; onceward sets READ COMMITTED itself", ""))
        return found

    def close(self) -> None:
        pool, self._pool = self._pool, None
        ringer, self._ringer = self._ringer, None
        if pool:
            pool.close()
        if ringer:
            ringer.close()

    async def async_close(self) -> None:
        """Close the pool of the running event loop."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool:
            await pool.close()


def _rows(cursor: psycopg.Cursor[tuple[Any, ...]]) -> list[Any]:
    return cursor.fetchall() if cursor.description else []
