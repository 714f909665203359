"""The memory store: everything that an inbox keeps, in dictionaries of this process.

It is the reference for those who write stores. What a store owes is in `onceward.stores.protocol` (sessions) and
`onceward.stores.moves` (what sessions are asked for); this one has no SQL, no driver and nothing to set up, so nothing
but the obligations is left. It is thread-safe, takes `def` and `async def` handlers, and is not durable.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from onceward.errors import ConfigurationError
from onceward.stores.protocol import Capability, TimeLimits
from onceward.testing.memory.catalog import Catalog, Ledger
from onceward.testing.memory.claims import Claims
from onceward.testing.memory.history import History
from onceward.testing.memory.members import FanOuts, Membership
from onceward.testing.memory.operations import Effects, Operations, Polls
from onceward.testing.memory.queue import Inline, Queue
from onceward.testing.memory.recorder import Recorder
from onceward.testing.memory.reports import Reports
from onceward.testing.memory.retention import Retention
from onceward.testing.memory.sessions import AsyncMemorySession, End, Memory, MemorySession, Open


class MemoryMoves:
    """The moves, by subject."""

    def __init__(self, memory: Memory) -> None:
        self.catalog, self.ledger = Catalog(), Ledger()
        self.claims, self.queue, self.inline = Claims(memory), Queue(memory), Inline()
        self.fan_out, self.membership = FanOuts(), Membership()
        self.operations, self.effects, self.polls = Operations(), Effects(), Polls()
        self.retention, self.history, self.reports = Retention(), History(), Reports()


class MemoryStore:
    """An inbox in memory: `Inbox(MemoryStore())`. Several inboxes may share one, as processes share a database."""

    dialect = "memory"
    connections = ("onceward.testing.memory.recorder.Recorder",) * 2
    url = "memory"
    single_writer = False
    capabilities: frozenset[Capability] = frozenset({"history", "large bodies"})

    def __init__(self, prefix: str = "onceward_") -> None:
        self.prefix = prefix
        self.clock: Callable[[], int] = lambda: time.time_ns() // 1000
        """Microseconds since 1970."""
        self._memory = Memory(lambda: self.clock())  # noqa: PLW0108 - a test may set another one
        self._wakes: set[Callable[[], None]] = set()

    def moves(self, limits: TimeLimits) -> MemoryMoves:  # noqa: ARG002 - nothing here takes long
        """What steps may ask of it."""
        return MemoryMoves(self._memory)

    # Sessions

    def connect(self) -> MemorySession:
        return MemorySession(self._memory)

    async def async_connect(self) -> AsyncMemorySession:
        return AsyncMemorySession(self.connect())

    @contextmanager
    def session(self) -> Iterator[MemorySession]:
        session = self.connect()
        try:
            yield session
        finally:
            session.close()

    @asynccontextmanager
    async def async_session(self) -> AsyncIterator[AsyncMemorySession]:
        session = await self.async_connect()
        try:
            yield session
        finally:
            session.abandon()

    def check_caller(self) -> None:
        """Nothing to refuse: a handler's transaction is in no one else's way."""

    def check_async(self) -> None:
        """Nothing to refuse: `async def` needs no package here."""

    def join(self, tx: Any) -> MemorySession:
        raise ConfigurationError(f"a memory store cannot join {tx!r}: it has no transactions of a caller's own")

    def async_join(self, tx: Any) -> AsyncMemorySession:
        raise ConfigurationError(f"a memory store cannot join {tx!r}: it has no transactions of a caller's own")

    @contextmanager
    def raw(self) -> Iterator[Recorder]:
        """A recorder as handlers get it, applied at the end of the block."""
        session = self.connect()
        session.perform(Open())
        with session.lent() as tx:
            yield tx
        session.perform(End(lambda _: None))

    # Waking up

    def notify(self) -> None:
        for wake in list(self._wakes):
            wake()

    def watch(self, wake: Callable[[], None]) -> MemoryListener:
        self._wakes.add(wake)
        return MemoryListener(lambda: self._wakes.discard(wake))

    # There is no schema, and nothing to close

    def migrate(self) -> list[str]:
        return []

    def make_missing(self) -> None:
        """Nothing is missing."""

    def migration_sql(self) -> str:
        return ""

    def check_schema(self) -> list[str]:
        return []

    def findings(self, _destinations: int = 0, /) -> Sequence[tuple[str, str, str]]:
        return ()

    def close(self) -> None:
        """What it keeps stays, for other inboxes on it."""

    async def async_close(self) -> None:
        """As `close`."""


class MemoryListener:
    """A running watch for new messages."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close
