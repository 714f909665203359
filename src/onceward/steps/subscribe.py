"""Take up messages that came before their type had a handler, or where their key could not be found.

Invariant: a message of an unknown type is never lost and never run twice: it waits as `unhandled`, and fanning
it out replaces that row by one per consumer in one transaction. A message with a key that came later waits until it is
placed (`park`): it may be of the same key.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from onceward.domain import payload
from onceward.domain.schedule import LAST_PLACE, Due
from onceward.errors import RightsMissing, StoreConflict, StoreError, StoreUnavailable
from onceward.flow import ROLLBACK, Flow
from onceward.message import NO_HEADERS, Delivery
from onceward.steps.context import MOST_PLACED, Context, load_catalog
from onceward.steps.read import finds_key
from onceward.steps.rows import Target, mismatch_of, new_row, target_of, targets
from onceward.stores.moves.catalog import Unhandled
from onceward.stores.moves.fan_out import Adoption, FanOut, Placement, UnhandledRow, Wanted
from onceward.stores.moves.ledger import NewRow

log = logging.getLogger("onceward")

PAUSE = 0.25
"""For how many seconds a claim leaves a message alone that came after one which is not placed."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 600.0
"""After how many seconds a message is tried again whose placing the database refused: twice as many each time."""

TRIES = 5
"""How often in a row the catalog may turn out to be outdated."""


def fan_out(context: Context, *, seconds: float | None = None) -> Flow[int]:
    """Turn unhandled messages whose type is known by now into one row per consumer; returns how many.

    It goes on until none is left that can be placed, or for so many seconds.
    """
    placed, vain, one_by_one = 0, 0, False
    until = None if seconds is None else context.clock() + seconds
    while vain < TRIES and (until is None or context.clock() < until):
        try:
            found, moved, refused = yield from _place_some(context, one_by_one=one_by_one)
        except StoreUnavailable:  # perhaps so many are too much at once
            context.placing_limit = max(1, context.placing_limit // 2)
            raise
        except (StoreConflict, RightsMissing):
            raise
        except StoreError:
            if one_by_one:
                raise
            yield ROLLBACK
            one_by_one = True  # it may be the fault of one of them
            continue
        context.placing_limit = min(MOST_PLACED, context.placing_limit * 2)
        placed += moved
        if not found:
            break
        vain = 0 if moved or refused else vain + 1
    return placed


def place_soon(context: Context) -> Flow[None]:
    """Fan out, because a message may wait for one that is not placed yet; not again and again."""
    if context.clock() >= context.placing_at:
        context.placing_at = context.clock() + PAUSE
        yield from fan_out(context, seconds=PAUSE)


def _place_some(context: Context, *, one_by_one: bool) -> Flow[tuple[int, int, int]]:
    """Place the next ones; returns how many there were, are placed (none under an outdated catalog), and are refused.

    One by one, what the database refuses is marked as refused, and the others are placed.
    """
    passed = [seq for seq, (_, due) in context.unplaceable.items() if due > context.clock()]
    request = FanOut(
        catalog=context.cache.catalog.version,
        limit=context.placing_limit,
        passed=passed,
        one_by_one=one_by_one,
        wanted=partial(_wanted, context),
        names=context.cache.catalog.numbers,
        place=partial(_placement, context),
    )
    done = yield from context.moves.fan_out.fan_out(request)
    if done.at_end:  # whatever is not there was placed by others, or discarded
        there = {*passed, *done.found}
        context.unplaceable = {seq: tried for seq, tried in context.unplaceable.items() if seq in there}
    for seq in done.placed:
        context.unplaceable.pop(seq, None)
    for seq, error in done.refused.items():
        _put_off(context, seq, error)
    if done.outdated:  # nothing is placed then; the next round has a newer one
        yield from load_catalog(context, context.cache)
    return len(done.found) or (done.waiting if done.outdated else 0), len(done.placed), len(done.refused)


def _wanted(context: Context, waiting: Sequence[Unhandled]) -> Wanted:
    """Types that have a consumer by now, and subscriptions whose keys this process can find."""
    catalog = context.cache.catalog
    types = [one.type for one in waiting if one.subscription is None and one.type in catalog.by_type]
    mine = [catalog.subscriptions[number] for _, number in waiting if number and number in catalog.subscriptions]
    return Wanted(types, [subscription.id for subscription in mine if finds_key(context, subscription)])


def _placement(context: Context, row: UnhandledRow, names: Mapping[int, str]) -> Placement:
    """What becomes of one unhandled message."""
    catalog = context.cache.catalog
    if row.source not in catalog.numbers:
        catalog = context.cache.learn(names)
    delivery = Delivery(
        source=catalog.numbers[row.source],
        id=row.id,
        type=row.type,
        version=row.version,
        key=row.key,
        headers=payload.decode_text(row.headers) if row.headers else NO_HEADERS,
        body=bytes(row.body),
        hash=bytes(row.hash),
        position=row.position,
        due=Due(row.due_at),
    )
    if row.subscription is None:
        found = targets(context, catalog, delivery)
    else:  # the others have theirs
        found = [target_of(context, catalog.subscriptions[row.subscription], delivery)]
    own = next((target for target in found if target.consumer_id == row.consumer), None)
    comes = None if own is None else own.key_hash
    # Those with numbers wait for theirs in any case.
    keys = {one.key_hash for one in found if one.key_hash is not None and one.sequence is None}
    return Placement(
        seq=row.seq,
        adoption=None if own is None else _adoption(own, row),
        copies=[_copy(row, delivery, target) for target in found if target is not own],
        mismatch=mismatch_of(0, delivery),
        keys=frozenset(key for key in (row.key_hash, comes) if key is not None),
        place=row.place,
        only_key=next(iter(keys), None),
        is_known=len(keys) <= 1 and not any(one.keyless for one in found),
    )


def _adoption(own: Target, row: UnhandledRow) -> Adoption:
    place = sequence = own.sequence
    if row.due_at is not None and own.keyless:
        sequence = LAST_PLACE  # as it came: it holds up no others
    elif row.due_at is not None and sequence is None:
        place = LAST_PLACE
    unplaced = row.type if own.keyless else None
    return Adoption(own.subscription, own.key_hash, sequence, unplaced, own.key, own.aggregate, place, row.due_at)


def _copy(row: UnhandledRow, delivery: Delivery, target: Target) -> NewRow:
    """The row of another consumer, in the place of the message."""
    copy = new_row(0, delivery, target, row.source)
    copy["stored_id"] = bytes(row.stored_id)
    if row.due_at is not None:
        return copy
    copy["place"] = row.place if target.sequence is None else target.sequence
    if target.keyless:
        copy["sequence"] = row.seq  # when it came, for those that came later
    return copy


def _put_off(context: Context, seq: int, error: Exception) -> None:
    """The database refuses a message: it is tried again, later each time."""
    times, _ = context.unplaceable.get(seq, (0, 0.0))
    pause = min(FIRST_PAUSE * 2**times, LONGEST_PAUSE)
    context.unplaceable[seq] = times + 1, context.clock() + pause
    if not times:
        log.error(
            "message #%d stays unhandled, the database refuses its row: %s. Details: %s",
            seq,
            error,
            context.hint("explain", seq),
        )
