"""Runs a step on a pooled session, and again when that fails for a reason that may have passed.

The first connection may be stale: then once. Or the database asks for a repetition, for two transactions met: a few
times, for on some databases those who are repeated meet again. Repeating is safe because every step is: what the first
try committed is found by the second.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from onceward.deferred import asyncio
from onceward.errors import StoreBusy, StoreConflict, StoreError, StoreUnavailable
from onceward.flow import AfterCommit, Around, Do, Flow, Outcome, Outside, Wait, done, run_async, run_sync
from onceward.stores.protocol import AsyncSession, Session, Store

log = logging.getLogger("onceward")

T = TypeVar("T")

CONFLICTS = 4
"""How often a step is repeated that met another transaction: all of it was undone, and no message is charged."""
_AFTER_COMMIT_FAILED = "a call of message.after_commit() failed; its message is finished, and the call is not repeated"


def rest(request: Wait) -> None:
    """Wait, in a thread that nothing else needs."""
    time.sleep(request.seconds)


async def rest_async(request: Wait) -> None:
    """As `rest`, awaited."""
    await asyncio.sleep(request.seconds)


async def done_async(request: Do) -> Outcome:
    """Make a call that a step has asked for, in a thread."""
    return await asyncio.to_thread(done, request)


async def around_async(request: Around) -> Outcome:
    """Make a call that a step has asked for, where the handlers run."""
    try:
        value = request.call()
        return Outcome(value=await value if isinstance(value, Awaitable) else value)
    except Exception as error:  # noqa: BLE001 - handed back to the step
        return Outcome(error=error)


def call_after(request: AfterCommit) -> None:
    """Make the calls that handlers have asked for once their transaction is committed."""
    for call in request.calls:
        try:
            call()
        except Exception:
            log.exception(_AFTER_COMMIT_FAILED)


async def call_after_async(request: AfterCommit) -> None:
    """As `call_after`, where the handlers ran."""
    for call in request.calls:
        try:
            value = call()
            if isinstance(value, Awaitable):
                await value
        except Exception:
            log.exception(_AFTER_COMMIT_FAILED)


OUTSIDE: Outside = MappingProxyType({Do: done, Around: done, AfterCommit: call_after, Wait: rest})
"""What performs the requests that are not for a session, in a thread."""
OUTSIDE_ASYNC: Outside = MappingProxyType(
    {Do: done_async, Around: around_async, AfterCommit: call_after_async, Wait: rest_async}
)
"""As `OUTSIDE`, for tasks."""


class _Tries:
    """How often a step has failed, and why."""

    def __init__(self) -> None:
        self._lost = self._met = 0

    def pause(self, error: StoreError) -> float:
        """For how many seconds to wait before it is tried again; raises the error where that is no use."""
        if isinstance(error, StoreConflict):
            self._met += 1
        else:
            self._lost += 1
        if isinstance(error, StoreBusy) or self._lost > 1 or self._met > CONFLICTS:
            raise error
        return random.uniform(0, 0.002 * self._met**2)  # noqa: S311 - spreads load, keeps no secret


def perform(store: Store, step: Callable[[], Flow[T]], outside: Callable[[Session], Outside] | None = None) -> T:
    """Run a step; `outside` gives what performs some of its requests in place of the session."""
    tries: _Tries | None = None
    while True:
        try:
            with store.session() as session:
                return run_sync(step(), session.perform, outside(session) if outside else OUTSIDE)
        except (StoreUnavailable, StoreConflict) as error:
            tries = tries or _Tries()
            pause = tries.pause(error)
        time.sleep(pause)


async def perform_async(
    store: Store, step: Callable[[], Flow[T]], outside: Callable[[AsyncSession], Outside] | None = None
) -> T:
    """As `perform`, awaited."""
    tries: _Tries | None = None
    while True:
        try:
            async with store.async_session() as session:
                return await run_async(step(), session.perform, outside(session) if outside else OUTSIDE_ASYNC)
        except (StoreUnavailable, StoreConflict) as error:
            tries = tries or _Tries()
            pause = tries.pause(error)
        await asyncio.sleep(pause)


def apart(store: Store, step: Callable[[], Flow[T]]) -> T:
    """Run a step that is mostly calls; it holds a session only for a request that needs one, which is a whole one."""
    return run_sync(step(), partial(one, store), OUTSIDE)


def one(store: Store, request: Any) -> Any:
    """Perform a request that is a whole transaction."""
    return perform(store, lambda: _alone(request))


async def one_async(store: Store, request: Any) -> Any:
    """As `one`, awaited."""
    return await perform_async(store, lambda: _alone(request))


def _alone(request: Any) -> Flow[Any]:
    return (yield request)
