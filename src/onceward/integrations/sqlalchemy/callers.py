"""Callers with a Session, Connection, AsyncSession or AsyncConnection of their own: `tx=` joins its transaction.

Where SQLAlchemy is on the driver that the store has, that driver's connection is joined. On asyncpg and psycopg2 the
same statements go through SQLAlchemy.

Invariant: what is stored is stored in the caller's transaction, of which SQLAlchemy knows, and in the inbox's database.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from onceward.errors import ConfigurationError
from onceward.stores import protocol
from onceward.stores.callers import Lender, Lent
from onceward.stores.calls import Owned
from onceward.stores.migrate import masked
from onceward.stores.sqlite.session import translated

_NAMES = {"postgres": ("postgresql",), "sqlite": ("sqlite",), "mysql": ("mysql", "mariadb")}
"""What SQLAlchemy calls the stores that it knows, too."""
# Which server, and since when: two connections agree in that only if they lead to the same database.
_WHICH = "SELECT pg_postmaster_start_time()::text || ' ' || oid FROM pg_database WHERE datname = current_database()"
# On MySQL one transaction has all databases of a server; and behind a proxy a connection may lead to any of a cluster.
_WHICH_MYSQL = (
    "SHOW GLOBAL STATUS WHERE Variable_name = 'wsrep_cluster_state_uuid'",
    "SHOW GLOBAL VARIABLES WHERE Variable_name = 'group_replication_group_name'",
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('hostname', 'port', 'datadir')",
)


class SqlAlchemyCaller:
    """Finds the transaction of a Session or Connection."""

    def __init__(self) -> None:
        self._checked: WeakKeyDictionary[Engine, WeakSet[Any]] = WeakKeyDictionary()
        """For which stores an engine is known to lead to the same database."""

    def join(self, store: protocol.Store, tx: Any) -> protocol.Session:
        """A session inside it."""
        with _explained(tx):
            connection, driver = self._driver(store, _plain(tx))
        if _is_other(driver):
            from onceward.integrations.sqlalchemy.statements import TextSession  # noqa: PLC0415 - few need it

            return TextSession.inside(store, connection)
        return store.join(driver)

    def lend(self, store: Lender, tx: Any) -> Lent[protocol.Session]:
        """The same for handlers; they see what a Session still holds."""
        with _explained(tx):
            session = _plain(tx)
            if isinstance(session, Session):
                session.flush()
            connection, driver = self._driver(store, session)
        if _is_other(driver):
            from onceward.integrations.sqlalchemy.others import LentTextSession  # noqa: PLC0415 - few need it

            session = LentTextSession.inside(store, connection)
            return Lent(session, is_over=partial(_is_over, connection), is_drivers=False)
        return Lent(store.lend(driver), is_over=partial(_is_over, connection))

    async def async_join(self, store: protocol.Store, tx: Any) -> protocol.AsyncSession:
        """As `join`, awaited."""
        with _explained(tx):
            connection, driver = await self._async_driver(store, _async_plain(tx))
        if _is_other(driver):
            from onceward.integrations.sqlalchemy.statements import AsyncTextSession  # noqa: PLC0415 - as above

            return AsyncTextSession.inside(store, connection)
        await _begun(store, connection, driver)
        return store.async_join(driver)

    async def async_lend(self, store: Lender, tx: Any) -> Lent[protocol.AsyncSession]:
        """As `lend`, awaited."""
        with _explained(tx):
            session = _async_plain(tx)
            if isinstance(session, AsyncSession):
                await session.flush()
            connection, driver = await self._async_driver(store, session)
        if _is_other(driver):
            from onceward.integrations.sqlalchemy.others import AsyncLentTextSession  # noqa: PLC0415 - as above

            session = AsyncLentTextSession.inside(store, connection)
            return Lent(session, is_over=partial(_is_over, connection), is_drivers=False)
        await _begun(store, connection, driver)
        return Lent(await store.async_lend(driver), is_over=partial(_is_over, connection))

    def _driver(self, store: protocol.Store, session: Session | Connection) -> tuple[Connection, Any]:
        """The driver's connection, and SQLAlchemy's above it."""
        bind = session.get_bind() if isinstance(session, Session) else session
        if bind.dialect.is_async:
            raise ConfigurationError(
                f"tx= is the {type(session).__name__} of an async engine, as in run_sync(), so nothing was stored; "
                "pass the AsyncSession or AsyncConnection itself: await inbox.areceive(..., tx=...), or asend"
            )
        connection = session.connection() if isinstance(session, Session) else session
        return connection, self._found(store, connection, None)

    async def _async_driver(
        self, store: protocol.Store, session: AsyncSession | AsyncConnection
    ) -> tuple[AsyncConnection, Any]:
        """As `_driver`, awaited."""
        connection = await session.connection() if isinstance(session, AsyncSession) else session
        which = None if store.dialect == "sqlite" else await asyncio.to_thread(_which, store)
        return connection, await connection.run_sync(lambda plain: self._found(store, plain, which))

    def _found(self, store: protocol.Store, connection: Connection, which: str | None) -> Any:
        """The driver's connection, once it is known that there is a transaction of the right database to join."""
        dialect = connection.dialect
        if dialect.name not in _NAMES.get(store.dialect, ()):
            raise ConfigurationError(
                f"tx= is on {dialect.name}, and the inbox is at {masked(store.url)}: nothing was stored"
            )
        driver = connection.connection.driver_connection
        if _is_autocommit(connection, driver):
            raise ConfigurationError(
                "tx= is in AUTOCOMMIT, so there is no transaction to join and nothing was stored; leave "
                "isolation_level='AUTOCOMMIT', or the driver's autocommit, out for this engine or connection"
            )
        if not connection.in_transaction():
            connection.begin()  # or its commit() would not know that there is something to commit
        if isinstance(getattr(driver, "_conn", driver), Owned):  # a handler's: it is refused where it is another's
            return driver
        if store not in self._checked.setdefault(connection.engine, WeakSet()):
            _check_database(store, connection, which)
            self._checked[connection.engine].add(store)
        return driver


