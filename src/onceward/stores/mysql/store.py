"""The MySQL store: connections, pools, migrations and what the doctor should know, through PyMySQL and asyncmy."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from typing import Any

from pymysql.constants import CLIENT

from onceward.errors import ConfigurationError
from onceward.stores import migrate
from onceward.stores.mysql import findings
from onceward.stores.mysql.address import Address
from onceward.stores.mysql.failures import DRIVER, number, refused_or_unreachable, unreachable
from onceward.stores.mysql.guard import HandlerConnection, PlainConnection
from onceward.stores.mysql.joined import (
    AsyncJoinedSession,
    JoinedSession,
    check_open,
    is_async_driver,
    is_sync_driver,
)
from onceward.stores.mysql.polling import PollingListener
from onceward.stores.mysql.pools import Pools
from onceward.stores.mysql.session import OWN_SETTINGS, AsyncMysqlSession, MysqlSession
from onceward.stores.mysql.statement import TIDB, Named
from onceward.stores.mysql.wire import send, send_async
from onceward.stores.protocol import EVERYTHING, TimeLimits
from onceward.stores.relational import RelationalMoves
from onceward.stores.statements import load

_NO_TABLE = 1146
_OPENING = (
    *OWN_SETTINGS,
    b"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    b"SET autocommit = 0",
    b"SELECT version(), connection_id(), @@max_allowed_packet",
)
# In a Galera cluster one reads what others have committed.
_GALERA = (b"SET SESSION wsrep_sync_wait = 1",)
_NOT_UNDONE = (
    b"SELECT table_name FROM information_schema.tables WHERE table_schema = database() AND engine IN "
    b"(SELECT engine FROM information_schema.engines WHERE transactions = 'NO') ORDER BY table_name LIMIT 10"
)
_IS_GALERA = b"SHOW VARIABLES LIKE 'wsrep_on'"


_OF_TIDB = (b"SET SESSION tidb_txn_mode = 'pessimistic'",)
"""A lock is taken when it is asked for, and not at the commit."""


def refuse_tidb(version: str, address: Address) -> None:
    """Raise `ConfigurationError` on TiDB, unless the address says that its user knows."""
    if findings.is_tidb(version) and address.options.get("tidb") != "unproven":
        raise ConfigurationError(
            f"{version} is not shown to keep an inbox: TiDB was run on one server with its own store alone, which "
            "loses parts of transactions when it is killed. Use MySQL 8 or MariaDB, or try it all the same with "
            "?tidb=unproven in the address (docs/mysql.md says what is known)"
        )


class MysqlStore:
    """An inbox in a database of MySQL or MariaDB."""

    dialect = "mysql"
    connections = ("pymysql.connections.Connection", "asyncmy.connection.Connection")
    single_writer = False
    capabilities = EVERYTHING

    def __init__(self, url: str, prefix: str, pool: int = 16) -> None:
        self.url, self.prefix, self._pool_size = url, prefix, pool
        self.address = Address.of(url)
        self._secure = self.address.secure()
        self._statements = self._named(self.dialect)
        self._lock = threading.Lock()
        self._newer: list[str] | None = None
        self._is_galera: bool | None = None
        self._forget()

    def _forget(self) -> None:
        """Start without connections: at first, and in a forked child, where the parent's are not ours."""
        self._pid = os.getpid()
        self._pools = Pools(self._pool_size, self._session, self._async_session)
        self._wakes: set[Callable[[], None]] = set()

    def _named(self, server: str) -> Named:
        return Named(load(self.dialect, self.prefix, self.address.schema, server), server)

    @cached_property
    def _of_tidb(self) -> Named:
        return self._named(TIDB)

    def _spoken(self, version: str) -> Named:
        """The statements in the words of a server."""
        return self._of_tidb if findings.is_tidb(version) else self._statements

    def moves(self, limits: TimeLimits) -> RelationalMoves:
        """What steps may ask of it."""
        return RelationalMoves(limits)

    def open_connection(self) -> HandlerConnection:
        """A new guarded connection."""
        connection = None
        try:
            connection = HandlerConnection(
                **self.address.arguments(),
                ssl=self._secure,
                autocommit=None,
                client_flag=CLIENT.MULTI_STATEMENTS,
            )
            ((version, which, largest),) = send(connection, _OPENING)[-1]
            connection.__dict__.update(number=which, largest=largest, flavour=version, is_changed=False)
            refuse_tidb(version, self.address)
            if findings.is_tidb(version):
                send(connection, _OF_TIDB)
            elif self._knows_galera(version, lambda sql: send(connection, [sql])[0]):
                send(connection, _GALERA)
            send(connection, [b"COMMIT"])
        except BaseException as error:
            if connection is not None:
                connection.force_close()
            if isinstance(error, DRIVER):
                unreachable(error, migrate.masked(self.url))
            raise
        return connection

    def _knows_galera(self, version: str, ask: Callable[[bytes], Any]) -> bool:
        """Whether the server is one of a Galera cluster; asked once."""
        if self._is_galera is None:
            self._is_galera = "maria" in version.lower() and [row[1] for row in ask(_IS_GALERA)] == ["ON"]
        return self._is_galera

    async def open_async_connection(self) -> Any:
        """A new guarded async connection."""
        self.check_async()
        from onceward.stores.mysql.aio import AsyncHandlerConnection  # noqa: PLC0415 - only async work needs it

        if self._is_galera is None:
            self.open_connection().force_close()
        connection = None
        try:
            connection = AsyncHandlerConnection(**self.address.arguments(), ssl=self._secure, autocommit=None)
            await connection.connect()
            ((version, which, largest),) = (await send_async(connection, _OPENING))[-1]
            connection.__dict__.update(number=which, largest=largest, flavour=version, is_changed=False)
            refuse_tidb(version, self.address)
            if findings.is_tidb(version):
                await send_async(connection, _OF_TIDB)
            elif self._is_galera:
                await send_async(connection, _GALERA)
            await send_async(connection, [b"COMMIT"])
        except BaseException as error:  # also a cancellation: nobody else knows the connection yet
            if connection is not None:
                connection.force_close()
            if isinstance(error, DRIVER):
                unreachable(error, migrate.masked(self.url))
            raise
        return connection

    @contextmanager
    def _plain(self) -> Iterator[HandlerConnection]:
        connection = self.open_connection()
        try:
            yield connection
        except DRIVER as error:
            refused_or_unreachable(error, migrate.masked(self.url))
        finally:
            connection.force_close()

    def _session(self) -> MysqlSession:
        connection = self.open_connection()
        return MysqlSession(self._spoken(connection.flavour), connection, reopen=self.open_connection)

    async def _async_session(self) -> AsyncMysqlSession:
        connection = await self.open_async_connection()
        return AsyncMysqlSession(self._spoken(connection.flavour), connection, reopen=self.open_async_connection)

    def connect(self) -> MysqlSession:
        self.check_schema()
        return self._session()

    def check_async(self) -> None:
        try:
            import asyncmy  # noqa: F401, PLC0415 - only async work needs it
        except ImportError as error:
            message = "async handlers on MySQL need asyncmy: pip install 'onceward[mysql]'"
            raise ConfigurationError(message) from error

    async def async_connect(self) -> AsyncMysqlSession:
        self.check_schema()
        return await self._async_session()

    def check_caller(self) -> None:
        """Nothing waits for a transaction as such: there are many writers."""

    @contextmanager
    def session(self) -> Iterator[MysqlSession]:
        self.check_schema()
        pool = self._own_pools().of_threads()
        session = pool.get()
        try:
            yield session
        finally:
            session.connection.take_pending_begin()
            pool.put(session)

    def _own_pools(self) -> Pools:
        with self._lock:
            if self._pid != os.getpid():
                self._forget()
            return self._pools

    @asynccontextmanager
    async def async_session(self) -> AsyncIterator[AsyncMysqlSession]:
        self.check_schema()
        pool = self._own_pools().of_tasks()
        session = await pool.get()
        done = False
        try:
            yield session
            done = True
        except Exception:
            done = True
            raise
        finally:
            session.connection.take_pending_begin()
            pool.put(session, done=done)

    def join(self, tx: Any) -> JoinedSession:
        if not is_sync_driver(tx):
            raise ConfigurationError(
                "tx= must be a connection of PyMySQL or mysqlclient, or SQLAlchemy's Session or Connection, not "
                f"{type(tx).__name__}"
            )
        check_open(tx)
        self.check_schema()
        return JoinedSession(self._spoken(str(tx.get_server_info())), tx)

    def async_join(self, tx: Any) -> AsyncJoinedSession:
        if not is_async_driver(tx):
            raise ConfigurationError(
                "tx= must be a connection of asyncmy, or SQLAlchemy's AsyncSession or AsyncConnection, not "
                f"{type(tx).__name__}"
            )
        check_open(tx)
        self.check_schema()
        return AsyncJoinedSession(self._spoken(str(tx.get_server_info())), tx)

    @contextmanager
    def raw(self) -> Iterator[PlainConnection]:
        mode = OWN_SETTINGS[-1].decode()  # as handlers have it
        connection = PlainConnection(**self.address.arguments(), ssl=self._secure, init_command=mode)
        try:
            yield connection
            connection.commit()
        finally:
            connection.close()

    def notify(self) -> None:
        for wake in list(self._wakes):
            wake()

    def watch(self, wake: Callable[[], None]) -> PollingListener:
        self._wakes.add(wake)
        table = f"{self.address.schema}.{self.prefix}ledger"
        return PollingListener(self.open_connection, table, wake, lambda: self._wakes.discard(wake))

    def migrate(self) -> list[str]:
        with self._plain() as connection:

            def execute(sql: str) -> list[Any]:
                return send(connection, [sql.encode(), b"COMMIT"])[0]

            # So that one of two says what it has applied; that both may run is seen to by the statements.
            execute(f"SELECT get_lock('{self.prefix}migration', 60)")
            return migrate.apply(self.dialect, self.prefix, self.url, execute)

    def make_missing(self) -> None:
        """A server is shared: its tables are made by command."""

    def migration_sql(self) -> str:
        return migrate.as_text(self.dialect, self.prefix)

    def check_schema(self) -> list[str]:
        if self._newer is not None:
            return self._newer
        connection = self.open_connection()
        try:
            applied = send(connection, [migrate.applied_query(self.prefix).encode()])[0]
        except DRIVER as error:
            if number(error) == _NO_TABLE:
                raise migrate.missing(self.url, self.prefix) from None
            refused_or_unreachable(error, migrate.masked(self.url))
        finally:
            connection.force_close()
        self._newer = migrate.check(self.dialect, self.prefix, self.url, applied)
        return self._newer

    def findings(self, destinations: int = 0, /) -> Sequence[tuple[str, str, str]]:
        self.check_schema()
        with self._plain() as connection:
            asked = [part.rendered({}, lambda _: b"") for part in self._statements["settings"]]
            said: dict[str, Any] = dict(row for rows in send(connection, asked) for row in rows)
            workers = send(connection, [f"SELECT count(*) FROM {self.prefix}worker".encode()])[0][0][0]
            unsafe = [name for (name,) in send(connection, [_NOT_UNDONE])[0]]
            made_by = send(connection, [f"SHOW CREATE TABLE {self.prefix}ledger".encode()])[0][0][1]
            numbering = findings.numbering(made_by) if findings.is_tidb(connection.flavour) else ()
        return [*findings.of(said, self._pool_size, workers, destinations), *numbering, *findings.tables(unsafe)]

    def close(self) -> None:
        self._pools.close()

    async def async_close(self) -> None:
        """Close the pools of the running event loop."""
        self._pools.async_close()
