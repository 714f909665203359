"""What operators do to messages: redrive, discard, and decide about a mismatch. Guarded, repeatable, and written down.

Invariant: the action and its line in the audit are one commit; doing it twice changes nothing the second time.
"""

from __future__ import annotations

from typing import Any

from onceward.domain import identity, payload
from onceward.domain.schedule import Due
from onceward.errors import ConfigurationError, StoreConflict
from onceward.flow import Flow
from onceward.message import Delivery
from onceward.retry import Dead
from onceward.steps.context import Context, know_names, load_catalog
from onceward.steps.rows import attempt_row, new_row, outgoing_key_hash, targets
from onceward.stores.moves.catalog import PauseOrder
from onceward.stores.moves.ledger import NewRow
from onceward.stores.moves.messages import StoredMessage
from onceward.stores.moves.operations import Case, EffectDecision, KeyOf, Order, Redrive, Resolution, Resolve
from onceward.stores.moves.queue import Settle

MAX_ORIGINAL = 900
"""So many bytes of an id are kept in the id made from it, which has 82 more and must be acceptable too."""
AT_ONCE = 500
"""So many cases are decided in one transaction at most."""


def redrive(context: Context, seq: int, *, actor: str, reason: str, out_of_order: bool = False) -> Flow[bool]:
    """Give a dead message a new budget; False when it is not dead (any more).

    One whose key went on without it is refused unless `out_of_order` says that this is meant, and refused all the same
    when its number within the key has been passed: it would only be skipped.
    """
    found = yield from context.moves.operations.key_of(seq)
    if found is None:
        return False
    request = returning(context, Order(seq, actor, reason), found, out_of_order=out_of_order)
    outcome = yield from context.moves.operations.redrive(request)
    if outcome == "passed":
        raise ConfigurationError(
            f"message {seq} is number {found.sequence} of its key {found.key!r}, and a later one is running, applied "
            "or given up: it would only be skipped. Redrive the later ones that were given up first, or discard it"
        )
    return outcome == "done"


def returning(context: Context, order: Order, found: KeyOf, *, out_of_order: bool) -> Redrive:
    """The redrive of a message, in the key where it belongs."""
    key_hash = _key_hash(context, found)
    returns = key_hash != found.key_hash
    if returns and not out_of_order:
        raise ConfigurationError(
            f"message {order.seq} was left behind by its key {found.key!r}: later ones may have run already. "
            "Redrive it with out_of_order=True (--out-of-order) if that is harmless, or discard it"
        )
    return Redrive(order, key_hash, found.key_hash, counted=returns and found.sequence is not None)


def _key_hash(context: Context, found: KeyOf) -> int | None:
    """The key a message belongs to, also where it was detached from it."""
    if found.key is None:
        return None
    if found.outgoing:
        return outgoing_key_hash(context.prefix, found.destination, found.key)
    return identity.key_hash(context.prefix, found.consumer, found.key, found.aggregate)


def discard(context: Context, seq: int, *, actor: str, reason: str) -> Flow[bool]:
    """Take an unfinished message out for good; False when it is running or finished. Its ledger row stays."""
    return (yield from context.moves.operations.discard(Order(seq, actor, reason), scheduled=False))


def cancel(context: Context, seq: int, *, actor: str, reason: str) -> Flow[bool]:
    """Discard a message that is still scheduled; False when a worker has taken it up, or it is finished."""
    return (yield from context.moves.operations.discard(Order(seq, actor, reason), scheduled=True))


class Interrupted(Exception):
    """The error of an attempt that an operator has ended."""


def interrupt(context: Context, seq: int, *, actor: str, reason: str) -> Flow[bool]:
    """Take a running message from its worker; False when it does not run (any more).

    It is dead then, with the attempt charged, and its worker's commit is refused by the guard of the claim.
    """
    order = Order(seq, actor, reason)
    stored = yield from context.moves.reports.message(seq)
    found = yield from context.moves.operations.key_of(seq)
    if stored is None or found is None or stored.worker is None:
        return False
    if found.outgoing:
        raise ConfigurationError(
            f"message {seq} is being published, and that cannot be taken back; pause its destination instead"
        )
    tokens = yield from context.moves.membership.tokens(stored.worker)
    for token in sorted(tokens):
        if seq in (yield from context.moves.claims.still_claimed(stored.worker, [token])):
            settle = yield from _interrupted(context, order, stored, found, token)
            return (yield from context.moves.queue.settle(settle))
    return False


def _interrupted(context: Context, order: Order, stored: StoredMessage, found: KeyOf, token: int) -> Flow[Settle]:
    """The end of a running attempt: the message is dead, and its key goes on where its handler says so."""
    yield from load_catalog(context, context.cache)
    worker = stored.worker or 0
    wanted = context.cache.catalog.by_type.get(stored.type or "", ())
    continues = any(one.consumer == found.consumer and one.on_dead == "continue" for one in wanted)
    error = Interrupted(f"by {order.actor}" + (f": {order.reason}" if order.reason else ""))
    attempt = attempt_row(
        context, order.seq, attempt=stored.attempts + 1, error=error, decision=Dead(str(error)), worker=worker
    )
    leaves = found.key_hash if continues else None
    return Settle(order.seq, worker, token, "dead", None, {**attempt, "traceback": ""}, leaves, order)


