"""What `message.once` does: runs `steps/effect.py` on connections of its own, outside of the handler's transaction.

It has one only while it records something: the call itself may take long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

from onceward.errors import ContractViolation, NeedsAlone, OutcomeUnknown
from onceward.flow import Do, Outcome, run_async
from onceward.message import Message
from onceward.runtime.runner import apart, one_async
from onceward.steps.effect import guarded
from onceward.steps.lane import Lane
from onceward.stores.protocol import Store


def sync_effects(lane: Lane, store: Store, is_idle: Callable[[], bool]) -> Callable[..., Any]:
    """`message.once` for `def` handlers of a lane; `is_idle`: the handler's transaction has not begun."""

    def once(message: Message, name: str, call: Callable[[], Any], idempotent: bool | timedelta) -> Any:  # noqa: FBT001 - internal
        _check(lane, store, name, is_idle)
        try:
            return apart(store, lambda: _step(lane, message, name, call, idempotent=idempotent))
        except OutcomeUnknown as error:
            lane.unknown = str(error)
            raise

    return once


def async_effects(lane: Lane, store: Store, is_idle: Callable[[], bool]) -> Callable[..., Awaitable[Any]]:
    """`message.once` for `async def` handlers of a lane: awaited, and its call may be awaitable."""

    async def once(message: Message, name: str, call: Callable[[], Any], idempotent: bool | timedelta) -> Any:  # noqa: FBT001
        _check(lane, store, name, is_idle)

        try:
            step = _step(lane, message, name, call, idempotent=idempotent)
            return await run_async(step, partial(one_async, store), {Do: _awaited})
        except OutcomeUnknown as error:
            lane.unknown = str(error)
            raise

    return once


def _step(lane: Lane, message: Message, name: str, call: Callable[[], Any], *, idempotent: bool | timedelta) -> Any:
    return guarded(lane.context, lane.worker(), message, name, call, idempotent=idempotent)


def _check(lane: Lane, store: Store, name: str, is_idle: Callable[[], bool]) -> None:
    lane.called_once = True
    if not lane.alone:
        lane.needs_alone = True
        raise NeedsAlone
    if not store.single_writer or is_idle():
        return
    if lane.receiving:
        lane.needs_alone = True
        raise NeedsAlone
    raise ContractViolation(
        f"once({name!r}) was called after the handler had used tx. SQLite has one writer, and the record of the call "
        "must be committed before the handler's transaction begins: call once() before the first use of tx"
    )


async def _awaited(request: Do) -> Outcome:
    try:
        value = request.call()
        return Outcome(value=await value if isinstance(value, Awaitable) else value)
    except Exception as error:  # noqa: BLE001 - handed back to the step
        return Outcome(error=error)
