"""The PostgreSQL store: connections, pools, migrations and what the doctor should know, through psycopg 3."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg_pool import PoolClosed, PoolTimeout

from onceward.errors import ConfigurationError
from onceward.flow import Query
from onceward.stores import migrate
from onceward.stores.leftovers import Left
from onceward.stores.postgres import migrating
from onceward.stores.postgres.failures import refused, unreachable
from onceward.stores.postgres.guard import AsyncHandlerConnection, Guard, HandlerConnection
from onceward.stores.postgres.lent import AsyncLentSession, LentSession, begins, over
from onceward.stores.postgres.notifier import Notifier, PostgresListener
from onceward.stores.postgres.pools import POOL_WAIT, AsyncPool, Pools, inner_size, settle_in, settle_in_async
from onceward.stores.postgres.session import AsyncPostgresSession, PostgresSession
from onceward.stores.postgres.statement import Statement
from onceward.stores.protocol import EVERYTHING, TimeLimits
from onceward.stores.relational import RelationalMoves
from onceward.stores.statements import load

_BESIDE_POOL = 4
"""Of a process with one lane: the lane's, the lease's, and two to notify and to listen."""
# Find a peer that has vanished without a word; values a user puts into the URL win.
_DEAD_PEER = {
    "connect_timeout": "10",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "onceward",
    "client_encoding": "UTF8",
}


_BEGINNING = Query("begin_inside"), Query("commit_inside")
"""Begins a transaction, and leaves nothing in it."""
_SCHEMA = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = %s::regclass"


class PostgresStore:
    """An inbox in a PostgreSQL database."""

    dialect = "postgres"
    connections = ("psycopg.Connection", "psycopg.AsyncConnection")
    single_writer = False
    capabilities = EVERYTHING

    def __init__(self, url: str, prefix: str, pool: int = 16, *, pipelining: bool = True) -> None:
        self.url, self.prefix, self._pool_size, self._pipelined = url, prefix, pool, pipelining
        try:
            self._conninfo = make_conninfo(url, **{**_DEAD_PEER, **conninfo_to_dict(url)})
        except psycopg.ProgrammingError as error:
            reason = str(error).replace(url, migrate.masked(url)).strip()
            raise ConfigurationError(f"{migrate.masked(url)!r} is not a PostgreSQL URL: {reason}") from None
        # Prepared statements are session state, which transaction pooling does not keep: off until proven direct.
        self._options: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}
        self._statements: dict[str, Statement] = {}
        """Known once it is known in which schema the tables are."""
        self._lock = threading.Lock()
        self._newer: list[str] | None = None
        self._forget()

    def _forget(self) -> None:
        """Start without connections: at first, and in a forked child, where the parent's are not ours."""
        self._pid = os.getpid()
        self._pools = Pools(self._conninfo, self._options, self._pool_size, pipelined=self._pipelined)
        self._notifier: Notifier | None = None
        self._wakes: set[Callable[[], None]] = set()

    def moves(self, limits: TimeLimits) -> RelationalMoves:
        """What steps may ask of it."""
        return RelationalMoves(limits)

    def open_connection(self) -> HandlerConnection:
        """A new guarded connection."""
        connection = None
        try:
            connection = HandlerConnection.connect(self._conninfo, **self._options)
            settle_in(connection, pipelined=self._pipelined)
        except BaseException as error:
            if connection is not None:
                connection.force_close()
            if isinstance(error, psycopg.Error):
                unreachable(error, migrate.masked(self.url))
            raise
        return connection

    async def open_async_connection(self) -> AsyncHandlerConnection:
        """A new guarded async connection."""
        connection = None
        try:
            connection = await AsyncHandlerConnection.connect(self._conninfo, **self._options)
            await settle_in_async(connection, pipelined=self._pipelined)
        except BaseException as error:  # also a cancellation: nobody else knows the connection yet
            if connection is not None:
                connection.force_close()
            traceback.clear_frames(error.__traceback__)  # psycopg's hold a connection that was only half made
            if isinstance(error, psycopg.Error):
                unreachable(error, migrate.masked(self.url))
            raise
        return connection

    def _plain(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=None)

    def connect(self) -> PostgresSession:
        self.check_schema()
        return PostgresSession(self._statements, self.open_connection(), reopen=self.open_connection)

    def check_async(self) -> None:
        """Psycopg is async, too."""

    async def async_connect(self) -> AsyncPostgresSession:
        self.check_schema()
        return AsyncPostgresSession(
            self._statements, await self.open_async_connection(), reopen=self.open_async_connection
        )

    def statements(self) -> Mapping[str, Statement]:
        """Its own statements, for sessions on other drivers."""
        self.check_schema()
        return self._statements

    def check_caller(self) -> None:
        """Nothing waits for a transaction as such: there are many writers."""

    @contextmanager
    def session(self) -> Iterator[PostgresSession]:
        self.check_schema()
        pool = self._own_pools().of_threads()
        try:
            connection = pool.getconn(timeout=POOL_WAIT)
        except (PoolTimeout, PoolClosed) as error:
            unreachable(error, migrate.masked(self.url))
        session = PostgresSession(self._statements, connection, reopen=self.open_connection)
        try:
            yield session
        finally:
            connection.pending_begin = None
            if session.connection is not connection or not session.idle or connection.left == Left.CONNECTION:
                session.close()  # the pool wants back the one it gave, which a reconnect has closed
            pool.putconn(connection)
            if connection.closed:
                pool.check()  # after a restart of the server every idle connection is stale, not only this one

    def _own_pools(self) -> Pools:
        with self._lock:
            if self._pid != os.getpid():
                self._forget()
            return self._pools

    @asynccontextmanager
    async def async_session(self) -> AsyncIterator[AsyncPostgresSession]:
        self.check_schema()
        pool = await self._own_pools().of_tasks()
        try:
            connection = await pool.getconn(timeout=POOL_WAIT)
        except (PoolTimeout, PoolClosed) as error:
            unreachable(error, migrate.masked(self.url))
        session = AsyncPostgresSession(self._statements, connection, reopen=self.open_async_connection)
        try:
            yield session
        finally:
            connection.pending_begin = None
            if session.connection is not connection or not session.idle or connection.left == Left.CONNECTION:
                session.abandon()
            await asyncio.shield(self._give_back(pool, connection))

    @staticmethod
    async def _give_back(pool: AsyncPool, connection: AsyncHandlerConnection) -> None:
        await pool.putconn(connection)
        if connection.closed:
            await pool.check()

    def join(self, tx: Any) -> PostgresSession:
        if not isinstance(tx, psycopg.Connection):
            raise ConfigurationError(
                f"tx= must be a psycopg.Connection, or SQLAlchemy's Session or Connection, not {type(tx).__name__}"
            )
        self._check_open(tx)
        self.check_schema()
        return PostgresSession(self._statements, tx)

    def async_join(self, tx: Any) -> AsyncPostgresSession:
        if not isinstance(tx, psycopg.AsyncConnection):
            raise ConfigurationError(
                "tx= must be a psycopg.AsyncConnection, or SQLAlchemy's AsyncSession or AsyncConnection, not "
                f"{type(tx).__name__}"
            )
        self._check_open(tx)
        self.check_schema()
        return AsyncPostgresSession(self._statements, tx)

    def lend(self, tx: Any) -> LentSession:
        joined = self.join(tx)
        if begins(tx):
            joined.perform(_BEGINNING)
        return LentSession(self._statements, over(tx, HandlerConnection, pipelined=self._pipelined))

    async def async_lend(self, tx: Any) -> AsyncLentSession:
        joined = self.async_join(tx)
        if begins(tx):
            await joined.perform(_BEGINNING)
        return AsyncLentSession(self._statements, over(tx, AsyncHandlerConnection, pipelined=self._pipelined))

    @staticmethod
    def _check_open(tx: Any) -> None:
        inside_handler = isinstance(tx, Guard)
        if inside_handler:
            tx.check_owner()
        if tx.pgconn.pipeline_status != PipelineStatus.OFF:
            raise ConfigurationError(
                "tx= is in pipeline mode, in which the answers of onceward's statements come too late; leave the "
                "`with connection.pipeline():` block first"
            )
        if tx.info.transaction_status == TransactionStatus.INERROR and not inside_handler:
            raise ConfigurationError(
                "tx= is in a transaction that an earlier error has aborted, so nothing was stored; roll it back, and "
                "put statements that may fail into a savepoint: `with connection.transaction():`"
            )
        if tx.autocommit and tx.info.transaction_status == TransactionStatus.IDLE and not inside_handler:
            raise ConfigurationError(
                "tx= has no open transaction (it is in autocommit mode), so nothing would be joined; "
                "use `with connection.transaction():`"
            )

    @contextmanager
    def raw(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with psycopg.connect(self._conninfo, prepare_threshold=None) as connection:
            yield connection

    def notify(self) -> None:
        for wake in list(self._wakes):
            wake()
        with self._lock:
            if self._pid != os.getpid():
                self._forget()
            if self._notifier is None:
                self._notifier = Notifier(self._plain, f"{self.prefix}notify")
        self._notifier.notify()

    def watch(self, wake: Callable[[], None]) -> PostgresListener:
        self._wakes.add(wake)
        return PostgresListener(self._plain, f"{self.prefix}notify", wake, lambda: self._wakes.discard(wake))

    def migrate(self) -> list[str]:
        try:
            return migrating.apply(self._conninfo, self.prefix, self.url)
        except psycopg.OperationalError as error:
            unreachable(error, migrate.masked(self.url))
        except psycopg.Error as error:
            raise refused(error) from error

    def make_missing(self) -> None:
        """A server is shared: its tables are made by command."""

    def migration_sql(self) -> str:
        return migrate.as_text(self.dialect, self.prefix)

    def check_schema(self) -> list[str]:
        if self._newer is not None:
            return self._newer
        try:
            with self._plain() as connection:
                migrate.check_encoding(self.url, connection.info.parameter_status("server_encoding"))
                applied = connection.execute(migrate.applied_query(self.prefix).encode()).fetchall()
                schema = connection.execute(_SCHEMA, [f"{self.prefix}migration"]).fetchall()[0][0]
        except pg.UndefinedTable:
            raise migrate.missing(self.url, self.prefix) from None
        except psycopg.OperationalError as error:
            unreachable(error, migrate.masked(self.url))
        except psycopg.Error as error:
            raise refused(error) from error
        named = load(self.dialect, self.prefix, schema.replace("%", "%%"))
        self._statements = {name: Statement.of(name, parts[0]) for name, parts in named.items()}
        self._newer = migrate.check(self.dialect, self.prefix, self.url, applied)
        return self._newer

    def findings(self, destinations: int = 0, /) -> Sequence[tuple[str, str, str]]:
        self.check_schema()
        try:
            with self._plain() as connection:
                row = connection.execute(self._statements["settings"].sql).fetchall()[0]
                pid = connection.info.backend_pid
        except psycopg.OperationalError as error:
            unreachable(error, migrate.masked(self.url))
        version, fsync, synchronous, full_page_writes, isolation, recovery, answering, *connections = row
        found = [("ok", f"PostgreSQL {version}, fsync {fsync}, synchronous_commit {synchronous}", "")]
        if fsync != "on" or full_page_writes != "on":
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
        if answering == pid:  # a pooler in between has few connections for many of ours
            # The relay has one to look for what is to be published, and one more for each destination that has some.
            relay = 1 + destinations if destinations else 0
            found.append(_room(self._pool_size + inner_size(self._pool_size) + _BESIDE_POOL + relay, *connections))
        return found

    def close(self) -> None:
        notifier, self._notifier = self._notifier, None
        self._pools.close()
        if notifier:
            notifier.close()

    async def async_close(self) -> None:
        """Close the pools of the running event loop."""
        await self._pools.async_close()


def _room(each: int, allowed: int, others: int, processes: int) -> tuple[str, str, str]:
    """Whether the server has room for every connection that our processes may open."""
    # One that only receives is not registered: count at least the process that asks.
    ours = max(processes, 1)
    wanted = ours * each
    what = (
        f"{ours} {'process' if ours == 1 else 'processes'} may open up to {wanted} connections, others have {others} "
        f"now, and the server lets in {allowed}"
    )
    if wanted + others <= allowed:
        return "ok", what, ""
    lacking = wanted + others - allowed
    advice = (
        f"raise max_connections by {lacking} or more, lower Settings(pool=...), run fewer processes, or connect "
        "through a PgBouncer"
    )
    return "warning", f"{what}: under load connections will be refused", advice
