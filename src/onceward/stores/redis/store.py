"""The store in a Redis or Valkey server: a library of functions there, and connections of redis-py here."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from onceward.deferred import asyncio
from onceward.domain import identity
from onceward.errors import ConfigurationError, SchemaMissing, SchemaOutdated, StoreError
from onceward.flow import Flow, run_sync
from onceward.stores import migrate
from onceward.stores.protocol import Capability, TimeLimits
from onceward.stores.recording import Open
from onceward.stores.redis import library, server
from onceward.stores.redis.catalog import Catalog, Ledger
from onceward.stores.redis.claims import Claims
from onceward.stores.redis.direct import Inline
from onceward.stores.redis.history import History
from onceward.stores.redis.members import FanOuts, Membership
from onceward.stores.redis.notifier import RedisListener
from onceward.stores.redis.operations import Effects, Operations, Polls
from onceward.stores.redis.queue import Queue
from onceward.stores.redis.reports import Reports
from onceward.stores.redis.requests import Ask, End, done
from onceward.stores.redis.retention import Retention
from onceward.stores.redis.sessions import AsyncRedisSession, RedisSession, load, translating
from onceward.stores.redis.transaction import RedisTransaction

SCHEMA = "1"
"""Of what is kept, not of the functions, which are named after themselves."""
CONNECT_SECONDS = 5.0
_JOIN = "a Redis store cannot join {tx!r}: it has no transactions of a caller's own"


class RedisMoves:
    """The moves, by subject."""

    def __init__(self, prefix: str, lock_wait: float) -> None:
        self.catalog, self.ledger = Catalog(), Ledger()
        self.claims, self.queue, self.inline = Claims(), Queue(), Inline(lock_wait)
        self.fan_out, self.membership = FanOuts(), Membership()
        self.operations, self.effects, self.polls = Operations(), Effects(), Polls()
        self.retention, self.history, self.reports = Retention(), History(), Reports(prefix)


class RedisStore:
    """An inbox in Redis 7 or Valkey: `Inbox("redis://host:6379/0")`."""

    dialect = "redis"
    connections = (
        "onceward.stores.redis.transaction.RedisTransaction",
        "onceward.stores.redis.transaction.AsyncRedisTransaction",
    )
    single_writer = False
    capabilities: frozenset[Capability] = frozenset({"durability", "history", "large bodies"})

    def __init__(self, url: str, prefix: str = "onceward_", pool: int = 16) -> None:
        parts = urlsplit(url)
        self.prefix, self._address, self._pool = prefix, url, pool
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._limit = CONNECT_SECONDS
        self._idle: list[RedisSession] = []
        self._idle_async: WeakKeyDictionary[Any, list[AsyncRedisSession]] = WeakKeyDictionary()
        self._owner, self._is_checked = os.getpid(), False
        self._guard = threading.Lock()
        self._leaving: set[Any] = set()
        """Tasks that free what a call that was cancelled had locked."""

    def moves(self, limits: TimeLimits) -> RedisMoves:
        """What steps may ask of it."""
        self._limit = max(limits.statement, 1.0)
        return RedisMoves(self.prefix, limits.lock)

    # Sessions

    def connect(self) -> RedisSession:
        self._check_server()
        with translating():
            return RedisSession(self._client(single_connection_client=True), self.prefix)

    async def async_connect(self) -> AsyncRedisSession:
        await asyncio.to_thread(self._check_server)
        client = redis.asyncio.Redis.from_url(
            self._address,
            single_connection_client=True,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=self._limit,
            retry=AsyncRetry(NoBackoff(), 0),
            protocol=2,
        )
        with translating():
            await client.initialize()
        return AsyncRedisSession(client, self.prefix)

    @contextmanager
    def session(self) -> Iterator[RedisSession]:
        if self._owner != os.getpid():  # a child of a fork: the connections are its parent's
            self._idle, self._owner = [], os.getpid()
        try:
            session = self._idle.pop()
        except IndexError:
            session = self.connect()
        try:
            yield session
        except BaseException:
            session.close()
            raise
        session.forget()
        if len(self._idle) < self._pool:
            self._idle.append(session)
        else:
            session.close()

    @asynccontextmanager
    async def async_session(self) -> AsyncIterator[AsyncRedisSession]:
        idle = self._idle_async.setdefault(asyncio.get_running_loop(), [])
        session = idle.pop() if idle else await self.async_connect()
        try:
            yield session
        except BaseException:
            locked = session.leaving()
            session.abandon()
            if locked:  # by a task of its own, on another connection: this one may be in the middle of a command
                leaving = asyncio.ensure_future(self._let_go(locked))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
            with suppress(Exception):
                await session.close()
            raise
        await session.forget()
        if len(idle) < self._pool:
            idle.append(session)
        else:
            await session.close()

    async def _let_go(self, locked: Sequence[Ask]) -> None:
        with suppress(StoreError):  # its time will be over
            async with self.async_session() as session:
                for ask in locked:
                    await session.perform(ask)

    def check_caller(self) -> None:
        """Nothing to refuse: a handler's transaction is in no one else's way."""

    def check_async(self) -> None:
        """Nothing to refuse: the driver has both halves."""

    def join(self, tx: Any) -> RedisSession:
        raise ConfigurationError(_JOIN.format(tx=tx))

    def async_join(self, tx: Any) -> AsyncRedisSession:
        raise ConfigurationError(_JOIN.format(tx=tx))

    @contextmanager
    def raw(self) -> Iterator[RedisTransaction]:
        """A transaction as handlers get it, applied at the end of the block."""
        with self.session() as session:
            session.perform(Open())
            with session.lent() as tx:
                yield tx
            session.perform(End("apply"))

    # Waking up

    def notify(self) -> None:
        with suppress(redis.RedisError, OSError), self.session() as session:
            session.client.publish(self._channel, "1")

    def watch(self, wake: Callable[[], None]) -> RedisListener:
        return RedisListener(self._client, self._channel, wake)

    # What is kept

    def migrate(self) -> list[str]:
        with self.session() as session:
            with translating():
                load(session.client.execute_command)
            found = self._schema(session)
            if found is not None:
                _check(found)
                return []
            made = run_sync(_make(), session.perform)
        return [f"{SCHEMA} (functions {library.name()})"] if made else []

    def make_missing(self) -> None:
        """The server is not embedded in a program: what is missing is made by `onceward migrate`."""

    def migration_sql(self) -> str:
        """The library, for who may load functions: `redis-cli -x FUNCTION LOAD < it`."""
        return library.source()

    def check_schema(self) -> list[str]:
        with self.session() as session:
            found = self._schema(session)
        if found is None:
            raise SchemaMissing(
                f"{self.url} has no inbox under {self.prefix}*; create it with: "
                f"{migrate.command(self.url, self.prefix)} (or inbox.migrate())"
            )
        _check(found)
        return []

    def findings(self, _destinations: int = 0, /) -> Sequence[tuple[str, str, str]]:
        with self.session() as session, translating():
            return [*server.findings(session.client, self.prefix)]

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def async_close(self) -> None:
        idle = self._idle_async.pop(asyncio.get_running_loop(), [])
        for session in idle:
            await session.close()

    def _schema(self, session: RedisSession) -> str | None:
        with translating():
            found: Any = session.client.hget(f"{self.prefix}meta", "schema")
        return None if found is None else str(found.decode())

    @property
    def _channel(self) -> str:
        return f"{self.prefix}news"

    def _client(self, **options: Any) -> redis.Redis:
        return redis.Redis.from_url(
            self._address,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=self._limit,
            retry=Retry(NoBackoff(), 0),  # what is tried again is a step, by whoever has asked for it
            protocol=2,
            **options,
        )

    def _check_server(self) -> None:
        with self._guard:
            if self._is_checked:
                return
            client = self._client()
            with translating(), closing(client):
                server.check(client)
            self._is_checked = True


def _make() -> Flow[bool]:
    return bool((yield from done("make", {"schema": SCHEMA, "folder": identity.new_id()})))


def _check(found: str) -> None:
    if found != SCHEMA:
        raise SchemaOutdated(
            f"the inbox has version {found}, this onceward needs {SCHEMA}; use the onceward that made it"
        )
