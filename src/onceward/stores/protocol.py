"""What a store must be. `open_store` finds it by the URL's scheme, among entry points of the group `onceward.stores`.

A store knows its database and its driver, and nothing of the steps that use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from importlib import import_module
from typing import Any, Literal, NamedTuple, Protocol, get_args

from onceward.domain import identity, urls
from onceward.domain.checks import refuse
from onceward.domain.plugins import found, package, scheme
from onceward.domain.urls import RenderedUrl
from onceward.errors import ConfigurationError
from onceward.settings import Settings
from onceward.stores.moves import Moves


class TimeLimits(NamedTuple):
    """How long onceward's own statements may take, in seconds."""

    statement: float
    lock: float
    """How long they wait for a lock."""

    @classmethod
    def of(cls, settings: Settings) -> TimeLimits:
        """As an inbox is set."""
        return cls(settings.statement_limit.total_seconds(), settings.lock_wait.total_seconds())


class Session(Protocol):
    """A connection that performs requests (see `flow.py`), one at a time.

    Obligations: an error is raised as one of onceward's own, with the driver's as its cause; after any error
    the connection is either usable for `Rollback` or known to be broken; `Commit` returns only when the
    database has said so.
    """

    @property
    def idle(self) -> bool:
        """Whether the connection is proven usable and no transaction is open."""

    def perform(self, request: Any) -> Any:
        """Perform a request or a tuple of them and return its answer or the tuple of answers."""

    def cut(self) -> None:
        """From another thread, for good: undo the transaction, and allow nothing more on the connection."""

    def interrupt(self) -> None:
        """Called from another thread: make the running handler's statement fail and its transaction roll back."""

    def close(self) -> None:
        """Close the connection; whatever is uncommitted rolls back. Fine when closed already."""


class AsyncSession(Protocol):
    """As `Session`, awaited."""

    @property
    def idle(self) -> bool:
        """Whether the connection is proven usable and no transaction is open."""

    async def perform(self, request: Any) -> Any:
        """Perform a request or a tuple of them and return its answer or the tuple of answers."""

    def abandon(self) -> None:
        """Drop the connection at once, without waiting: for cancellation, when its state is not known."""

    async def close(self) -> None:
        """Close the connection; whatever is uncommitted rolls back. Fine when closed already."""


class Listener(Protocol):
    """A running watch for new messages."""

    def close(self) -> None:
        """Stop watching."""


Capability = Literal["durability", "interactive transactions", "callers' transactions", "large bodies", "history"]
"""What a store may lack. What needs it asks for it by name; the doctor and the guarantees show what is missing."""
EVERYTHING: frozenset[Capability] = frozenset(get_args(Capability))
LACKS: Mapping[Capability, str] = {
    "durability": "is in memory and is gone with this process",
    "interactive transactions": "records what a handler writes and applies it at the end: reads in the handler see "
    "neither its own writes nor one moment of the store, so what depends on a read needs tx.condition (tx.watch on "
    "Redis)",
    "callers' transactions": "has no transactions of a caller's own",
    "history": "keeps no history of rates and durations",
    "large bodies": "keeps bodies of up to 300,000 bytes itself; larger ones need Inbox(blobs=...)",
}


