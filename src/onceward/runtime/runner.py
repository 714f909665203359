"""Runs a step on a pooled session, and once more when that fails for a reason that may have passed.

The first connection may be stale, or the database may ask for a repetition. Repeating is safe because every
step is: what the first try committed is found by the second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from onceward.deferred import asyncio
from onceward.errors import StoreBusy, StoreConflict, StoreUnavailable
from onceward.flow import Do, Flow, done, run_async, run_sync
from onceward.steps.context import Try
from onceward.stores.protocol import AsyncSession, Session, Store

T = TypeVar("T")

Performer = Callable[[Any], Any]


def repeatable(step: Callable[[Try | None], Flow[T]], clock: Callable[[], float]) -> Callable[[], Flow[T]]:
    """A step that is told, when it is repeated, when its first try was, by the clock; the first is told None."""
    tries: list[Try] = []

    def one_try() -> Flow[T]:
        began = clock()
        try:
            return (yield from step(tries[0] if tries else None))
        except BaseException:
            tries.append(Try(began, clock()))
            raise

    return one_try


def performer(session: Session) -> Performer:
    """What performs the requests of a step: the session, but for calls that are outside of any transaction."""
    return lambda request: done(request) if isinstance(request, Do) else session.perform(request)


def async_performer(session: AsyncSession) -> Callable[[Any], Awaitable[Any]]:
    """As `performer`, awaited; a call is made in a thread."""

    async def perform_one(request: Any) -> Any:
        return await (asyncio.to_thread(done, request) if isinstance(request, Do) else session.perform(request))

    return perform_one


def perform(store: Store, step: Callable[[], Flow[T]], through: Callable[[Session], Performer] | None = None) -> T:
    """Run a step; `through` may wrap the session, to watch what passes."""
    for last in (False, True):
        try:
            with store.session() as session:
                return run_sync(step(), (through or performer)(session))
        except StoreBusy:
            raise
        except (StoreUnavailable, StoreConflict):
            if last:
                raise
    raise AssertionError("unreachable")


def apart(store: Store, step: Callable[[], Flow[T]]) -> T:
    """Run a step that is mostly calls; it holds a session only for a request that needs one, which is a whole one."""
    return run_sync(step(), lambda request: done(request) if isinstance(request, Do) else one(store, request))


def one(store: Store, request: Any) -> Any:
    """Perform a request that is a whole transaction."""
    return perform(store, lambda: _alone(request))


async def one_async(store: Store, request: Any) -> Any:
    """As `one`, awaited."""
    return await perform_async(store, lambda: _alone(request))


def _alone(request: Any) -> Flow[Any]:
    return (yield request)


async def perform_async(
    store: Store, step: Callable[[], Flow[T]], through: Callable[[AsyncSession], Performer] | None = None
) -> T:
    """As `perform`, awaited."""
    for last in (False, True):
        try:
            async with store.async_session() as session:
                return await run_async(step(), (through or async_performer)(session))
        except StoreBusy:
            raise
        except (StoreUnavailable, StoreConflict):
            if last:
                raise
    raise AssertionError("unreachable")
