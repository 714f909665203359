"""Receive: a delivery becomes a ledger row, a body and a queue row; or a duplicate; or a case for quarantine.

Invariant: a receipt is returned only when every consumer's row is committed (or found committed), so the caller
may acknowledge. What the insert did not insert is looked up; what is neither there is tried again under a newer
catalog. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from onceward.domain import identity, payload
from onceward.domain.reference import stored_headers
from onceward.errors import StoreConflict
from onceward.flow import Each, Flow, Query
from onceward.message import Delivery, Receipt
from onceward.registry import Subscription
from onceward.steps.blob import put_away, take_back
from onceward.steps.context import Cache, Catalog, Context, Try, know_names, load_catalog, once
from onceward.steps.read import find_key, finds_key, upcasters_of, value_at, whole_number
from onceward.steps.sight import sight

READY: dict[str, Any] = {
    "state": "ready",
    "delay": None,
    "attempts": 0,
    "worker": None,
    "token": None,
    "suspect": 0,
    "outgoing": False,
}


class Target(NamedTuple):
    """One consumer of a delivery."""

    consumer: str
    consumer_id: int
    subscription: int | None
    key: str | None
    key_hash: int | None
    sequence: int | None = None
    """Its number within the key, where the handler counts."""
    keyless: bool = False
    """Its key is found by a function that this process does not have; one that has it places the message."""
    aggregate: str | None = None
    """The namespace of the key, where its handler has one of its own."""


class Known(NamedTuple):
    """What the ledger already has for one target of a delivery."""

    seq: int
    hash: bytes
    type_hash: int
    finished: bool
    result: Any

    def is_same(self, delivery: Delivery) -> bool:
        """Whether a delivery of this id is a copy: the same bytes, under the same type and version."""
        return (self.hash, self.type_hash) == (delivery.hash, delivery.type_hash)


def receive(
    context: Context,
    cache: Cache,
    deliveries: Sequence[Delivery],
    *,
    joined: bool = False,
    first_try: Try | None = None,
) -> Flow[list[Receipt]]:
    """Store deliveries in one transaction, `joined` in the caller's; answers a receipt for each, in their order.

    `first_try`: this is a repetition, and the answer of the first was lost.
    """
    yield from know_names(context, cache, {context.service, *(delivery.source for delivery in deliveries)})
    deliveries = yield from sight(context, cache, deliveries)
    deliveries = yield from put_away(context, deliveries, cache)
    # The copies of a message inside one batch come after its first; the insert must see each identity once.
    firsts: dict[tuple[str, str], int] = {}
    for index, delivery in enumerate(deliveries):
        firsts.setdefault((delivery.source, delivery.id), index)
    first_indexes = set(firsts.values())
    receipts: dict[int, Receipt] = {}
    yield from _store(context, cache, deliveries, sorted(first_indexes), receipts, first_try)
    copies = [index for index in range(len(deliveries)) if index not in first_indexes]
    if copies:
        yield from _store(context, cache, deliveries, copies, receipts)
    answers = [receipts[index] for index in range(len(deliveries))]
    if not joined:  # in a transaction of the caller's nothing is tried that need not succeed
        yield from take_back(context, deliveries, answers)
    return answers


def _store(  # noqa: PLR0913, PLR0917 - the parts of `receive`
    context: Context,
    cache: Cache,
    deliveries: Sequence[Delivery],
    indexes: list[int],
    receipts: dict[int, Receipt],
    first_try: Try | None = None,
) -> Flow[None]:
    own: set[int] = set()
    names = {context.service, *(deliveries[index].source for index in indexes)}
    for _ in range(5):
        yield from know_names(context, cache, names)  # a failover may have taken them back since anybody looked
        catalog = cache.catalog
        plan = [(index, target) for index in indexes for target in targets(context, catalog, deliveries[index])]
        records = [
            record(ordinal, deliveries[index], target, catalog.names[deliveries[index].source])
            for ordinal, (index, target) in enumerate(plan)
        ]
        known = yield from look_up(context, catalog, [row for row in records if row["type"] in catalog.unplaced])
        seqs = yield from _insert(context, catalog, [row for row in records if row["ordinal"] not in known])
        own.update(seqs.values())
        left = [row for row in records if row["ordinal"] not in seqs and row["ordinal"] not in known]
        known |= yield from look_up(context, catalog, left)
        own |= yield from stored_by(context, [(deliveries[plan[one][0]], known[one]) for one in known], first_try)
        complete = len(seqs) + len(known) == len(plan)
        if complete and (yield from _write_receipts(context, deliveries, plan, seqs, known, own, receipts)):
            return
        yield from load_catalog(context, cache)
    raise StoreConflict("subscriptions keep changing while messages are received; try again")


def _insert(context: Context, catalog: Catalog, records: list[dict[str, Any]]) -> Flow[dict[int, int]]:
    """Insert what is not there yet; answers the numbers, by ordinal."""
    if not records:
        return {}
    insert = Each("receive", records, {**READY, "catalog": catalog.version})
    # Whoever reads that a type has consumers must see, too, what was stored while it had none.
    held = [Query("hold_catalog")] if any(row["subscription"] is None for row in records) else []
    *_, fresh = yield from once(context, *held, insert)
    return {ordinal: seq for ordinal, seq, _ in fresh}


def _write_receipts(  # noqa: PLR0913, PLR0917 - the parts of one loop
    context: Context,
    deliveries: Sequence[Delivery],
    plan: list[tuple[int, Target]],
    seqs: dict[int, Any],
    known: dict[int, Known],
    own: set[int],
    receipts: dict[int, Receipt],
) -> Flow[bool]:
    """Write a receipt for each delivery; False when a row is gone by which one was known."""
    parts: dict[int, list[Receipt]] = {}
    copies: dict[int, int] = {}
    for ordinal, (index, _) in enumerate(plan):
        if ordinal in seqs:
            part: Receipt | None = Receipt("accepted", seqs[ordinal])
        elif known[ordinal].seq in own:  # inserted by an earlier round or try of this very call
            part = Receipt("accepted", known[ordinal].seq, known[ordinal].finished)
        else:
            part = yield from meet_again(context, deliveries[index], known[ordinal], copies)
        if part is None:
            return False
        parts.setdefault(index, []).append(part)
    if copies:
        yield from count_copies(context, copies)
    for index, several in parts.items():
        receipts[index] = merged(several)
    return True


def targets(context: Context, catalog: Catalog, delivery: Delivery) -> list[Target]:
    """Who wants this delivery, and under which key."""
    subscriptions = catalog.by_type.get(delivery.type)
    if not subscriptions:
        return [_target(context, context.service, catalog.names[context.service], None, delivery.key)]
    return [target_of(context, subscription, delivery) for subscription in subscriptions]


def target_of(context: Context, subscription: Subscription, delivery: Delivery) -> Target:
    """A consumer that wants this delivery, with the key under which it does."""
    consumer = subscription.consumer, subscription.consumer_id, subscription.id
    if delivery.key is None and not finds_key(context, subscription):
        return _target(context, *consumer, None)._replace(keyless=True)
    key = delivery.key if delivery.key is not None else find_key(context, subscription, delivery)
    target = _target(context, *consumer, key, subscription.aggregate)
    if key is not None and subscription.sequence is not None:
        number = value_at(subscription.sequence, delivery, upcasters_of(context, subscription, delivery))
        target = target._replace(sequence=whole_number(number))
    return target


def _target(  # noqa: PLR0913, PLR0917 - the parts of a target
    context: Context,
    consumer: str,
    consumer_id: int,
    subscription: int | None,
    key: str | None,
    aggregate: str | None = None,
) -> Target:
    hashed = None if key is None else identity.key_hash(context.prefix, consumer, key, aggregate)
    return Target(consumer, consumer_id, subscription, key, hashed, aggregate=aggregate)


def record(ordinal: int, delivery: Delivery, target: Target, source: int) -> dict[str, Any]:
    """The row of a target, as the `receive` and `known` statements take it."""
    unplaced = target.keyless or target.subscription is None
    blob = None if unplaced else delivery.blob  # its key is looked for in the body, later
    return {
        "ordinal": ordinal,
        "consumer": target.consumer_id,
        "source": source,
        "stored_id": delivery.stored_id,
        "hash": delivery.hash,
        "type_hash": delivery.type_hash,
        "subscription": target.subscription,
        "key_hash": target.key_hash,
        "id": delivery.id,
        "type": delivery.type,
        "version": delivery.version,
        "key": target.key,
        "key_from": None if delivery.key is None else "caller",
        "aggregate": target.aggregate,
        "position": delivery.position,
        "headers": stored_headers(delivery.headers, blob),
        "body": delivery.body if blob is None else b"",
        "place": delivery.position if target.sequence is None else target.sequence,
        "sequence": target.sequence,
        "destination": delivery.destination,
        "cause": delivery.cause,
        "unplaced": delivery.type if unplaced else None,
    }


def identity_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a record the message it is, as the `known` statement takes it."""
    return {name: row[name] for name in ("ordinal", "consumer", "source", "stored_id")}