def hasten(context: Context, seq: int, *, actor: str, reason: str) -> Flow[bool]:
    """Make a scheduled or retrying message due at once; False when it is neither (any more)."""
    return (yield from context.moves.operations.make_due(Order(seq, actor, reason)))


def unblock(context: Context, seq: int, *, actor: str, reason: str) -> Flow[bool]:
    """Let a key go on without its dead message, which stays dead; False when it does not hold a key (any more)."""
    return (yield from context.moves.operations.unblock(Order(seq, actor, reason)))


def pause(context: Context, order: PauseOrder) -> Flow[bool]:
    """Stop something until it is resumed; False when it is paused already."""
    done = yield from context.moves.catalog.pause(order)
    yield from load_catalog(context, context.cache)
    return done


def resume(context: Context, order: PauseOrder) -> Flow[bool]:
    """Let something go on that was paused; False when it is not (any more)."""
    done = yield from context.moves.catalog.resume(order)
    yield from load_catalog(context, context.cache)
    return done


RUNNING = 10
"""For so many times the usual limit of a handler, one that has left no other trace is taken to be running."""


def settle_effect(  # noqa: PLR0913 - what a person has to say
    context: Context, key: str, seq: int, *, happened: bool, result: Any, actor: str, reason: str
) -> Flow[bool]:
    """Say what became of an effect whose outcome was unknown; False when that is known by now, or its message runs.

    A worker that runs it has claimed it before it looks at the effect, and looks under the lock that is taken here
    first: it is seen here, or it sees what was decided.
    """
    patience = RUNNING * context.settings.handler_timeout.total_seconds()
    text = payload.encode_text(result) if happened else None
    decision = EffectDecision(key, Order(seq, actor, reason), text, patience)
    return (yield from context.moves.operations.settle_effect(decision))


def resolve(context: Context, case: int, resolution: Resolution, *, actor: str, reason: str) -> Flow[int | None]:
    """Decide about a quarantined body; None when the mismatch is not open (any more).

    Answers the number of the new message for `accept-as-new`, else of the first one.
    """
    yield from know_names(context, context.cache, {context.service})
    for _ in range(5):
        found = yield from context.moves.operations.case(case)
        if found is None:
            return None
        request = Resolve(case, resolution, Order(found.seq, actor, reason))
        if resolution == "accept-as-new":
            row = yield from _accepted_row(context, found)
            request = request._replace(row=row, catalog=context.cache.catalog.version)
        resolved = yield from context.moves.operations.resolve(request)
        if resolved.state == "outdated":  # nothing is stored, and nothing decided
            yield from load_catalog(context, context.cache)
            continue
        return (resolved.accepted or found.seq) if resolved.state == "resolved" else None
    raise StoreConflict("subscriptions keep changing while a message is accepted; try again")


def keep_first(context: Context, source: str, message_type: str, *, actor: str, reason: str) -> Flow[int]:
    """Decide some of the mismatches in which only the type differs for the first message; returns how many."""
    return (yield from context.moves.operations.keep_first(source, message_type, actor, reason, AT_ONCE))


def _accepted_row(context: Context, case: Case) -> Flow[NewRow]:
    """The second body as a message of its own, for the consumer that met it.

    Its id is the first id, the hash of its bytes, and that of its type: each of the three may be another's too.
    """
    original = case.first_id or identity.readable_id(bytes(case.stored_id))
    if len(original.encode()) > MAX_ORIGINAL:
        original = "sha256:" + identity.body_hash(original.encode()).hex()
    digest = bytes(case.hash).hex()
    delivery = Delivery.of(
        source=case.source,
        id=f"{original}#{digest}.{identity.type_hash(case.type, case.version) % 2**64:016x}",
        type=case.type,
        version=case.version,
        body=bytes(case.body),
        key=case.key,
        position=case.position,
        headers=payload.decode_text(case.headers) if case.headers else None,
    )._replace(due=Due(case.due_at))
    if case.source not in context.cache.catalog.names:
        context.cache.learn((yield from context.moves.catalog.names()))
    catalog = context.cache.catalog
    # A consumer that has stopped to want the type is asked for no more: then it is for whoever wants it now.
    wanted = targets(context, catalog, delivery)
    target = next((one for one in wanted if one.consumer == case.consumer), wanted[0])
    return new_row(0, delivery, target, catalog.names[delivery.source])


def record_reading(context: Context, seq: int, *, actor: str, reason: str) -> Flow[bool]:
    """Write down that a person is about to see a payload; False where there is no such message."""
    return (yield from context.moves.operations.record_reading(Order(seq, actor, reason)))
