"""Unsubscribe: a consumer that was retired gets no further messages.

Invariant: no message is lost in silence. Unfinished messages keep a consumer subscribed unless they are to be
discarded, each with its line in the audit. The subscription stays as `retired`: a receive that has looked at the
catalog before may still store a message for it, which is found and can be discarded like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from onceward.domain.text import count
from onceward.errors import ConfigurationError, StoreUnavailable
from onceward.flow import Flow
from onceward.registry import OUTBOX
from onceward.steps.context import Context, load_catalog
from onceward.steps.introduce import catalog_wait, in_the_way
from onceward.steps.operate import discard
from onceward.stores.moves.catalog import Retire, Subscribed

SOME = 500
PATIENT = 10
"""As after so many tries: waits for callers' transactions as long as `lock_wait` allows."""


def subscribed(context: Context, consumer: str, kind: str | None) -> Flow[list[Subscribed]]:
    """What a consumer is subscribed to; what it was, only while unfinished messages are left of it."""
    found = yield from context.moves.catalog.subscribed(consumer, kind)
    return [one for one in found if one.unfinished or not one.retired]


def unsubscribe(  # noqa: PLR0913 - what an operator decides
    context: Context, consumer: str, kind: str | None, *, discard_unfinished: bool, actor: str, reason: str
) -> Flow[int]:
    """Retire a consumer, or its subscription to a type; returns how many messages were discarded."""
    if consumer == OUTBOX:
        raise ConfigurationError("the relay of outgoing messages cannot be unsubscribed; remove its sinks instead")
    wait = catalog_wait(context, PATIENT)
    request = Retire(consumer, kind, discard_unfinished, wait, actor, reason)
    ended = yield from context.moves.catalog.retire(request)
    if ended is None:
        raise StoreUnavailable(f"{consumer!r} cannot be unsubscribed now. {(yield from in_the_way(context))}")
    if ended.unfinished and not discard_unfinished:
        words = [consumer, kind] if kind else [consumer]
        raise ConfigurationError(
            f"consumer {consumer!r} has {count(ended.unfinished, 'unfinished message')}. Run its program until none is "
            f"left, or discard them with it: {context.hint('unsubscribe', *words, '--discard --reason TEXT')}"
        )
    yield from load_catalog(context, context.cache)
    if not ended.unfinished:
        return 0
    return (yield from _discard_all(context, ended.subscriptions, actor=actor, reason=reason))


def _discard_all(context: Context, subscriptions: Sequence[int], *, actor: str, reason: str) -> Flow[int]:
    """Discard what is unfinished, one by one and in order; what is running, or waits behind such, is left."""
    discarded = after = 0
    while seqs := (yield from context.moves.catalog.unfinished_of(subscriptions, after, SOME)):
        for seq in seqs:
            discarded += yield from discard(context, seq, actor=actor, reason=reason)
        after = seqs[-1]
    return discarded
