"""Effect: an external call with its intent recorded before and its result after, each in a transaction of its own.

Invariant: when a call was made, there is a committed row that says so, whatever becomes of the handler's transaction.
A row without a result means that it is unknown whether the call happened.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from onceward.domain import payload
from onceward.errors import ContractViolation, OutcomeUnknown
from onceward.flow import Do, Flow, Outcome
from onceward.message import Message
from onceward.retry import Retry
from onceward.steps.context import Context
from onceward.stores.moves.effects import Intend

DAY = timedelta(days=1)
"""How long the other side is taken to remember an idempotency key, unless the handler knows better."""


def guarded(  # noqa: PLR0913 - what an effect is made of
    context: Context, worker: int, message: Message, name: str, call: Callable[[], Any], *, idempotent: bool | timedelta
) -> Flow[Any]:
    """Make the call unless it was made; returns its result, the recorded one on a retry."""
    key = message.idempotency_key(name)
    earlier = yield from context.moves.effects.intend(Intend(key, message.seq, name, worker))
    if earlier:
        if earlier.done:
            return None if earlier.result is None else payload.decode_text(earlier.result)
        if not _is_remembered(idempotent, earlier.age):
            raise OutcomeUnknown(unknown(context, name, message))
    outcome: Outcome = yield Do(call)
    if isinstance(outcome.error, Retry):  # the caller knows that it did not happen
        yield from context.moves.effects.forget_intent(key)
    if outcome.error is not None:
        raise outcome.error
    yield from _record(context, key, name, outcome.value)
    return outcome.value


def _is_remembered(idempotent: bool | timedelta, age: float) -> bool:  # noqa: FBT001 - as `once` was told
    """Whether the other side still knows the key of a call begun so many seconds ago, and so can tell a repetition."""
    memory = idempotent if isinstance(idempotent, timedelta) else DAY * idempotent
    # Begun in the future: the clock was set back, and how long ago it truly was is unknown.
    return timedelta(0) <= timedelta(seconds=age) < memory


def _record(context: Context, key: str, name: str, value: Any) -> Flow[None]:
    try:
        text, problem = payload.encode_text(value), None
    except (TypeError, ValueError, RecursionError) as error:
        text, problem = "null", error
    yield from context.moves.effects.record_effect(key, text)
    if problem:
        raise ContractViolation(
            f"message.once({name!r}): the call returned {type(value).__name__}, which cannot be recorded ({problem}). "
            "It has happened, but its result is lost. Return JSON-able data"
        )


def unknown(context: Context, name: str, message: Message) -> str:
    """What an operator must decide."""
    settle = context.hint("effects settle", message.seq, shlex.quote(name), "happened --reason TEXT")
    return (
        f"{name!r} of message {message.id!r} was begun by an earlier attempt, and whether it happened is unknown. "
        f"Look at the other side, record it (in Python: inbox.admin.settle_effect), and redrive the message: {settle} "
        "(or did-not-happen)"
    )
