"""Join: receive inside a transaction of the caller's own, which may stay open for long.

Invariant: until the caller's transaction ends it holds nothing that another receive, another caller or a starting
process waits for. So names and subscriptions are written before, on a connection of their own (`Do`); where there is
one writer the caller is it, and they are written in its transaction. Nothing that was read there is remembered: it may
be rolled back. Who wants what stays as it is from the look at it to the caller's commit (`hold_catalog`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onceward.errors import StoreConflict
from onceward.flow import Do, Flow, Outcome
from onceward.message import Delivery, Receipt
from onceward.steps.context import Cache, Context, know_names, load_catalog
from onceward.steps.introduce import introduce, subscribe
from onceward.steps.prune import declare_sources
from onceward.steps.receive import receive

Apart = Callable[[Callable[[], Flow[None]]], Any]
"""Runs a step on a connection of its own, to its end."""


def join(context: Context, deliveries: Sequence[Delivery], apart: Apart | None) -> Flow[list[Receipt]]:
    """Receive deliveries in the caller's transaction; without `apart` there is no connection beside it."""
    cache, _ = yield from look(context, deliveries, apart)
    return (yield from receive(context, cache, deliveries, joined=True))


def look(context: Context, deliveries: Sequence[Delivery], apart: Apart | None) -> Flow[tuple[Cache, bool]]:
    """Who wants what, from here to the caller's commit; and whether the transaction keeps to a view of its own."""
    sources, types = {one.source for one in deliveries}, {one.type for one in deliveries}
    if apart is None:
        cache = Cache(context.cache.catalog)
        yield from context.moves.catalog.hold_catalog()
        yield from introduce_inside(context, cache)
        return cache, False
    yield from prepare(context, {context.service, *sources}, types, apart)
    keeps_view = yield from context.moves.catalog.hold_catalog()
    if keeps_view:
        yield from _elsewhere(apart, lambda: load_catalog(context, context.cache))
    cache = Cache(context.cache.catalog)
    if keeps_view:
        yield from _keep_to_its_view(context, cache)
    return cache, keeps_view


def prepare(context: Context, names: set[str], types: set[str], apart: Apart, *, anew: bool = False) -> Flow[None]:
    """Make sure, before a caller's transaction is used, that nothing has to be written beside its messages.

    `anew` also where there is nothing to tell: a program without handlers may send.
    """
    state = context.introduction
    is_told = state.declared == context.registry.declared and not state.pending
    if not anew and is_told and names <= context.cache.catalog.names.keys():
        return

    def told() -> Flow[None]:
        yield from introduce(context, types, anew=anew and not state.pending)
        yield from know_names(context, context.cache, names)

    yield from _elsewhere(apart, told)


def introduce_inside(context: Context, cache: Cache) -> Flow[None]:
    """Where the caller is the only writer: what is missing is written with its messages, or rolled back with them."""
    if context.introduction.declared != context.registry.declared:
        yield from subscribe(context, cache)
        yield from declare_sources(context, cache)


def _elsewhere(apart: Apart, step: Callable[[], Flow[None]]) -> Flow[None]:
    outcome: Outcome = yield Do(lambda: apart(step))
    if outcome.error is not None:
        raise outcome.error


def _keep_to_its_view(context: Context, cache: Cache) -> Flow[None]:
    """In REPEATABLE READ the caller sees the catalog of its beginning: refuse to store by it if it has changed."""
    seen = Cache()
    yield from load_catalog(context, seen)
    if seen.catalog.subscriptions != cache.catalog.subscriptions:
        raise StoreConflict(
            "this transaction keeps to a view (REPEATABLE READ or SERIALIZABLE) from before a consumer was added or "
            "changed, and would store messages without it. Roll back and repeat the transaction"
        )
    cache.catalog = cache.catalog._replace(version=seen.catalog.version)
