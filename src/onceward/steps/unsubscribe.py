"""Unsubscribe: a consumer that was retired gets no further messages.

Invariant: no message is lost in silence. Unfinished messages keep a consumer subscribed unless they are to be
discarded, each with its line in the audit. The subscription stays as `retired`: a receive that has looked at the
catalog before may still store a message for it, which is found and can be discarded like any other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from onceward.errors import ConfigurationError, StoreUnavailable
from onceward.flow import COMMIT, ROLLBACK, Flow, Query
from onceward.registry import OUTBOX
from onceward.steps.context import Context, Introduction, load_catalog, look, once
from onceward.steps.introduce import in_the_way, lock_catalog
from onceward.steps.operate import discard

SOME = 500
PATIENT = Introduction(tries=10)
"""Waits for callers' transactions as long as `lock_wait` allows, once."""


class Subscribed(NamedTuple):
    """A type that a consumer is subscribed to, or was."""

    type: str
    unfinished: int
    """Its messages that are not finished, whatever their state."""
    retired: bool
    id: int


def subscribed(context: Context, consumer: str, kind: str | None) -> Flow[list[Subscribed]]:
    """What a consumer is subscribed to; what it was, only while unfinished messages are left of it."""
    (rows,) = yield from look(context, Query("subscribed", {"consumer": consumer, "type": kind}))
    found = [Subscribed(name, number, bool(retired), key) for name, number, retired, key in rows]
    return [one for one in found if one.unfinished or not one.retired]


def unsubscribe(  # noqa: PLR0913 - what an operator decides
    context: Context, consumer: str, kind: str | None, *, discard_unfinished: bool, actor: str, reason: str
) -> Flow[int]:
    """Retire a consumer, or its subscription to a type; answers how many messages were discarded."""
    if consumer == OUTBOX:
        raise ConfigurationError("the relay of outgoing messages cannot be unsubscribed; remove its sinks instead")
    state = Introduction(tries=PATIENT.tries)
    if not (yield from lock_catalog(context, state)):
        raise StoreUnavailable(f"{consumer!r} cannot be unsubscribed now. {(yield from in_the_way(context))}")
    rows: list[Any] = yield Query("subscribed", {"consumer": consumer, "type": kind})
    unfinished = sum(row[1] for row in rows)
    if unfinished and not discard_unfinished:
        yield ROLLBACK
        raise ConfigurationError(
            f"consumer {consumer!r} has {unfinished} unfinished messages. Run its program until they are finished, or "
            "discard them with it: onceward unsubscribe ... --discard"
        )
    ids = [row[3] for row in rows]
    retired = yield Query("retire", {"subscriptions": ids})
    if retired:
        names = ", ".join(sorted(row[0] for row in rows if not row[2]))
        note = f"{consumer}: {names}. {reason}"
        yield Query("add_audit", {"action": "unsubscribe", "seq": 0, "actor": actor, "reason": note})
        yield Query("touch_catalog", {"crash": False})
    yield COMMIT
    yield from load_catalog(context, context.cache)
    return (yield from _discard_all(context, ids, actor=actor, reason=reason)) if unfinished else 0


def _discard_all(context: Context, ids: list[int], *, actor: str, reason: str) -> Flow[int]:
    """Discard what is unfinished, one by one and in order; what is running, or waits behind such, is left."""
    discarded = after = 0
    while True:
        (rows,) = yield from once(
            context, Query("unfinished_of", {"subscriptions": ids, "after": after, "limit": SOME})
        )
        if not rows:
            return discarded
        for (seq,) in rows:
            discarded += yield from discard(context, seq, actor=actor, reason=reason)
        after = rows[-1][0]
