"""Take up messages that came before anybody handled their type, or where their key could not be found.

Invariant: a message of an unknown type is never lost and never run twice: it waits as `unhandled`, and fanning
it out replaces that row by one per consumer in one transaction. A message with a key that came later waits until it is
placed (`park`): it may be of the same key.
"""

from __future__ import annotations

import logging
from itertools import takewhile
from typing import Any, NamedTuple

from onceward.domain import payload
from onceward.errors import RightsMissing, StoreConflict, StoreError, StoreUnavailable
from onceward.flow import COMMIT, ROLLBACK, Each, Flow, Query
from onceward.message import NO_HEADERS, Delivery
from onceward.steps.context import MOST_PLACED, Context, know_numbers, load_catalog
from onceward.steps.read import finds_key
from onceward.steps.receive import (
    READY,
    Target,
    identity_of,
    known_by_ordinal,
    mismatch,
    record,
    target_of,
    targets,
)

log = logging.getLogger("onceward")

PAUSE = 0.25
"""For how many seconds a claim leaves a message alone that came after one which is not placed."""


BODY = 7
"""Where a row of an unhandled message has its body."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 600.0
"""After how many seconds a message is tried again whose placing the database refused: twice as many each time."""

TRIES = 5
"""How often in a row the catalog may turn out to be outdated."""


def fan_out(context: Context, *, seconds: float | None = None) -> Flow[int]:
    """Turn unhandled messages whose type is known by now into one row per consumer; answers how many.

    It goes on until none is left that can be placed, or for so many seconds.
    """
    placed, vain, careful = 0, 0, False
    until = None if seconds is None else context.clock() + seconds
    while vain < TRIES and (until is None or context.clock() < until):
        try:
            found, moved, refused = yield from _place_some(context, careful=careful)
        except StoreUnavailable:  # perhaps so many are too much at once
            context.placing_limit = max(1, context.placing_limit // 2)
            raise
        except (StoreConflict, RightsMissing):
            raise
        except StoreError:
            if careful:
                raise
            yield ROLLBACK
            careful = True  # it may be the fault of one of them
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


def _place_some(context: Context, *, careful: bool) -> Flow[tuple[int, int, int]]:
    """Place the next ones; answers how many there were, are placed (none under an outdated catalog), and are refused.

    Carefully, one that the database refuses is set aside, and the others are placed.
    """
    yield context.short()
    version, waiting = yield (Query("catalog"), Query("unhandled_types"))
    wanted = _placeable(context, waiting)
    if version[0][0] != context.cache.catalog.version and waiting:
        yield COMMIT
        yield from load_catalog(context, context.cache)
        return len(waiting), 0, 0
    if not any(wanted.values()):
        yield COMMIT
        return 0, 0, 0
    passed = [seq for seq, (_, due) in context.unplaceable.items() if due > context.clock()]
    found = yield Query("unhandled", {**wanted, "passed": passed, "limit": context.placing_limit})
    if len(found) < context.placing_limit:  # whatever is not there was placed by others, or discarded
        there = {*passed, *(row[0] for row in found)}
        context.unplaceable = {seq: tried for seq, tried in context.unplaceable.items() if seq in there}
    rows = yield from _whole(found)
    yield from know_numbers(context.cache, (number for row in rows for number in (row[1], row[8])))
    moves = [_plan(context, row) for row in rows]
    keys = sorted({key_hash for move in moves for key_hash in move.key_hashes})
    if keys:
        yield Query("lock_keys", {"key_hashes": keys})
    made: list[bool | None] = []
    for move in moves:
        made += [(yield from (_try if careful else _make)(context, move))]
    if keys:  # whatever waits behind a row that has gone, or has moved back in its key, goes on
        yield Query("promote", {"key_hashes": keys})
    yield COMMIT
    for move, is_placed in zip(moves, made, strict=True):
        if is_placed:
            context.unplaceable.pop(move.seq, None)
    if False in made:  # under an outdated catalog nothing is copied; the next round has a newer one
        yield from load_catalog(context, context.cache)
    return len(made), made.count(True), made.count(None)


def _whole(rows: list[tuple[Any, ...]]) -> Flow[list[tuple[Any, ...]]]:
    """The first rows with their bodies; one whose body is large is placed by itself: many would fill the memory."""
    small = list(takewhile(lambda row: row[BODY] is not None, rows))
    if small or not rows:
        return small
    seq, first = rows[0][0], rows[0]
    ((body,),) = yield Query("body_of", {"seq": seq})
    return [(*first[:BODY], body or b"", *first[BODY + 1 :])]


def _placeable(context: Context, waiting: list[tuple[str, int | None]]) -> dict[str, list[Any]]:
    """Types that somebody wants by now, and subscriptions whose keys this process can find."""
    catalog = context.cache.catalog
    mine = [catalog.subscriptions[number] for _, number in waiting if number and number in catalog.subscriptions]
    return {
        "types": [name for name, number in waiting if number is None and name in catalog.by_type],
        "subscriptions": [subscription.id for subscription in mine if finds_key(context, subscription)],
    }


class Move(NamedTuple):
    """What becomes of one unhandled row."""

    seq: int
    stored_id: bytes
    source: int
    delivery: Delivery
    own: Target | None
    """The service's own consumer, which keeps the row; None where only others want it."""
    others: list[Target]
    key_hashes: set[int]
    """The key in which the row stands, and that in which it comes to stand."""
    place: int
    """Its place in the order, which the copies keep, whatever came in between."""


