"""Adopt: ids of messages that were handled before onceward was there, so that copies of them are duplicates.

Invariant: an id that onceward knows stays as it is, so an import may be repeated, and may run beside live receives: of
an id that is imported and received at the same moment, one row stands, and the other finds it. An imported id is a
finished message without a body; as its bytes are not known, every delivery under it is a copy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from onceward.domain import identity
from onceward.errors import ConfigurationError
from onceward.flow import Flow
from onceward.registry import OUTBOX
from onceward.steps.context import Catalog, Context, know_names, load_catalog
from onceward.stores.moves.ledger import ImportedId


class HandledId(NamedTuple):
    """A message that was handled elsewhere."""

    id: str
    age: int
    """How many microseconds ago, as far as that is known."""


def consumers_of(context: Context) -> Flow[list[str]]:
    """Who may get a copy of an old message: the service, and every consumer that this program or the database knows."""
    yield from load_catalog(context, context.cache)
    subscribed = {one.consumer for one in context.cache.catalog.subscriptions.values() if not one.retired}
    registered = {handler.consumer for handler in context.registry if not handler.external}
    return sorted({context.service, *subscribed, *registered} - {OUTBOX})


def adopt(context: Context, source: str, consumers: Collection[str], ids: Sequence[HandledId]) -> Flow[int]:
    """Remember ids for each of the consumers, in one transaction; returns how many rows were new."""
    yield from know_names(context, context.cache, {source, *consumers})
    rows = _rows(context.cache.catalog, source, consumers, ids)
    return (yield from context.moves.ledger.import_ids(rows)) if rows else 0


def known_ids(context: Context, source: str, consumers: Collection[str], ids: Sequence[HandledId]) -> Flow[int]:
    """How many rows of `adopt` are there already; writes nothing, not even names."""
    catalog = context.cache.catalog
    named = [consumer for consumer in consumers if consumer in catalog.names]
    if source not in catalog.names or not named:
        return 0
    rows = _rows(catalog, source, named, ids)
    return (yield from context.moves.ledger.count_known(rows)) if rows else 0


def check_consumers(consumers: Collection[str]) -> None:
    """Refuse names that no message is received for."""
    for consumer in consumers:
        if identity.check_name("consumer", consumer) == OUTBOX:
            raise ConfigurationError(f"{OUTBOX!r} is the relay of outgoing messages: ids cannot be imported for it")


def _rows(catalog: Catalog, source: str, consumers: Collection[str], ids: Sequence[HandledId]) -> list[ImportedId]:
    # In the order in which receives insert, so that whatever overlaps cannot deadlock.
    wanted = sorted(
        (catalog.names[consumer], identity.stored_id(one.id), identity.slot(one.id), one.age)
        for consumer in consumers
        for one in ids
    )
    number = catalog.names[source]
    return [
        {"ordinal": ordinal, "consumer": consumer, "source": number, "stored_id": stored, "slot": slot, "age": age}
        for ordinal, (consumer, stored, slot, age) in enumerate(wanted)
    ]
