"""What a store must be. One implementation per database; `open_store` finds it by the URL's scheme.

A store knows drivers and SQL, and nothing of the steps that use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

from onceward.errors import ConfigurationError


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
        """From another thread, for good: undo the transaction, and let nobody do anything more on the connection."""

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


class Bell(Protocol):
    """A running watch for new messages."""

    def close(self) -> None:
        """Stop watching."""


class Store(Protocol):
    """A database that keeps an inbox."""

    dialect: str
    prefix: str
    url: str
    single_writer: bool
    """Whether a second connection cannot write while a transaction is open."""

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

    def ring(self) -> None:
        """Say that there are new messages. A hint: may come late or not at all."""

    def watch(self, wake: Callable[[], None]) -> Bell:
        """Call `wake` (from another thread) whenever some process has rung."""

    def migrate(self) -> list[str]:
        """Bring the tables up to date; answers what was applied. Safe when two do it at once."""

    def migration_sql(self) -> str:
        """All migrations as text, for whoever owns the schema."""

    def check_schema(self) -> list[str]:
        """Raise `SchemaMissing` or `SchemaOutdated`, with what to do; answers newer migrations that do no harm."""

    def findings(self, destinations: int = 0, /) -> Sequence[tuple[str, str, str]]:
        """What the doctor should know: (level, what is so, what to do). A process publishes to so many destinations."""

    def close(self) -> None:
        """Close every pooled connection of this process."""

    async def async_close(self) -> None:
        """Close the pooled connections of the running event loop."""


def open_store(url: str, prefix: str, lock_wait: timedelta, pool: int = 16) -> Store:
    """The store behind a URL; `pool` is how many connections its short work may share, where the database has many."""
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from onceward.stores.sqlite.store import SqliteStore  # noqa: PLC0415 - drivers load on demand

        return SqliteStore(url, prefix, lock_wait)
    if scheme in ("postgresql", "postgres"):
        try:
            from onceward.stores.postgres.store import PostgresStore  # noqa: PLC0415 - drivers load on demand
        except ImportError as error:
            message = "PostgreSQL needs its driver: pip install 'onceward[postgres]'"
            raise ConfigurationError(message) from error
        return PostgresStore(url, prefix, pool)
    raise ConfigurationError(
        f"no store for {scheme!r} URLs; use sqlite:///path, sqlite:// (memory) or postgresql://..."
    )
