"""Handlers that get a Session, Connection, AsyncSession or AsyncConnection: each has the handler's transaction.

Invariant: no statement of SQLAlchemy's own comes with that. What its dialect wants to know of a database it asks once,
on a connection of its own, before the first handler is called.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from functools import partial
from typing import Any, NoReturn

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool
from sqlalchemy.util import greenlet_spawn

from onceward.domain import checks
from onceward.domain.parameters import HandlerTransaction, Providers
from onceward.errors import ConfigurationError, ContractViolation
from onceward.integrations.sqlalchemy.lent import HandlerConnection, HandlerSession, LentTransaction, check, finish

_DIALECTS = {
    ("sqlite", False): "sqlite+pysqlite://",
    ("sqlite", True): "sqlite+aiosqlite://",
    ("postgres", False): "postgresql+psycopg://",
    ("postgres", True): "postgresql+psycopg_async://",
    ("mysql", False): "mysql+pymysql://",
    ("mysql", True): "mysql+asyncmy://",
}
# HSTORE is read by SQLAlchemy, so that the worker's connection, which others use too, stays as it is.
_OPTIONS: dict[str, dict[str, Any]] = {"sqlite": {}, "postgres": {"use_native_hstore": False}, "mysql": {}}
Making = Callable[..., Any]


class SqlAlchemy:
    """Makes what handlers ask for, for one inbox."""

    def __init__(self, providers: Providers) -> None:
        self._store = providers.store
        self._sessions = _checked(providers.options.get("sessions"))
        self._lock = threading.Lock()
        self._engines: dict[bool, Engine] = {}
        self._ready: dict[bool, Engine] = {}
        """Those that know what their dialect asks a database."""
        self._making: dict[Any, Making] = {}

    def check(self, where: str, wanted: Any, *, is_async: bool) -> None:
        """Refuse what handlers of a kind, or of a store, cannot have."""
        fits = (AsyncSession, AsyncConnection) if is_async else (Session, Connection)
        if not issubclass(wanted, fits):
            kind, one, other = ("async def", *fits) if is_async else ("def", *fits)
            raise ConfigurationError(
                f"{where}: {wanted.__name__} is not for {kind} handlers; annotate it as {one.__name__} or "
                f"{other.__name__}"
            )
        if (self._store.dialect, is_async) not in _DIALECTS:
            raise ConfigurationError(f"{where}: SQLAlchemy has no dialect for the store {self._store.url!r}")
        if issubclass(wanted, Session | AsyncSession):
            self._maker(where, wanted)
        with self._lock, suppress(ImportError):  # what is missing is told by the store, when it is used
            self._engine(is_async=is_async)  # its dialect takes a while to import, and the first message need not wait

    def cause(self, error: BaseException) -> BaseException:
        """The driver's error in one of SQLAlchemy's.

        Also where SQLAlchemy then went back to a savepoint, and the transaction was gone: that is no fault of the
        handler's.
        """
        seen = error.__context__ if isinstance(error, ContractViolation) else error
        return seen.orig if isinstance(seen, DBAPIError) and seen.orig is not None else error

    def opened(self, transaction: HandlerTransaction) -> AbstractContextManager[Any]:
        """A Session or Connection."""
        opening = self._session if issubclass(transaction.wanted, Session) else self._connection
        return opening(transaction)

    def async_opened(self, transaction: HandlerTransaction) -> AbstractAsyncContextManager[Any]:
        """An AsyncSession or AsyncConnection."""
        opening = self._async_session if issubclass(transaction.wanted, AsyncSession) else self._async_connection
        return opening(transaction)

    @contextmanager
    def _connection(self, transaction: HandlerTransaction) -> Iterator[HandlerConnection]:
        tx = transaction.tx
        connection = tx.opened() if _is_other(tx) else HandlerConnection(self._ready_engine(), self._lent(tx, tx))
        try:
            yield connection
            check(connection.lent)
        finally:
            connection.lent.over = True

    @contextmanager
    def _session(self, transaction: HandlerTransaction) -> Iterator[Session]:
        making = self._maker("Inbox", transaction.wanted)
        with self._connection(transaction) as connection:
            session = making(bind=connection)
            try:
                yield session
                finish(session)
            finally:
                connection.lent.over = True
                session.close()

    @asynccontextmanager
    async def _async_connection(self, transaction: HandlerTransaction) -> AsyncIterator[AsyncConnection]:
        tx = transaction.tx
        if _is_other(tx):
            engine, connection = AsyncEngine(tx.engine), await greenlet_spawn(tx.opened)
        else:
            engine = await self._async_engine()
            adapted = await _adapted(engine.sync_engine, tx)
            connection = HandlerConnection(engine.sync_engine, self._lent(adapted, tx))
        try:
            yield AsyncConnection(engine, connection)
            check(connection.lent)
        finally:
            connection.lent.over = True

    @asynccontextmanager
    async def _async_session(self, transaction: HandlerTransaction) -> AsyncIterator[AsyncSession]:
        making = self._maker("Inbox", transaction.wanted)
        async with self._async_connection(transaction) as connection:
            lent = connection.sync_connection.lent  # type: ignore[union-attr] # it is ours
            session = making(bind=connection)
            try:
                yield session
                await session.run_sync(finish)
            finally:
                lent.over = True
                await session.close()

    def _lent(self, connection: Any, tx: Any) -> LentTransaction:
        if self._store.dialect == "mysql":
            tx.count_matched()
        return LentTransaction(connection, tx)

    def _ready_engine(self, *, is_async: bool = False) -> Engine:
        """An engine that knows what its dialect asks a database."""
        known = self._ready.get(is_async)
        if known is not None:
            return known
        with self._lock:
            if is_async not in self._ready:
                engine = self._engine(is_async=is_async)
                self._ask(engine)
                self._ready[is_async] = engine
            return self._ready[is_async]

    async def _async_engine(self) -> AsyncEngine:
        known = self._ready.get(True)
        if known is None:
            known = await asyncio.to_thread(self._ready_engine, is_async=True)
        return AsyncEngine(known)

    def _engine(self, *, is_async: bool) -> Engine:
        """An engine that has no connections. Under the lock."""
        if is_async not in self._engines:
            dialect = self._store.dialect
            url, options = _DIALECTS[dialect, is_async], _OPTIONS[dialect]
            if is_async:
                engine = create_async_engine(url, poolclass=NullPool, async_creator=_no_other, **options).sync_engine
            else:
                engine = create_engine(url, poolclass=NullPool, creator=_no_other, **options)
            self._engines[is_async] = engine
        return self._engines[is_async]

    def _ask(self, engine: Engine) -> None:
        """What the dialect wants to know is asked on a connection of its own."""
        raw = self._store.raw() if self._store.dialect != "sqlite" else closing(sqlite3.connect(":memory:"))
        with raw as connection:
            lent = LentTransaction(connection, connection)
            engine.dialect.initialize(Connection(engine, lent, _has_events=False, _allow_autobegin=False))
            lent.over = True

    def _maker(self, where: str, wanted: Any) -> Making:
        """What makes Sessions of the class that is wanted, as the inbox was told to."""
        if wanted not in self._making:
            self._making[wanted] = _maker(where, wanted, self._sessions)
        return self._making[wanted]


async def _adapted(engine: Engine, tx: Any) -> Any:
    """The `tx` of an `async def` handler as the dialect wraps it."""

    async def given(*_: Any, **__: Any) -> Any:
        return tx

    return await greenlet_spawn(engine.dialect.loaded_dbapi.connect, async_creator_fn=given)


def _is_other(tx: Any) -> bool:
    """Whether a caller's transaction is on a driver that only SQLAlchemy knows."""
    return hasattr(tx, "opened")