class Store(Protocol):
    """A database that keeps an inbox."""

    dialect: str
    connections: tuple[str, str]
    """The full names of the classes of `tx`, for `def` and for `async def` handlers."""
    prefix: str
    url: str
    """Where it is, as the log shows it: without a password."""
    capabilities: frozenset[Capability]
    """Most stores have `EVERYTHING`."""
    single_writer: bool
    """Whether a second connection cannot write while a transaction is open."""

    def moves(self, limits: TimeLimits, /) -> Moves:
        """What steps may ask of it; its sessions perform what those yield."""

    def check_caller(self) -> None:
        """Raise `ContractViolation` where a call that needs a transaction of its own would wait for its caller's."""

    def session(self) -> AbstractContextManager[Session]:
        """A pooled session for short work; given back idle or thrown away."""

    def async_session(self) -> AbstractAsyncContextManager[AsyncSession]:
        """A pooled session of the running event loop."""

    def connect(self) -> Session:
        """A session of its own, for a worker; the caller closes it."""

    def check_async(self) -> None:
        """Raise `ConfigurationError` where async handlers need a package that is not there."""

    async def async_connect(self) -> AsyncSession:
        """An async session of its own, for a worker; the caller closes it."""

    def join(self, tx: Any) -> Session:
        """A session inside the caller's own transaction: begin and commit are the caller's."""

    def async_join(self, tx: Any) -> AsyncSession:
        """As `join`, for an async connection."""

    def raw(self) -> AbstractContextManager[Any]:
        """A plain driver connection to the same database, for set-up and tests; commits at the end."""

    def notify(self) -> None:
        """Notify listeners that there are new messages. A hint: may come late or not at all."""

    def watch(self, wake: Callable[[], None]) -> Listener:
        """Call `wake` (from another thread) whenever some process has notified."""

    def migrate(self) -> list[str]:
        """Bring the tables up to date; returns what was applied. Safe when two do it at once."""

    def make_missing(self) -> None:
        """Make the tables where there are none, if the database is embedded in its program; else do nothing."""

    def migration_sql(self) -> str:
        """All migrations as text, for the owner of the schema."""

    def check_schema(self) -> list[str]:
        """Raise `SchemaMissing` or `SchemaOutdated`, with what to do; returns newer migrations that do no harm."""

    def findings(self, destinations: int = 0, /) -> Sequence[tuple[str, str, str]]:
        """What the doctor should show: (level, what was found, what to do). `destinations`: of the relay."""

    def close(self) -> None:
        """Close every pooled connection of this process."""

    async def async_close(self) -> None:
        """Close the pooled connections of the running event loop."""


class StoreOptions(NamedTuple):
    """How an inbox wants the store behind its URL."""

    prefix: str
    """What the names of its tables begin with."""
    lock_wait: timedelta
    """How long its statements may wait for a lock."""
    pool: int = 16
    """How many connections its short work may share, where it has connections."""
    pipelining: bool = True
    """Whether its statements may travel together, where the driver can do that."""


GROUP = "onceward.stores"
"""Entry points of this group are stores: the name is a scheme, the object a function of a URL and `StoreOptions`."""
OURS = {
    "sqlite": "onceward.stores.sqlite",
    "postgresql": "onceward.stores.postgres",
    "postgres": "onceward.stores.postgres",
    "mysql": "onceward.stores.mysql",
    "mariadb": "onceward.stores.mysql",
    "redis": "onceward.stores.redis",
    "rediss": "onceward.stores.redis",
    "dynamodb": "onceward.stores.dynamodb",
}
"""Ours, as they are registered. They stand here as well: to look entry points up takes longer than all of the start."""


def open_store(url: str, options: StoreOptions) -> Store:
    """Return the store behind a URL."""
    if module := OURS.get(scheme(url)):
        opened: Store = import_module(module).open_store(url, options)  # drivers load on demand
        return opened
    advice = (
        ". Use sqlite:///path, sqlite:// (memory), postgresql://... or mysql://..., or install the package that has "
        "the store"
    )
    entry = found(GROUP, "store", url, advice)
    opening = entry.load()
    if not callable(opening):
        raise ConfigurationError(f"{entry.value} of {package(entry)} must be a function of a URL and StoreOptions")
    return opening(url, options)  # type: ignore[no-any-return] # what it returns is its package's business


def opened(store: str | RenderedUrl | Store, prefix: str | None, settings: Settings) -> Store:
    """The store of an inbox: the object that was given, or the one behind a URL."""
    if isinstance(store, str | RenderedUrl):
        store = urls.plain(store) if isinstance(store, str) else urls.of_engine(store)
        named = identity.check_prefix("onceward_" if prefix is None else prefix)
        return open_store(store, StoreOptions(named, settings.lock_wait, settings.pool, settings.pipelining))
    if not all(hasattr(store, name) for name in ("moves", "session", "connect", "capabilities")):
        refuse("Inbox", "store", store, "a URL, for example sqlite:///shop.db or postgresql://host/shop, or a store")
    if prefix not in (None, store.prefix):
        refuse("Inbox", "prefix", prefix, f"left out: the store has its own, {store.prefix!r}")
    return store


def require(store: Store, capability: Capability, what: str, instead: str) -> None:
    """Raise `ConfigurationError` where a store lacks what an operation needs."""
    if capability not in store.capabilities:
        raise ConfigurationError(f"{what} is not possible: {type(store).__name__} {LACKS[capability]}; {instead}")
