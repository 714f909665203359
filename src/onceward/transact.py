"""Runs a step on a pooled session, and once more when that fails for a reason that may have passed.

The first connection may be stale, or the database may ask for a repetition. Repeating is safe because every
step is: what the first try committed is found by the second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from onceward.errors import StoreConflict, StoreUnavailable
from onceward.flow import Flow, run_async, run_sync
from onceward.stores.protocol import AsyncSession, Session, Store

T = TypeVar("T")

Performer = Callable[[Any], Any]


def perform(store: Store, step: Callable[[], Flow[T]], through: Callable[[Session], Performer] | None = None) -> T:
    """Run a step; `through` may wrap the session, to watch what passes."""
    for last in (False, True):
        try:
            with store.session() as session:
                return run_sync(step(), through(session) if through else session.perform)
        except (StoreUnavailable, StoreConflict):
            if last:
                raise
    raise AssertionError("unreachable")


async def perform_async(
    store: Store, step: Callable[[], Flow[T]], through: Callable[[AsyncSession], Performer] | None = None
) -> T:
    """As `perform`, awaited."""
    for last in (False, True):
        try:
            async with store.async_session() as session:
                return await run_async(step(), through(session) if through else session.perform)
        except (StoreUnavailable, StoreConflict):
            if last:
                raise
    raise AssertionError("unreachable")