def _plan(context: Context, row: tuple[Any, ...]) -> Move:
    seq, source, message_id, message_type, version, key, headers, body, consumer, stored_id, digest, *rest = row
    place, mine, position, stands = rest
    catalog = context.cache.catalog
    delivery = Delivery(
        source=catalog.numbers[source],
        id=message_id,
        type=message_type,
        version=version,
        key=key,
        headers=payload.decode_text(headers) if headers else NO_HEADERS,
        body=bytes(body),
        hash=bytes(digest),
        position=position,
    )
    if mine is None:
        found = targets(context, catalog, delivery)
    else:  # the others have theirs
        found = [target_of(context, catalog.subscriptions[mine], delivery)]
    own = next((target for target in found if target.consumer_id == consumer), None)
    others = [target for target in found if target is not own]
    comes = None if own is None else own.key_hash
    key_hashes = {key_hash for key_hash in (stands, comes) if key_hash is not None}
    return Move(seq, bytes(stored_id), source, delivery, own, others, key_hashes, place)


def _make(context: Context, move: Move) -> Flow[bool]:
    """Give every consumer its row; False when that was refused, and then the unhandled row stays."""
    heirs = []
    for target in move.others:
        heir = yield from _copy(context, move, target)
        if heir is None:
            return False
        heirs.append(heir)
    if move.own is None:
        yield Query("hand_on", {"seq": move.seq, "heir": heirs[0]})
        yield Query("remove_unhandled", {"seq": move.seq})
    else:
        place = {"key_hash": move.own.key_hash, "sequence": move.own.sequence}
        unplaced = move.delivery.type if move.own.keyless else None
        yield Query("adopt", {"seq": move.seq, "subscription": move.own.subscription, "unplaced": unplaced, **place})
        named = {"key": move.own.key, "aggregate": move.own.aggregate, "key_from": None}
        yield Query("set_body_key", {"seq": move.seq, **named})
    return True


def _try(context: Context, move: Move) -> Flow[bool | None]:
    """The same, where one of several is refused by the database: None if it is this one, which is set aside."""
    yield Query("make_point")
    try:
        return (yield from _make(context, move))
    except (StoreUnavailable, StoreConflict, RightsMissing):
        raise
    except StoreError as error:
        yield Query("back_to_point")
        yield from _set_aside(context, move, error)
        return None


def _set_aside(context: Context, move: Move, error: StoreError) -> Flow[None]:
    """It is tried again, later each time; meanwhile those of its key wait behind it, and no others.

    Where its key is not known, or it has one with each of several consumers, all that have a key go on waiting.
    """
    times, _ = context.unplaceable.get(move.seq, (0, 0.0))
    pause = min(FIRST_PAUSE * 2**times, LONGEST_PAUSE)
    context.unplaceable[move.seq] = times + 1, context.clock() + pause
    if not times:
        log.error("message #%d stays unhandled, the database refuses its row: %s", move.seq, error)
    found = [*move.others, *([move.own] if move.own else [])]
    # Those with numbers wait for theirs in any case.
    keys = {one.key_hash for one in found if one.key_hash is not None and one.sequence is None}
    if len(keys) <= 1 and not any(one.keyless for one in found):
        yield Query("set_aside", {"seq": move.seq, "key_hash": next(iter(keys), None)})


def _copy(context: Context, move: Move, target: Target) -> Flow[int | None]:
    """A row for another consumer; answers its number, None under an outdated catalog."""
    place = move.place if target.sequence is None else target.sequence
    copy = record(0, move.delivery, target, move.source) | {"stored_id": move.stored_id, "place": place}
    if target.keyless:
        copy["sequence"] = move.seq  # when it came, for those that came later
    fresh = yield Each("receive", [copy], {**READY, "catalog": context.cache.catalog.version})
    if fresh:
        return int(fresh[0][1])
    known = known_by_ordinal((yield Each("known", [identity_of(copy)]))).get(0)
    if known is None:
        return None
    if known.is_same(move.delivery):  # another service has it too, and it may have come there later
        yield Query("bring_forward", {"seq": known.seq, "place": move.place, "since": move.seq})
    else:
        yield mismatch(known.seq, move.delivery)
    return known.seq