CALLER = SqlAlchemyCaller()


def _plain(tx: Any) -> Any:
    """The Session or Connection itself."""
    if isinstance(tx, AsyncSession | AsyncConnection | async_scoped_session):
        raise ConfigurationError(
            f"tx= is an {type(tx).__name__}, which is awaited: use await inbox.areceive(...), aprocess or asend"
        )
    return tx() if isinstance(tx, scoped_session) else tx


def _async_plain(tx: Any) -> Any:
    """As `_plain`, of those that are awaited."""
    if isinstance(tx, Session | Connection | scoped_session):
        raise ConfigurationError(
            f"tx= is a {type(tx).__name__}, which blocks the event loop; use an AsyncSession or AsyncConnection "
            "here, or call inbox.receive(), process() or send() from a thread"
        )
    return tx() if isinstance(tx, async_scoped_session) else tx


def _is_over(connection: Connection | AsyncConnection) -> bool:
    return connection.closed or not connection.in_transaction()


def _is_other(driver: Any) -> bool:
    """Whether SQLAlchemy is on another driver than the store; then the statements go through SQLAlchemy."""
    return type(driver).__module__.startswith(("psycopg2", "asyncpg"))


async def _begun(store: protocol.Store, connection: AsyncConnection, driver: Any) -> None:
    """On SQLite the transaction begins as a writer's."""
    if store.dialect == "sqlite" and not driver.in_transaction and not isinstance(driver._conn, Owned):  # noqa: SLF001 - as the store
        try:
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
        except DBAPIError as error:
            raise translated(error.orig) if isinstance(error.orig, sqlite3.Error) else error from error


@contextmanager
def _explained(tx: Any) -> Iterator[None]:
    """What SQLAlchemy refuses to do with a Session or Connection, in one sentence."""
    try:
        yield
    except InvalidRequestError as error:  # closed, rolled back by an error, without an engine, ...
        what = f"tx= is a {type(tx).__name__} that cannot be used, so nothing was stored"
        raise ConfigurationError(f"{what}: {error}") from error


def _is_autocommit(connection: Connection, driver: Any) -> bool:
    of_engine = getattr(connection.dialect, "_on_connect_isolation_level", None)
    if connection.get_execution_options().get("isolation_level", of_engine) == "AUTOCOMMIT":
        return True
    asked = getattr(driver, "get_autocommit", None)  # the drivers of MySQL have a method of the other name
    return bool(asked() if asked is not None else getattr(driver, "autocommit", None) is True)


def _check_database(store: protocol.Store, connection: Connection, which: str | None) -> None:
    if store.dialect == "sqlite":
        rows = connection.exec_driver_sql("PRAGMA database_list").all()
        theirs = next((file for _, name, file in rows if name == "main"), "")
        ours = Path(getattr(store, "path", ""))
        is_same = bool(theirs) and ours.exists() and ours.samefile(theirs)
    else:
        theirs = _identity(store, lambda sql: connection.exec_driver_sql(sql).all())
        is_same = theirs == (which or _which(store))
    if not is_same:
        raise ConfigurationError(
            f"tx= leads to {connection.engine.url!r}, and the inbox is at {masked(store.url)}: nothing was stored; use "
            "one database for both"
        )


def _which(store: protocol.Store) -> str:
    with store.raw() as connection:
        return _identity(store, lambda sql: connection.execute(sql).fetchall())


def _identity(store: protocol.Store, ask: Callable[[str], Sequence[Any]]) -> str:
    """Where a connection leads. Nothing that it asks begins a view of the transaction, which would be too early."""
    if store.dialect == "postgres":
        return str(ask(_WHICH)[0][0])
    found = (sorted(f"{name}={value}" for name, value in ask(sql) if value) for sql in _WHICH_MYSQL)
    return " ".join(next(filter(None, found), []))
