"""Callers: a session inside a transaction that is the caller's own, begun with the driver or with a library above it.

Packages name theirs by the class that `tx=` then may be, as entries of the group `onceward.callers`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, NamedTuple, Protocol, TypeGuard, TypeVar

from onceward.errors import ConfigurationError
from onceward.stores.protocol import AsyncSession, Session, Store

GROUP = "onceward.callers"
S = TypeVar("S", Session, AsyncSession)


class Lent(NamedTuple, Generic[S]):
    """A caller's transaction, in which handlers may run."""

    session: S
    after_commit: Callable[[Callable[[], Any]], Any] | None = None
    """Makes a call once the caller has committed; None where nothing tells when that is."""
    is_over: Callable[[], bool] | None = None
    """Whether the caller has ended it, and perhaps given its connection to others, as the commit of a Session does."""
    is_drivers: bool = True
    """What handlers get is a connection of the store's own driver; else it is only for what is made of one."""


class Caller(Protocol):
    """Finds the transaction behind what a caller has."""

    def join(self, store: Store, tx: Any) -> Session:
        """A session inside it; raises `ConfigurationError` where there is none to join."""

    async def async_join(self, store: Store, tx: Any) -> AsyncSession:
        """As `join`, for a caller on an event loop."""

    def lend(self, store: Lender, tx: Any) -> Lent[Session]:
        """As `join`, where handlers are to run in it."""

    async def async_lend(self, store: Lender, tx: Any) -> Lent[AsyncSession]:
        """As `lend`, for a caller on an event loop."""


class Lender(Store, Protocol):
    """A store that lets handlers run in a caller's transaction."""

    def lend(self, tx: Any) -> Session:
        """As `join`; `Begin`, `Commit` and `Rollback` are those of a savepoint (`stores/inside.py`)."""

    async def async_lend(self, tx: Any) -> AsyncSession:
        """As `lend`, for an async connection."""


def join(store: Store, tx: Any) -> Session:
    """A session inside the caller's own transaction."""
    caller = _caller(type(tx).__mro__, store.connections)
    return store.join(tx) if caller is None else caller.join(store, tx)


async def async_join(store: Store, tx: Any) -> AsyncSession:
    """As `join`, for a caller on an event loop."""
    caller = _caller(type(tx).__mro__, store.connections)
    return store.async_join(tx) if caller is None else await caller.async_join(store, tx)


def lend(store: Store, tx: Any) -> Lent[Session]:
    """The caller's own transaction, for handlers."""
    caller = _caller(type(tx).__mro__, store.connections)
    if not _lends(store):
        raise _no_lender(store, "receive")
    return Lent(store.lend(tx)) if caller is None else caller.lend(store, tx)


async def async_lend(store: Store, tx: Any) -> Lent[AsyncSession]:
    """As `lend`, for a caller on an event loop."""
    caller = _caller(type(tx).__mro__, store.connections)
    if not _lends(store):
        raise _no_lender(store, "areceive")
    return Lent(await store.async_lend(tx)) if caller is None else await caller.async_lend(store, tx)


def _lends(store: Store) -> TypeGuard[Lender]:
    return hasattr(store, "lend")


def _no_lender(store: Store, instead: str) -> ConfigurationError:
    return ConfigurationError(
        f"handlers cannot run in a transaction of yours on {store.dialect}, so nothing was stored; call "
        f"{instead}(..., tx=...), and a worker handles it"
    )


@lru_cache(maxsize=64)
def _caller(classes: tuple[type, ...], connections: tuple[str, str]) -> Caller | None:
    """What knows a class; None for a connection of the driver, and for what is not known: the store refuses that."""
    names = {f"{one.__module__}.{one.__qualname__}" for one in classes}
    if names & set(connections):
        return None
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes longer than all of this module

    return next((one.load() for one in entry_points(group=GROUP) if one.name in names), None)