def look_up(context: Context, catalog: Catalog, records: Sequence[Mapping[str, Any]]) -> Flow[dict[int, Known]]:
    """What the ledger has for records that are not inserted, by ordinal.

    What came before its type had a consumer is known to all its consumers from then on, placed or not. It is looked for
    first: what is placed in between is found by its consumer.
    """
    if not records:
        return {}
    names = ("ordinal", "source", "stored_id", "type")
    waiting = [{name: row[name] for name in names} for row in records if row["type"] in catalog.unplaced]
    requests = [Each("known_unplaced", waiting)] if waiting else []
    answers = yield from once(context, *requests, Each("known", [identity_of(row) for row in records]))
    known: dict[int, Known] = {}
    for rows in answers:
        known |= known_by_ordinal(rows)
    return known


def stored_by(context: Context, found: Sequence[tuple[Delivery, Known]], first_try: Try | None) -> Flow[set[int]]:
    """What a repetition takes for its own: stored during its first try, byte for byte. No copy is counted then."""
    same = [known.seq for delivery, known in found if known.is_same(delivery)]
    if first_try is None or not same:
        return set()
    asked = context.clock()
    (rows,) = yield from once(context, Query("ages", {"seqs": same}))
    answered = context.clock()  # the database looked at its own clock somewhere in between
    return {seq for seq, age in rows if asked - age <= first_try.ended and first_try.began <= answered - age}