def _no_other(*_: Any, **__: Any) -> NoReturn:
    raise ContractViolation(
        "the engine of a handler's Session or Connection has no connection but the handler's transaction; what is to "
        "happen outside of that belongs before the handler or after its commit (message.after_commit)"
    )


def _checked(sessions: Any) -> Any:
    """What `Inbox(sessions=...)` was given."""
    if sessions is None or isinstance(sessions, sessionmaker | async_sessionmaker):
        return sessions
    if isinstance(sessions, type) and issubclass(sessions, Session | AsyncSession):
        return sessions
    return checks.refuse("Inbox", "sessions", sessions, "a sessionmaker, an async_sessionmaker or a class of Sessions")


def _maker(where: str, wanted: Any, sessions: Any) -> Making:
    made = getattr(sessions, "class_", sessions)
    options = {**getattr(sessions, "kw", {})}
    plain = options.pop("sync_session_class", None) or getattr(made, "sync_session_class", made) or Session
    for theirs in ("bind", "binds", "autobegin", "twophase"):
        options.pop(theirs, None)
    if issubclass(wanted, AsyncSession):
        made = made if made is not None and issubclass(made, AsyncSession) else wanted
        plain = plain if sessions is not None else wanted.sync_session_class
    else:
        made = plain = plain if sessions is not None else wanted
    if not issubclass(made, wanted):
        raise ConfigurationError(
            f"{where}: sessions= of the inbox makes {made.__name__}, and the handler wants {wanted.__name__}; annotate "
            "it as what sessions= makes, or give the inbox a sessionmaker of the class that it wants"
        )
    strict = type(plain.__name__, (HandlerSession, plain), {})
    options["join_transaction_mode"] = "control_fully"
    if issubclass(wanted, AsyncSession):
        return partial(made, sync_session_class=strict, **options)
    return partial(strict, **options)
