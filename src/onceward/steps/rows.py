"""The rows that steps write, and how they are made of deliveries, targets and failures."""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Sequence
from typing import NamedTuple

from onceward.domain import identity
from onceward.domain.fingerprint import fingerprint, kind_of
from onceward.domain.reference import stored_headers
from onceward.domain.schedule import AT_ONCE, LAST_PLACE
from onceward.message import Delivery
from onceward.registry import OUTBOX, Subscription
from onceward.retry import Again, Dead, text_of
from onceward.steps.context import Catalog, Context
from onceward.steps.read import KEY_FUNCTION, find_key, finds_key, upcasters_of, value_at, whole_number
from onceward.stores.moves.inline import Applied
from onceward.stores.moves.ledger import Mismatch, NewRow
from onceward.stores.moves.queue import AttemptRow

MAX_ERROR = 2_000
MAX_TRACEBACK = 8_000


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


class Targets:
    """The consumers of the deliveries of a batch. Those of messages without a key are found once for each type."""

    def __init__(self, context: Context, catalog: Catalog) -> None:
        self._context, self._catalog = context, catalog
        self._alike: dict[str, list[Target]] = {}

    def of(self, delivery: Delivery) -> list[Target]:
        """Those of a delivery."""
        known = self._alike.get(delivery.type)
        if known is not None and delivery.key is None:
            return known
        found = targets(self._context, self._catalog, delivery)
        subscriptions = self._catalog.by_type.get(delivery.type, ())
        if delivery.key is None and all(one.key_path is None and not one.key_function for one in subscriptions):
            self._alike[delivery.type] = found
        return found


def targets(context: Context, catalog: Catalog, delivery: Delivery) -> list[Target]:
    """The consumers of a delivery, each with the key under which it wants it."""
    subscriptions = catalog.by_type.get(delivery.type)
    if not subscriptions:
        return [_target(context, context.service, catalog.names[context.service], None, delivery.key)]
    return [target_of(context, subscription, delivery) for subscription in subscriptions]


def target_of(context: Context, subscription: Subscription, delivery: Delivery) -> Target:
    """A consumer that wants this delivery, with the key under which it does."""
    consumer = subscription.consumer, subscription.consumer_id, subscription.id
    key = delivery.key
    if key is None and (subscription.key_path is not None or subscription.key_function):
        if not finds_key(context, subscription):
            return _target(context, *consumer, None)._replace(keyless=True)
        key = find_key(context, subscription, delivery)
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


def new_row(ordinal: int, delivery: Delivery, target: Target, source: int) -> NewRow:
    """A delivery as one consumer gets it."""
    unplaced = target.keyless or target.subscription is None
    blob = None if unplaced else delivery.blob  # its key is looked for in the body, later
    place, sequence = delivery.position if target.sequence is None else target.sequence, target.sequence
    if delivery.due != AT_ONCE:
        if unplaced:
            sequence = LAST_PLACE  # when it came, for those that came later: it holds up none of them
        elif sequence is None:
            place = LAST_PLACE
    return {
        "ordinal": ordinal,
        "consumer": target.consumer_id,
        "source": source,
        "stored_id": identity.stored_id(delivery.id, delivery.destination),
        "hash": delivery.hash,
        "type_hash": identity.type_hash(delivery.type, delivery.version),
        "subscription": target.subscription,
        "key_hash": target.key_hash,
        "slot": identity.slot(delivery.id if target.key is None else target.key),
        "id": delivery.id,
        "type": delivery.type,
        "version": delivery.version,
        "key": target.key,
        "key_from": None if delivery.key is None else "caller",
        "aggregate": target.aggregate,
        "position": delivery.position,
        "headers": stored_headers(delivery.headers, blob) if delivery.headers or blob else None,
        "body": delivery.body if blob is None else b"",
        "place": place,
        "sequence": sequence,
        "destination": delivery.destination,
        "cause": delivery.cause,
        "unplaced": delivery.type if unplaced else None,
        "due_at": delivery.due.at,
        "due_in": delivery.due.after,
    }


def applied_of(row: NewRow) -> Applied | None:
    """The number that its key comes to when a message is done; None where it has no number."""
    if row["sequence"] is None:
        return None
    return Applied(row["consumer"], row["aggregate"] or "", row["key"], row["sequence"])


def mismatch_of(seq: int, delivery: Delivery) -> Mismatch:
    """A delivery that came under the id of another message; all of it, for an operator is about to look at it."""
    return {
        "seq": seq,
        "hash": delivery.hash,
        "type_hash": delivery.type_hash,
        "type": delivery.type,
        "version": delivery.version,
        "key": delivery.key,
        "position": delivery.position,
        "headers": stored_headers(delivery.headers, None),
        "body": delivery.body,
        "due_at": delivery.due.at,
        "due_in": delivery.due.after,
    }


def outgoing_rows(context: Context, catalog: Catalog, deliveries: Sequence[Delivery]) -> list[NewRow]:
    """The rows of outgoing messages: messages like any other, whose consumer is the relay."""
    relay = catalog.relay
    if relay is None:
        raise AssertionError("a process that sends has introduced itself")
    rows = []
    for ordinal, delivery in enumerate(deliveries):
        hashed = None if delivery.key is None else outgoing_key_hash(context.prefix, delivery.destination, delivery.key)
        target = Target(OUTBOX, relay.consumer_id, relay.id, delivery.key, hashed)
        rows.append(new_row(ordinal, delivery, target, catalog.names[delivery.source]))
    return rows


def outgoing_key_hash(prefix: str, destination: str | None, key: str) -> int:
    """Outgoing messages are in order per destination and key."""
    return identity.key_hash(prefix, OUTBOX, f"{destination or ''}\x00{key}")


def attempt_row(  # noqa: PLR0913 - the columns of the row
    context: Context, seq: int, *, attempt: int, error: BaseException, decision: Again | Dead, worker: int
) -> AttemptRow:
    """The row of a failed attempt; short enough to keep, without local variables, which may hold secrets."""
    text = f"{type(error).__name__}: {text_of(error)}"
    if isinstance(decision, Dead) and decision.reason not in text:
        text = f"{text} ({decision.reason})"
    told = [note for note in getattr(error, "__notes__", ()) if note.startswith(KEY_FUNCTION)]
    text = storable("; ".join([text, *told]))[:MAX_ERROR]
    trace = "".join(tracebacks.format_exception(error))
    return {
        "seq": seq,
        "attempt": attempt,
        "kind": "error",
        "charged": True,
        "error": text,
        "traceback": storable(trace)[-MAX_TRACEBACK:],
        "worker": worker,
        "code_version": context.code_version,
        "fingerprint": fingerprint(text),
    }


def without_text(row: AttemptRow) -> AttemptRow:
    """The row of an attempt whose text the database refuses."""
    kind = ascii(kind_of(row["error"])).strip("'")
    text = f"{kind}: its text could not be stored"
    return {**row, "error": text, "traceback": "", "fingerprint": fingerprint(text)}


def storable(text: str) -> str:
    """Text that every database can keep: no NUL, no half characters."""
    return text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()
