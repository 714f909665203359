"""Effect: an external call with its intent recorded before and its result after, each in a transaction of its own.

Invariant: when a call was made, there is a committed row that says so, whatever becomes of the handler's transaction.
A row without a result means that nobody knows whether the call happened.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from onceward.domain import payload
from onceward.errors import ContractViolation, OutcomeUnknown
from onceward.flow import Do, Flow, Outcome, Query
from onceward.message import Message
from onceward.retry import Retry
from onceward.steps.context import Context, once

DAY = timedelta(days=1)
"""How long the other side is taken to remember an idempotency key, unless the handler knows better."""


def guarded(  # noqa: PLR0913 - what an effect is made of
    context: Context, worker: int, message: Message, name: str, call: Callable[[], Any], *, idempotent: bool | timedelta
) -> Flow[Any]:
    """Make the call unless it was made; answers its result, the recorded one on a retry."""
    key = message.idempotency_key(name)
    earlier = yield from _intend(context, worker, message, name, key)
    if earlier:
        done, result, age = earlier
        if done:
            return None if result is None else payload.decode_text(result)
        if not _is_remembered(idempotent, age):
            raise OutcomeUnknown(unknown(name, message))
    outcome: Outcome = yield Do(call)
    if isinstance(outcome.error, Retry):  # the caller knows that it did not happen
        yield from once(context, Query("effect_undone", {"key": key}))
    if outcome.error is not None:
        raise outcome.error
    yield from _record(context, key, name, outcome.value)
    return outcome.value


def _intend(
    context: Context, worker: int, message: Message, name: str, key: str
) -> Flow[tuple[bool, str | None, float] | None]:
    """Record the intent; answers what an earlier attempt left instead, if there is something."""
    while True:
        (fresh,) = yield from once(
            context, Query("intend", {"key": key, "seq": message.seq, "name": name, "worker": worker})
        )
        if fresh:
            return None
        (rows,) = yield from once(context, Query("effect", {"key": key, "seq": message.seq}))
        if rows:
            done, result, age = rows[0]
            return done, result, age
        # Between the two, somebody said that it did not happen and took the row away: there is no intent yet.


def _is_remembered(idempotent: bool | timedelta, age: float) -> bool:  # noqa: FBT001 - as `once` was told
    """Whether the other side still knows the key of a call begun so many seconds ago, and so can tell a repetition."""
    memory = idempotent if isinstance(idempotent, timedelta) else DAY * idempotent
    # Begun in the future: the clock was set back, and how long ago it truly was nobody knows.
    return timedelta(0) <= timedelta(seconds=age) < memory


def _record(context: Context, key: str, name: str, value: Any) -> Flow[None]:
    try:
        text, problem = payload.encode_text(value), None
    except (TypeError, ValueError, RecursionError) as error:
        text, problem = "null", error
    yield from once(context, Query("effect_done", {"key": key, "result": text}))
    if problem:
        raise ContractViolation(
            f"once({name!r}) returned {type(value).__name__}, which cannot be recorded ({problem}); it has happened, "
            "but its result is lost. Return JSON-able data"
        )


def unknown(name: str, message: Message) -> str:
    """What a person must decide."""
    return (
        f"{name!r} of message {message.id!r} was begun by an earlier attempt, and nobody knows whether it happened. "
        "Look at the other side, then say so: inbox.admin.settle_effect(seq, name, happened=True or False), and redrive"
    )
