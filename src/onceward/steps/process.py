"""Process: handle messages now: a batch in one transaction, or one message, each consumer in a transaction of its own.

Invariant: as in `direct.py`. A handler that raises is undone, and its message stored with its first attempt charged, so
the caller may acknowledge either way. These raise only when the store is away or the call is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from onceward.domain.middleware import Surrounding
from onceward.domain.schedule import AT_ONCE
from onceward.errors import ContractViolation, NeedsAlone, StoreConflict, StoreUnavailable
from onceward.flow import RECONNECT, Around, Flow, Outcome, Wait
from onceward.message import Delivery, Receipt
from onceward.registry import Handler
from onceward.steps.attempt import Failed
from onceward.steps.blob import offload, prepare, remove_offloaded
from onceward.steps.context import Catalog, Context, know_names, load_catalog
from onceward.steps.direct import answered, handled, known_receipts, known_unplaced, message_for
from onceward.steps.group import Failure
from onceward.steps.handle import handle
from onceward.steps.isolated import APART
from onceward.steps.lane import Lane, committing
from onceward.steps.receive import look_up, merged
from onceward.steps.stored_first import Undone, failed_receipt, stored_first
from onceward.steps.wanted import Wanted, plan, wanted_by
from onceward.stores.moves.inline import StoreClaimed
from onceward.stores.moves.ledger import Stored

CHANGING = "subscriptions keep changing while a message is processed; try again"


def process_many(
    lane: Lane, deliveries: Sequence[Delivery], *, is_async: bool, rest: bool
) -> Flow[list[list[Receipt]]]:
    """Handle a batch without copies in one transaction: what handlers of this kind get, and the `rest`, if wanted.

    The receipts of each delivery, one for every consumer of that.
    """
    context = lane.context
    lane.raised, lane.began = None, context.clock()
    names = {context.service, *(delivery.source for delivery in deliveries)}
    deliveries = yield from _prepared(context, deliveries, names)
    receipts: dict[tuple[int, int], Receipt] = {}
    for _ in range(5):
        yield from know_names(context, context.cache, names)  # as in `receive`
        catalog = context.cache.catalog
        wanted = plan(context, catalog, deliveries, is_async=is_async, rest=rest)
        left = [one for one in wanted if (one.nth, one.target.consumer_id) not in receipts]
        found = (yield from answered(lane, catalog, left)) if left else {}
        receipts |= {(one.nth, one.target.consumer_id): found[one.ordinal] for one in left if one.ordinal in found}
        if len(found) == len(left):
            break
        yield from load_catalog(context, context.cache)
    else:
        raise StoreConflict(CHANGING)
    if lane.marks:  # there was nothing to be committed with
        yield from context.moves.ledger.keep_positions(lane.marks)
    answers: list[list[Receipt]] = [[] for _ in deliveries]
    for (index, _), receipt in receipts.items():
        answers[index].append(receipt)
    if context.large.store is not None:
        stored = [(one, parts) for one, parts in zip(deliveries, answers, strict=True) if parts]
        yield from remove_offloaded(context, [one for one, _ in stored], [merged(parts) for _, parts in stored])
    return answers


def process(lane: Lane, delivery: Delivery, *, is_async: bool) -> Flow[dict[str, Receipt]]:
    """Handle a delivery now, for each consumer whose handler is of this kind, each in its own transaction.

    What is not due yet is handled for none: it is to be stored.
    """
    context = lane.context
    lane.raised, lane.began = None, context.clock()
    if delivery.due != AT_ONCE:
        return {}
    names = {context.service, delivery.source}
    (delivery,) = yield from _prepared(context, [delivery], names)
    receipts = {}
    for subscription in context.cache.catalog.by_type.get(delivery.type, ()):
        handler = context.registry.of_type(subscription.consumer, delivery.type)
        if handler is not None and handler.is_async == is_async:
            receipts[subscription.consumer] = yield from _process_for(lane, delivery, subscription.consumer, names)
    if receipts and context.large.store is not None:
        yield from remove_offloaded(context, [delivery], [merged([*receipts.values()])])
    return receipts


def _prepared(context: Context, deliveries: Sequence[Delivery], names: set[str]) -> Flow[Sequence[Delivery]]:
    """Deliveries whose names are known and whose large bodies are in the blob store."""
    yield from know_names(context, context.cache, names)
    if context.large.store is None:
        return deliveries
    put = yield from offload(context, deliveries, context.cache)
    yield from prepare(context)
    return put


def _process_for(lane: Lane, delivery: Delivery, consumer: str, names: set[str]) -> Flow[Receipt]:
    context = lane.context
    for _ in range(5):
        yield from know_names(context, context.cache, names)  # as in `receive`
        catalog = context.cache.catalog
        wanted = wanted_by(context, catalog, delivery, consumer)
        if wanted is None:  # as after a failover to a database that does not know it yet
            raise StoreConflict(f"consumer {consumer!r} is not subscribed to {delivery.type!r} any more; try again")
        if wanted.handler is None:
            _refuse_paused(context, catalog, delivery, consumer)
        receipts = yield from _handled_alone(lane, catalog, wanted)
        if receipts:
            return receipts[wanted.ordinal]
        yield from load_catalog(context, context.cache)
    raise StoreConflict(CHANGING)


def _refuse_paused(context: Context, catalog: Catalog, delivery: Delivery, consumer: str) -> None:
    """Of a handler whose caller waits for the result nothing is queued while it is paused."""
    pause, handler = catalog.pauses.handling(consumer, delivery.type), context.registry.of_type(consumer, delivery.type)
    if pause is not None and handler is not None and handler.forgets_failures:
        raise StoreUnavailable(f"{pause.subject} is {pause.told}. Nothing is stored; try again when it is resumed")


def _surrounded(lane: Lane, catalog: Catalog, one: Wanted, handler: Handler) -> Flow[dict[int, Receipt] | Undone]:
    """Handle it now, inside of what surrounds the transaction; the message has no number there yet."""
    seen = message_for(lane, one, 0, Stored(0, time.time_ns() // 1000))
    if seen.call is None:  # it will fail, and is stored with that
        return (yield from handled(lane, catalog, [one]))
    given = [seen.call.message] if handler.batch else seen.call.message
    surrounding = Surrounding(handler.outside, given, is_async=handler.is_async)
    entered: Outcome = yield Around(surrounding.enter)
    if isinstance(entered.error, Exception):  # the attempt has failed before it began
        return Undone(Failed(entered.error, seen), {one.ordinal: 0})
    before, lane.raised = lane.raised, None
    try:
        tried = yield from handled(lane, catalog, [one])
    except GeneratorExit:  # nothing can be awaited any more
        raise
    except BaseException as error:
        yield Around(partial(surrounding.leave, error))
        raise
    yield Around(partial(surrounding.leave, _ended(lane, tried)))
    lane.raised = before or lane.raised
    return tried


def _ended(lane: Lane, tried: dict[int, Receipt] | Undone) -> BaseException | None:
    """How an inline attempt ended, if there was one: a copy, and what is queued, have none."""
    if isinstance(tried, Undone):
        return tried.lost.error
    if lane.raised is None and not any(receipt.finished for receipt in tried.values()):
        return GeneratorExit()
    return lane.raised


def _handled_alone(lane: Lane, catalog: Catalog, one: Wanted) -> Flow[dict[int, Receipt]]:
    """The receipt of one message for one consumer; none where the catalog is outdated."""
    context, handler = lane.context, one.handler
    forgets = handler is not None and handler.forgets_failures
    is_queued = handler is None and one.row["unplaced"] is None  # it is paused
    after_crash = not forgets and not is_queued and context.clock() < catalog.store_first_until
    known = (yield from known_unplaced(context, catalog, [one])) if catalog.unplaced else {}
    if known:
        return (yield from known_receipts(lane, [one], known))
    if after_crash or handler in context.stores_first:
        return (yield from _store_and_handle(lane, catalog, one, after_crash=after_crash))
    if handler is not None and handler.outside:
        tried = yield from _surrounded(lane, catalog, one, handler)
    else:  # the usual case
        tried = yield from handled(lane, catalog, [one])
    if isinstance(tried, Undone):
        tried = yield from _undone(lane, catalog, one, tried)
    if tried:
        return tried
    return (yield from known_receipts(lane, [one], (yield from look_up(context, catalog, [one.row]))))


def _undone(lane: Lane, catalog: Catalog, one: Wanted, tried: Undone) -> Flow[dict[int, Receipt]]:
    """The handler raised, and everything was rolled back."""
    context, handler = lane.context, one.handler
    forgets = handler is not None and handler.forgets_failures
    error, away = tried.lost.error, tried.lost.infrastructure
    if tried.is_gone and not away:  # by its own doing, or while it failed anyway
        away = not (yield RECONNECT)
    if away or isinstance(error, StoreUnavailable | StoreConflict):
        name = one.delivery.id
        raise StoreUnavailable(f"the database failed while message {name!r} was processed: {error}") from error
    if isinstance(error, NeedsAlone) and not forgets and handler is not None:
        context.stores_first.add(handler)
        return (yield from _store_and_handle(lane, catalog, one, after_crash=False))
    if isinstance(error, NeedsAlone):
        raise ContractViolation(
            "message.once needs a transaction before the handler's, and of this message nothing may be stored before "
            "it has succeeded; SQLite has one writer. Use PostgreSQL, or make the call in another handler"
        )
    if forgets:
        raise error
    return (yield from stored_first(lane, catalog, [one], tried))


def _store_and_handle(lane: Lane, catalog: Catalog, one: Wanted, *, after_crash: bool) -> Flow[dict[int, Receipt]]:
    """Store the message with our claim, commit, handle it like a worker.

    With `after_crash` it is isolated, so that the next crash is counted; else the handler needs a transaction that
    begins when its message is stored.
    """
    context, row = lane.context, one.row
    lane.receiving = False
    while not lane.isolation.enter(lane):  # the consumer before this one may have let it go
        yield Wait(0.005)
    lane.owner, token = lane.worker(), lane.token()
    store = StoreClaimed(row, catalog.version, lane.owner, token, keyless=one.target.keyless)
    if after_crash:  # order needs the rules of a claim then, and a crash of this one is to be counted
        store = store._replace(isolation=APART, after_crash=True)
    placed = yield from committing(lane, context.moves.inline.store_claimed(store))
    lane.committed.update([placed.stored.seq] if placed.stored else [])
    if placed.stored is None or not placed.claimed:
        lane.open_tokens.discard(token)
        if placed.stored is None:
            return (yield from known_receipts(lane, [one], (yield from look_up(context, catalog, [row]))))
        lane.notify()  # it is for a worker now: there is no other hint for one
        return {one.ordinal: Receipt("accepted", placed.stored.seq)}
    seq = placed.stored.seq
    place = seq if row["place"] is None else row["place"]
    claimed = replace(message_for(lane, one, place, placed.stored), worker=lane.owner, token=token)
    yield from handle(lane, [claimed])
    known = (yield from look_up(context, catalog, [row])).get(one.ordinal)
    if claimed.failed and not (known and known.finished):
        return {one.ordinal: failed_receipt(lane, seq, Failure(claimed, *claimed.failed))}
    finished = (known.finished, known.result) if known else ()
    return {one.ordinal: Receipt("accepted", seq, *finished)}
