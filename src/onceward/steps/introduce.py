"""Introduce: tell the database what this process handles and where it gets messages from.

Invariant: what is there already is only read, and a change is made in a short transaction of its own. Receiving
inside a caller's transaction holds the catalog until that ends (`join.py`), so a change finds those messages committed
or is found by them. It does not wait for them for long: what cannot be written yet is `pending` and is tried again,
and everything else goes on meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from onceward.errors import StoreUnavailable
from onceward.flow import Flow
from onceward.registry import ANY_TYPE, OUTBOX
from onceward.steps.context import Cache, Catalog, Context, know_names, load_catalog
from onceward.steps.prune import declare_sources
from onceward.stores.moves.catalog import Holder, NewSubscription

log = logging.getLogger("onceward")

FIRST_WAIT = 0.05
"""How many seconds the first try waits for callers' transactions. Those that want to begin wait behind it; so each try
waits twice as long as the one before, up to `lock_wait`, and comes as much later."""
LONGEST_PAUSE = 30.0
MOST_TRIES = 6
"""So often it is tried in a row while only others that introduce themselves are in the way."""

Wanted = dict[tuple[str, str], NewSubscription]


def introduce(context: Context, types: Collection[str] = (), *, anew: bool = False) -> Flow[None]:
    """Tell the database about this process's handlers and sources, once; `types` are those about to be received."""
    state, declared = context.introduction, context.registry.declared
    if anew or state.declared != declared:
        yield from subscribe(context, context.cache)
        yield from declare_sources(context, context.cache)
        state.declared = declared
    elif state.pending and context.clock() >= state.again_at:
        yield from subscribe(context, context.cache, state.pending)
    if state.pending:
        refuse_pending(context, types)


def stay_introduced(context: Context) -> Flow[int]:
    """Now and then, while a process runs: tell what is pending, and again what the database has lost; how much that is.

    That is all it has told, where the catalog is as it was before; else what is not there at all, for subscriptions are
    retired and never removed. What others have changed or retired since then stays so.
    """
    yield from introduce(context)
    version = yield from context.moves.catalog.catalog_version()
    if version != context.cache.catalog.version:
        yield from load_catalog(context, context.cache)
    pending, before = context.introduction.pending, context.introduction.before
    lost = _told_of(context) - pending
    if pending or version not in before:
        lost -= {(known.consumer, known.type) for known in context.cache.catalog.subscriptions.values()}
    if lost:
        log.warning("the database has lost subscriptions of this process, which are written again: %s", _named(lost))
        yield from subscribe(context, context.cache, lost | pending)
        yield from declare_sources(context, context.cache)
    return len(lost)


def refuse_pending(context: Context, types: Collection[str]) -> None:
    """Refuse what others would get and our own handler would not: once it is stored, it would not be noticed."""
    for consumer, kind in sorted(context.introduction.pending):
        if kind in types and kind in context.cache.catalog.by_type:
            raise StoreUnavailable(
                f"consumer {consumer!r} is not subscribed to {kind!r} yet: a transaction that stored messages with tx= "
                "is still open, and the log names it. Try again when it has ended"
            )


def subscribe(context: Context, cache: Cache, only: Collection[tuple[str, str]] | None = None) -> Flow[None]:
    """Write this process's handlers, or some, into the subscriptions, as far as they are not there as they are."""
    yield from load_catalog(context, cache)
    consumers = {handler.consumer for handler in context.registry if not handler.external}
    yield from know_names(context, cache, {context.service, OUTBOX, *consumers})
    missing = _missing(context, cache.catalog, only)
    while missing and not (yield from _write(context, missing)):
        holders = yield from context.moves.catalog.holders()
        yield from load_catalog(context, cache)
        missing = _missing(context, cache.catalog, only)
        if missing and (holders or context.introduction.tries >= MOST_TRIES):
            _set_pending(context, missing, holders)
            return
        # Nobody stores with tx=: another thread or program was introducing itself, and has perhaps written the same.
    if missing:
        yield from load_catalog(context, cache)
    context.introduction.pending, context.introduction.tries = frozenset(), 0


def _told_of(context: Context) -> set[tuple[str, str]]:
    """The consumers and types that a process subscribes to; all destinations of the relay have one subscription."""
    return {(OUTBOX, ANY_TYPE), *((one.consumer, one.type) for one in context.registry if not one.external)}


def _missing(context: Context, catalog: Catalog, only: Collection[tuple[str, str]] | None) -> Wanted:
    there = {
        (known.consumer, known.type): (
            known.key_path,
            known.key_function,
            known.sequence,
            known.on_dead,
            known.aggregate,
        )
        for known in catalog.subscriptions.values()
        if not known.retired
    }
    wanted = {(OUTBOX, ANY_TYPE): _columns(catalog, OUTBOX, ANY_TYPE)}
    for handler in context.registry:
        if handler.external:
            continue
        wanted[handler.consumer, handler.type] = _columns(
            catalog,
            handler.consumer,
            handler.type,
            key_path=handler.key if isinstance(handler.key, str) else None,
            key_function=callable(handler.key),
            sequence=handler.sequence,
            on_dead=handler.on_dead,
            aggregate=handler.aggregate,
        )
    return {
        name: row
        for name, row in wanted.items()
        if there.get(name) != tuple(row.values())[2:] and (only is None or name in only)
    }


def _columns(  # noqa: PLR0913 - the columns of the row
    catalog: Catalog,
    consumer: str,
    kind: str,
    *,
    key_path: str | None = None,
    key_function: bool = False,
    sequence: str | None = None,
    on_dead: str = "block",
    aggregate: str | None = None,
) -> NewSubscription:
    return {
        "consumer": catalog.names[consumer],
        "type": kind,
        "key_path": key_path,
        "key_function": key_function,
        "sequence": sequence,
        "on_dead": on_dead,
        "aggregate": aggregate,
    }


def _write(context: Context, missing: Mapping[tuple[str, str], NewSubscription]) -> Flow[bool]:
    """Write subscriptions; False while others are in the way."""
    state = context.introduction
    before = context.cache.catalog.version
    rows = [row for _, row in sorted(missing.items())]
    wait = catalog_wait(context, state.tries)
    written = yield from context.moves.catalog.subscribe(rows, wait)
    if written:
        state.before.add(before)
    else:
        state.again_at = context.clock() + min(wait * 10, LONGEST_PAUSE)
        state.tries += 1
    return written


def catalog_wait(context: Context, tries: int) -> float:
    """For how many seconds a change of the catalog waits for callers' transactions."""
    return float(min(FIRST_WAIT * 2**tries, context.settings.lock_wait.total_seconds()))


def _set_pending(context: Context, missing: Collection[tuple[str, str]], holders: Sequence[Holder]) -> None:
    context.introduction.pending = frozenset(missing)
    log.warning("not subscribed yet: %s. %s", _named(missing), _told(holders))


def _named(subscriptions: Collection[tuple[str, str]]) -> str:
    return ", ".join(f"{consumer} to {kind}" for consumer, kind in sorted(subscriptions))


def in_the_way(context: Context) -> Flow[str]:
    """A sentence about the transactions that hold the catalog."""
    return _told((yield from context.moves.catalog.holders()))


def _told(holders: Sequence[Holder]) -> str:
    if not holders:
        return "The transactions in the way have ended; it is tried again"
    names = [f"pid {one.pid} ({one.name or 'without application_name'}, open for {one.age:.0f} s)" for one in holders]
    return f"Transactions that stored messages with tx= are open: {', '.join(names)}. It is tried again until they end"