def known_by_ordinal(rows: Sequence[tuple[Any, ...]]) -> dict[int, Known]:
    """The answer of the `known` statement."""
    return {
        ordinal: Known(seq, bytes(digest), kind, bool(finished), payload.decode_text(result) if result else None)
        for ordinal, seq, digest, kind, finished, result in rows
    }


def meet_again(context: Context, delivery: Delivery, known: Known, copies: dict[int, int]) -> Flow[Receipt | None]:
    """A known id came again: a duplicate if its bytes and its type are the same, a case for quarantine if not.

    None when the row it was known by is gone: fanned out to consumers with rows of their own, or its retention is over.
    """
    if known.is_same(delivery):
        copies[known.seq] = copies.get(known.seq, 0) + 1
        return Receipt("duplicate", known.seq, known.finished, known.result)
    (rows,) = yield from once(context, mismatch(known.seq, delivery))
    if not rows:
        return None
    resolution, accepted = rows[0]
    if resolution is None:
        return Receipt("mismatch", known.seq)
    if accepted is not None:
        (rows,) = yield from once(context, Query("outcome", {"seq": accepted}))
        finished, result = rows[0] if rows else (False, None)
        value = payload.decode_text(result) if result else None
        known = Known(accepted, delivery.hash, delivery.type_hash, bool(finished), value)
    copies[known.seq] = copies.get(known.seq, 0) + 1
    return Receipt("duplicate", known.seq, known.finished, known.result)


def mismatch(seq: int, delivery: Delivery) -> Query:
    """Puts a body into quarantine that came under the id of another; all of it, for a person is about to look at it."""
    return Query(
        "quarantine",
        {
            "seq": seq,
            "hash": delivery.hash,
            "type_hash": delivery.type_hash,
            "type": delivery.type,
            "version": delivery.version,
            "key": delivery.key,
            "position": delivery.position,
            "headers": stored_headers(delivery.headers, None),
            "body": delivery.body,
        },
    )


def count_copies(context: Context, copies: dict[int, int]) -> Flow[None]:
    """Count duplicates; sorted, so that batches which overlap cannot deadlock."""
    counts = [{"seq": seq, "copies": count} for seq, count in sorted(copies.items())]
    yield from once(context, Each("count_duplicates", counts), durable=False)


def merged(parts: list[Receipt]) -> Receipt:
    """One receipt for all consumers of a delivery: new if it was new to any, finished if it is to all.

    Of several errors it has one that is final, if there is one: that one needs a person.
    """
    if len(parts) == 1:
        return parts[0]
    order = ("mismatch", "accepted", "duplicate")
    leading = min(parts, key=lambda part: order.index(part.status))
    results = [part.result for part in parts if part.result is not None]
    errors = sorted((part.error for part in parts if part.error), key=lambda error: not error.final)
    return Receipt(
        status=leading.status,
        seq=parts[0].seq,
        finished=all(part.finished for part in parts),
        result=results[0] if results else None,
        error=errors[0] if errors else None,
    )
