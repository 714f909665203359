"""Wanted: what consumers get of a batch of deliveries, and which of it runs in which transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from onceward.errors import HandlerNotFound
from onceward.message import Delivery
from onceward.registry import Handler
from onceward.steps.context import Catalog, Context
from onceward.steps.rows import Target, Targets, new_row, targets
from onceward.stores.moves.ledger import NewRow


class Wanted(NamedTuple):
    """A delivery as one consumer gets it."""

    nth: int
    """Which of the deliveries."""
    delivery: Delivery
    target: Target
    row: NewRow
    handler: Handler | None
    """Who runs it now; None: it is queued."""

    @property
    def ordinal(self) -> int:
        """Which of the rows."""
        return self.row["ordinal"]


class _Found(NamedTuple):
    """A consumer of a delivery, and who would run that."""

    nth: int
    target: Target
    handler: Handler | None
    is_async: bool | None
    """Of which kind the handlers of its type are; None: it has none here."""


def wanted_by(context: Context, catalog: Catalog, delivery: Delivery, consumer: str) -> Wanted | None:
    """What one consumer gets of a delivery; None where it does not want it."""
    for target in targets(context, catalog, delivery):
        if target.consumer == consumer:
            row = new_row(0, delivery, target, catalog.names[delivery.source])
            handler = _found(context, 0, delivery, target).handler
            handler = handler or context.registry.of_type(consumer, delivery.type)  # by whose policy it is charged
            runs = row["unplaced"] is None and not _is_paused(catalog, consumer, delivery.type)
            return Wanted(0, delivery, target, row, handler if runs else None)
    return None


def plan(
    context: Context, catalog: Catalog, deliveries: Sequence[Delivery], *, is_async: bool, rest: bool
) -> list[Wanted]:
    """What consumers get in the transaction of handlers of one kind; with the `rest`, what neither kind runs."""
    consumers = Targets(context, catalog)
    found = [
        _found(context, nth, delivery, target)
        for nth, delivery in enumerate(deliveries)
        for target in consumers.of(delivery)
    ]
    mixed = _mixed_keys(found)
    wanted: list[Wanted] = []
    for nth, target, handler, kind in found:
        is_mine = kind == is_async
        is_apart = target.key_hash in mixed  # in the order of the batch, which two transactions do not keep
        if (is_mine and not is_apart) or (rest and (kind is None or is_apart)):
            delivery = deliveries[nth]
            row = new_row(len(wanted), delivery, target, catalog.names[delivery.source])
            runs = is_mine and not is_apart and row["unplaced"] is None and not _is_queued(context, catalog, handler)
            wanted.append(Wanted(nth, delivery, target, row, handler if runs else None))
    return wanted


def that_fits(
    context: Context, catalog: Catalog, delivery: Delivery, fits: Callable[[Handler], bool], *, keyed: bool = True
) -> list[Wanted]:
    """What all consumers get of a delivery where some handlers can run; without `keyed`, none of a key."""
    wanted = []
    for ordinal, target in enumerate(targets(context, catalog, delivery)):
        handler = _found(context, 0, delivery, target).handler
        row = new_row(ordinal, delivery, target, catalog.names[delivery.source])
        runs = row["unplaced"] is None and (keyed or row["key_hash"] is None)
        runs = runs and not _is_for_a_worker(context, catalog, handler) and handler is not None and fits(handler)
        wanted.append(Wanted(0, delivery, target, row, handler if runs else None))
    return wanted


def _is_queued(context: Context, catalog: Catalog, handler: Handler | None) -> bool:
    """Whether a batch leaves messages of a handler to a worker: also those that want a transaction each."""
    return _is_for_a_worker(context, catalog, handler) or (handler is not None and handler.group == 1)


def _is_for_a_worker(context: Context, catalog: Catalog, handler: Handler | None) -> bool:
    """Whether messages of a handler wait for a worker."""
    if handler is None or context.clock() < catalog.store_first_until:  # a process has died of one like these
        return True
    if _is_paused(catalog, handler.consumer, handler.type):
        return True
    return bool(handler.outside) or handler.is_paused or handler in context.calls_once


def _is_paused(catalog: Catalog, consumer: str, message_type: str) -> bool:
    """Whether an operator has stopped it: then its messages are queued."""
    return bool(catalog.pauses.rows) and catalog.pauses.handling(consumer, message_type) is not None


def _found(context: Context, nth: int, delivery: Delivery, target: Target) -> _Found:
    registry = context.registry
    of_type = registry.of_type(target.consumer, delivery.type)
    try:
        handler = registry.find(target.consumer, delivery.type, delivery.version)[0] if of_type else None
    except HandlerNotFound:
        handler = None
    return _Found(nth, target, handler, None if of_type is None else (handler or of_type).is_async)


def _mixed_keys(found: Iterable[_Found]) -> set[int]:
    """The keys that handlers of both kinds share."""
    kinds: dict[int, set[bool]] = {}
    for one in found:
        if one.target.key_hash is not None and one.is_async is not None:
            kinds.setdefault(one.target.key_hash, set()).add(one.is_async)
    return {key for key, both in kinds.items() if len(both) > 1}
