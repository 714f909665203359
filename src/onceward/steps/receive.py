"""Receive: a delivery becomes a ledger row, a body and a queue row; or a duplicate; or a case for quarantine.

Invariant: a receipt is returned only when every consumer's row is committed (or found committed), so the caller
may acknowledge. What the insert did not insert is looked up; what is neither there is tried again under a newer
catalog. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence

from onceward.domain.activity import Series, What
from onceward.domain.marks import Mark
from onceward.errors import StoreConflict
from onceward.flow import Flow
from onceward.message import Delivery, Receipt
from onceward.steps.blob import offload, remove_offloaded
from onceward.steps.context import Cache, Catalog, Context, Try, know_names, load_catalog
from onceward.steps.first_seen import check_first_seen
from onceward.steps.history import save_activity
from onceward.steps.introduce import introduce
from onceward.steps.rows import Target, Targets, mismatch_of, new_row
from onceward.stores.moves.ledger import Known, NewRow


def receive_apart(
    context: Context, deliveries: Sequence[Delivery], tries: list[Try], marks: Sequence[Mark] = ()
) -> Flow[list[Receipt]]:
    """Receive in a transaction of its own; it may be tried again, and then the `tries` before are known."""
    began, own = context.clock(), {seq for one in tries for seq in one.stored or ()}
    try:
        if context.introduction.pending or context.introduction.declared != context.registry.declared:
            yield from introduce(context, {delivery.type for delivery in deliveries})
        lost = next((one for one in tries if one.stored is None), None)
        receipts = yield from receive(context, context.cache, deliveries, first_try=lost, own=own, marks=marks)
    except StoreConflict:
        tries.append(Try(began, context.clock(), frozenset(own)))
        raise
    except BaseException:
        tries.append(Try(began, context.clock()))
        raise
    if context.clock() >= context.activity.due_at:
        yield from save_activity(context)
    return receipts


def receive(  # noqa: PLR0913 - how it is received, and with what
    context: Context,
    cache: Cache,
    deliveries: Sequence[Delivery],
    *,
    joined: bool = False,
    first_try: Try | None = None,
    own: set[int] | None = None,
    marks: Sequence[Mark] = (),
) -> Flow[list[Receipt]]:
    """Store deliveries in one transaction, `joined` in the caller's; returns a receipt for each, in their order.

    `first_try`: this is a repetition, and the answer of the first was lost. `own`: what earlier tries have stored; what
    this one stores is added.
    """
    names = {context.service, *(delivery.source for delivery in deliveries)}
    if cache.catalog.unplaced or not names <= cache.catalog.names.keys():
        yield from know_names(context, cache, names)
    if any(delivery.echo_window is not None for delivery in deliveries):
        deliveries = yield from check_first_seen(context, cache, deliveries)
    if context.large.store is not None:
        deliveries = yield from offload(context, deliveries, cache)
    firsts, copies = folded(deliveries)
    receipts: dict[int, Receipt] = {}
    kept = yield from _store(context, cache, deliveries, firsts, receipts, first_try, marks, own)
    if copies:
        yield from _store(context, cache, deliveries, copies, receipts)
    if marks and not kept:
        yield from context.moves.ledger.keep_positions(marks)
    answers = [receipts[index] for index in range(len(deliveries))]
    if context.large.store is not None and not joined:  # nothing need fail in a transaction of the caller's
        yield from remove_offloaded(context, deliveries, answers)
    return answers


def folded(deliveries: Sequence[Delivery]) -> tuple[list[int], list[int]]:
    """Which of a batch are the first of their message, and which copies of those; an insert must see each id once."""
    seen: dict[tuple[str, str], int] = {}
    for index, delivery in enumerate(deliveries):
        seen.setdefault((delivery.source, delivery.id), index)
    firsts = list(seen.values())  # in their order, as they were met
    if len(firsts) == len(deliveries):
        return firsts, []
    known = set(firsts)
    return firsts, [index for index in range(len(deliveries)) if index not in known]


def _store(  # noqa: PLR0913, PLR0917 - the parts of `receive`
    context: Context,
    cache: Cache,
    deliveries: Sequence[Delivery],
    indexes: list[int],
    receipts: dict[int, Receipt],
    first_try: Try | None = None,
    marks: Sequence[Mark] = (),
    remembered: set[int] | None = None,
) -> Flow[bool]:
    """Write a receipt for each; whether the marks are kept in the transaction that has stored all that was new."""
    own: set[int] = set(remembered or ())
    names = {context.service, *(deliveries[index].source for index in indexes)}
    for _ in range(5):
        if not names <= cache.catalog.names.keys():  # a failover has taken them back since they were looked for
            yield from know_names(context, cache, names)
        catalog = cache.catalog
        wanted = Targets(context, catalog)
        plan = [(index, target) for index in indexes for target in wanted.of(deliveries[index])]
        rows = [
            new_row(ordinal, deliveries[index], target, catalog.names[deliveries[index].source])
            for ordinal, (index, target) in enumerate(plan)
        ]
        known: dict[int, Known] = {}
        if catalog.unplaced:
            known = yield from look_up(context, catalog, [row for row in rows if row["type"] in catalog.unplaced])
        new = [row for row in rows if row["ordinal"] not in known]
        stored = (yield from context.moves.ledger.receive(new, catalog.version, marks)) if new else {}
        seqs = {ordinal: row.seq for ordinal, row in stored.items()}
        own.update(seqs.values())
        if remembered is not None:
            remembered.update(seqs.values())
        if len(seqs) < len(new):
            known |= yield from look_up(context, catalog, [row for row in new if row["ordinal"] not in seqs])
        if first_try is not None:
            own |= yield from stored_by(context, [(deliveries[plan[one][0]], known[one]) for one in known], first_try)
        complete = len(seqs) + len(known) == len(plan)
        if complete and (yield from _write_receipts(context, deliveries, plan, seqs, known, own, receipts)):
            return bool(new)
        yield from load_catalog(context, cache)
    raise StoreConflict("subscriptions keep changing while messages are received; try again")


def _write_receipts(  # noqa: PLR0913, PLR0917 - the parts of one loop
    context: Context,
    deliveries: Sequence[Delivery],
    plan: list[tuple[int, Target]],
    seqs: dict[int, int],
    known: dict[int, Known],
    own: set[int],
    receipts: dict[int, Receipt],
) -> Flow[bool]:
    """Write a receipt for each delivery; False when a row is gone by which one was known."""
    parts: dict[int, list[Receipt]] = {}
    copies: dict[int, int] = {}
    together: dict[tuple[What, str, str, str], list[float]] = {}
    last, alike = None, list[float]()
    for ordinal, (index, target) in enumerate(plan):
        late = 0.0
        if ordinal in seqs:
            part: Receipt | None = Receipt("accepted", seqs[ordinal])
        elif known[ordinal].seq in own:  # inserted by an earlier round or try of this very call
            part = Receipt("accepted", known[ordinal].seq, known[ordinal].finished)
        else:
            part = yield from meet_again(context, deliveries[index], known[ordinal], copies)
            late = known[ordinal].age
        if part is None:
            return False
        came = deliveries[index]
        happened = part.status, target.consumer, came.source, came.type
        if happened != last:  # they mostly follow each other
            last, alike = happened, together.setdefault(happened, [])
        alike.append(late)
        parts.setdefault(index, []).append(part)
    if copies:
        yield from context.moves.ledger.count_copies(copies)
    for (what, *series), lateness in together.items():
        context.activity.count(what, Series(*series), len(lateness), seconds=lateness)
    for index, several in parts.items():
        receipts[index] = merged(several) if len(several) > 1 else several[0]
    return True


def look_up(context: Context, catalog: Catalog, rows: Sequence[NewRow]) -> Flow[dict[int, Known]]:
    """What the ledger has for rows that are not stored, by ordinal."""
    return (yield from context.moves.ledger.look_up(rows, catalog.unplaced)) if rows else {}


def stored_by(context: Context, found: Sequence[tuple[Delivery, Known]], first_try: Try | None) -> Flow[set[int]]:
    """What a repetition takes for its own: stored during its first try, byte for byte. No copy is counted then."""
    same = [known.seq for delivery, known in found if known.is_same(delivery) and not known.is_imported]
    if first_try is not None and first_try.only is not None:
        same = [seq for seq in same if seq in first_try.only]
    if first_try is None or not same:
        return set()
    asked = context.clock()
    ages = yield from context.moves.ledger.ages(same)
    answered = context.clock()  # the database looked at its own clock somewhere in between
    return {seq for seq, age in ages.items() if asked - age <= first_try.ended and first_try.began <= answered - age}


def meet_again(context: Context, delivery: Delivery, known: Known, copies: dict[int, int]) -> Flow[Receipt | None]:
    """A known id came again: a duplicate if its bytes and its type are the same, a case for quarantine if not.

    None when the row it was known by is gone: fanned out to consumers with rows of their own, or its retention is over.
    """
    if known.is_same(delivery):
        copies[known.seq] = copies.get(known.seq, 0) + 1
        return Receipt("duplicate", known.seq, known.finished, known.result)
    decided = yield from context.moves.ledger.quarantine(mismatch_of(known.seq, delivery))
    if decided is None:
        return None
    if decided.resolution is None:
        return Receipt("mismatch", known.seq)
    known = decided.accepted or known
    copies[known.seq] = copies.get(known.seq, 0) + 1
    return Receipt("duplicate", known.seq, known.finished, known.result)


def merged(parts: list[Receipt]) -> Receipt:
    """One receipt for all consumers of a delivery: new if it was new to any, finished if it is to all.

    Of several errors it has one that is final, if there is one: that one needs an operator.
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
