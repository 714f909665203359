"""Claim: note the next due messages as ours, in a committed transaction, before anything runs.

Invariant: a row is ours only while it carries our (worker, token). With keys, a row is kept only if every
earlier row of its key is in this same claim, seen in a statement that began after the key lock was taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from onceward.errors import StoreUnavailable
from onceward.flow import COMMIT, Flow, Query, Request
from onceward.registry import Subscription
from onceward.steps.context import load_catalog, once
from onceward.steps.lane import Claimed, Lane, claimed
from onceward.steps.lot import LIGHT, Lot
from onceward.steps.order import PASS, Verdict
from onceward.steps.subscribe import place_soon

SUSPECTS_SECONDS = 1.0
"""How often a lane looks for suspects."""
UNKNOWN_SECONDS = 1.0
"""For how long a number waits whose subscription is not known."""
MOST_HELD = 1000
"""How many keys a look passes over at most."""

Row = tuple[Any, ...]
BODY = 12
"""Where a row has its body."""
Kept = tuple[Row, Verdict]


class Look(NamedTuple):
    """A claim that is about to be made: for which lot, and by which statement."""

    lot: Lot
    query: Query
    began: float
    past: bool = False
    """It leaves out the types whose backlog may hide the others."""

    @property
    def token(self) -> int:
        """What it writes into the rows that it takes."""
        token: int = self.query.params["token"]
        return token

    @property
    def is_sweep(self) -> bool:
        """Whether it begins at the very beginning."""
        return "floor" in self.query.params and not self.query.params["floor"]


class Taken(NamedTuple):
    """What a committed claim has brought."""

    look: Look
    kept: list[Kept]
    """What is ours to run."""
    seen: bool = True
    """It found rows, whatever became of them."""
    more: bool = False
    """Some of them wait from now on, or are to be claimed once more: behind them there may be others."""
    unplaced: bool = False
    """Some of them wait for a message that came before them and is not placed yet."""


def claim_due(lane: Lane) -> Flow[list[Claimed]]:
    """Claim a group of due messages that are not suspects, of the lot whose turn it is."""
    empty = [lot for lot in lane.lots if lot.is_empty]
    if lane.looks_around():
        empty = yield from _look_around(lane, empty)
    batch = yield from _claim_in_turn(lane)
    while empty and not batch:
        empty = yield from _look_around(lane, empty)
        batch = yield from _claim_in_turn(lane)
    return batch


def _claim_in_turn(lane: Lane) -> Flow[list[Claimed]]:
    for lot in lane.lots_in_turn():
        batch = yield from _claim_from(lane, lot)
        lane.turn += 1
        if batch:
            return batch
    return []


def _look_around(lane: Lane, empty: list[Lot]) -> Flow[list[Lot]]:
    """Find an empty lot that has got something; answers which of the others may have, too.

    All of them by one look, for it reads past the backlog of those that are not empty.
    """
    if len(empty) == 1:  # its claim is as good as a look
        empty[0].is_empty = False
        return []
    began = lane.context.clock()
    wanted = [number for lot in empty for number in served(lane, lot.subscriptions)]
    (rows,) = yield from once(lane.context, Query("first_due", {"subscriptions": wanted}), durable=False)
    found, now = {number for (number,) in rows}, lane.context.clock()
    for lot in empty:
        if not found:
            lot.found_empty(began, now)
        elif not found.isdisjoint(one.id for one in lot.subscriptions):
            lot.is_empty = False
    return [lot for lot in empty if found and lot.is_empty]


def _claim_from(lane: Lane, lot: Lot) -> Flow[list[Claimed]]:
    while lane.gate.enter(lane):
        # All that a handler does commits after its claim, and is lost with it; what is published is not.
        begin = lane.context.short(durable=lane.outgoing)
        most = (yield from _share(lane, lot)) if lot.is_shared else lane.size(lot)
        look = _look(lane, lot, most)
        taken = yield from take(lane, [begin], look)
        if taken.unplaced:
            yield from place_soon(lane.context)
        batch = yield from as_batch(lane, taken)
        if batch:
            return batch
        # Every row was parked, or its key was held by others: that is not idle, more may be behind them.
        is_idle = not (look.past or taken.more or (not taken.seen and (yield from _pass_over(lane, look))))
        if is_idle or lane.stopping():
            return []
    return []


def _share(lane: Lane, lot: Lot) -> Flow[int]:
    """How many messages a claim takes where other lanes could run some of them at the same time."""
    most = lane.size(lot)
    where = {"limit": most, "floor": lot.floor, "subscriptions": served(lane, lot.subscriptions)}
    (((share,),),) = yield from once(lane.context, Query("fair_share", where), durable=False)
    return max(1, min(int(share), most))


def _pass_over(lane: Lane, look: Look) -> Flow[bool]:
    """A claim found nothing: are rows ready whose keys others hold? Then the next one passes over those keys.

    Outgoing messages have no keys that are locked for long.
    """
    if lane.outgoing or len(look.query.params["held"]) >= MOST_HELD:
        return False
    where = {name: look.query.params[name] for name in ("worker", "floor", "limit", "subscriptions", "held")}
    (found,) = yield from once(lane.context, Query("keys_in_front", where), durable=False)
    look.lot.held.note((key for (key,) in found), lane.context.clock())
    return bool(found)


def may_ride(lane: Lane) -> Lot | None:
    """The lot whose next claim may be made in the transaction that finishes the last one.

    That saves a round trip where there is more to take; where there is not, the effects would be committed later.
    """
    if lane.had_suspects or suspects_are_due(lane) or lane.looks_around():  # it is the turn of others
        return None
    lot = next(iter(lane.lots_in_turn()), None)
    if lot is None or not lot.ahead or lot.is_shared:
        return None
    return None if lane.stopping() or lane.gate.closed else lot


def riding(lane: Lane, lot: Lot) -> Look:
    """The claim that rides."""
    lane.turn += 1
    return _look(lane, lot, lane.size(lot))


def suspects_are_due(lane: Lane) -> bool:
    """Whether it is time to look for suspects; while one runs alone, nothing may be claimed."""
    waited = lane.context.clock() - lane.looked_at
    return lane.wants_alone or (waited >= SUSPECTS_SECONDS and not lane.gate.closed)


def _look(lane: Lane, lot: Lot, most: int) -> Look:
    """The claim of a lot. It begins at the floor of its lot, and now and then at the very beginning."""
    lane.owner, now = lane.worker(), lane.context.clock()
    wanted = served(lane, lot.subscriptions)
    behind = lot.behind(wanted, now)
    if not behind and lot.sweeps(now):
        lot.floor = 0
    params = {"worker": lane.owner, "token": lane.token(), "limit": most, "floor": lot.floor}
    if lane.outgoing:
        query = Query("claim_outgoing", {**params, "subscriptions": wanted, "destination": lane.destination})
    else:
        passed = {"again": lot.again(most), "held": lot.held.at(now)}
        query = Query("claim", {**params, **passed, "subscriptions": behind or wanted})
    return Look(lot, query, now, bool(behind))


def take(lane: Lane, before: Sequence[Request], look: Look) -> Flow[Taken]:
    """End a transaction with a claim, without the rows that are not at the head of their key, and commit it.

    It travels in one go, unless messages are numbered within their key: then it is looked at before it is committed.
    """
    try:
        return (yield from _take(lane, before, look))
    except StoreUnavailable:
        lane.claim_less(look.lot)
        raise


def _take(lane: Lane, before: Sequence[Request], look: Look) -> Flow[Taken]:
    park = Query("park", {"worker": lane.owner, "token": look.token})
    if not lane.counts:
        *_, rows, parked, _ = yield (*before, look.query, park, COMMIT)
        kept = [(row, PASS) for row in _without(rows, parked)]
        more = _numbered(kept)
    else:
        *_, rows, parked = yield (*before, look.query, park)
        heads = _without(rows, parked)
        kept = yield from _in_sequence(lane, look.token, heads)
        yield COMMIT
        more = len(kept) < len(heads)
    stepped_back = _note_result(lane, look, rows, parked)
    more = bool(rows) and (more or stepped_back or _waits(parked))
    return Taken(look, kept, bool(rows), more, _unplaced(parked))


def _note_result(lane: Lane, look: Look, rows: list[Row], parked: list[Row]) -> bool:
    """What the next look goes by; answers whether rows stepped back behind later ones of their keys, which are held."""
    lot, now = look.lot, lane.context.clock()
    is_full = len(rows) == look.query.params.get("limit")
    if look.past:
        lot.looked_past(look.began, now, full=is_full)
    else:
        lot.ahead = is_full
        lot.rest(look.began, now, is_empty=not rows)
        lot.front = frozenset(row[1] for row in rows) if is_full and len(lot.subscriptions) > 1 else frozenset()
        if look.is_sweep:
            lot.swept(look.began, now)
    still_due = {seq for seq, state in parked if state not in ("waiting", "unplaced")}
    keys = {row[2] for row in rows if row[0] in still_due}.difference(look.query.params.get("held", ()))
    lot.held.note(keys, now)
    return bool(keys)


def _without(rows: list[Row], parked: list[Row]) -> list[Row]:
    gone = {seq for seq, _ in parked}
    return [row for row in rows if row[0] not in gone] if gone else rows


def _waits(parked: list[Row]) -> bool:
    return any(state in ("waiting", "unplaced") for _, state in parked)


def _unplaced(parked: list[Row]) -> bool:
    return any(state == "unplaced" for _, state in parked)


def _numbered(kept: list[Kept]) -> bool:
    return any(row[4] is not None for row, _ in kept)


def _in_sequence(lane: Lane, token: int, rows: list[Row]) -> Flow[list[Kept]]:
    """Let a number pass when the one before it is applied or in this claim; else hold it until its deadline."""
    counted = [row[0] for row in rows if row[4] is not None]
    if not counted:
        return [(row, PASS) for row in rows]
    answer = yield Query("progress", {"seqs": counted})
    applied = dict(answer)
    following: dict[tuple[int, str], int] = {}
    held: set[tuple[int, str]] = set()
    kept: list[Kept] = []
    for row in sorted(rows, key=lambda row: (row[3], row[0])):
        seq, key, number = row[0], (row[2], row[10]), row[4]  # by hash and name: two keys may have one hash
        left: float | None = None
        if key not in held:  # behind one that is held, everything of its key waits
            if number is None:
                kept.append((row, PASS))
                continue
            wanted = following.setdefault(key, applied[seq] + 1)
            if number <= wanted:
                following[key] = max(wanted, number + 1)
                kept.append((row, Verdict(stale=number < wanted)))
                continue
            left = _patience(lane, row)
            if left <= 0:
                kept.append((row, Verdict(late=f"waited for number {wanted} of its key, which did not come in time")))
                following[key] = number + 1
                continue
            held.add(key)
        yield Query("hold", {"seq": seq, "worker": lane.owner, "token": token, "delay": left})
    return kept


def _patience(lane: Lane, row: Row) -> float:
    """How many seconds a message may still wait for the number before it."""
    subscription = lane.context.cache.catalog.subscriptions.get(row[1])
    if subscription is None:  # a failover lost it; it is known again when this lane has read the catalog anew
        return UNKNOWN_SECONDS
    handler = lane.context.registry.of_type(subscription.consumer, subscription.type)
    return handler.gap.total_seconds() - float(row[-1]) if handler else 0.0


def as_batch(lane: Lane, taken: Taken) -> Flow[list[Claimed]]:
    """The messages of a committed claim, in order."""
    look, kept, *_ = taken
    if not lane.counts and _numbered(kept):  # another version counts them: look at them first from now on
        lane.counts, kept = True, []
        yield from once(lane.context, Query("release", {"worker": lane.owner, "tokens": [look.token]}))
    if not kept:
        let_go(lane, look.token)
        return []
    cache = lane.context.cache
    if any(row[1] not in cache.catalog.subscriptions for row, _ in kept):  # a failover lost it, others told it again
        yield from load_catalog(lane.context, cache)
    if not cache.catalog.knows(row[6] for row, _ in kept):  # a source is new
        (names,) = yield from once(lane.context, Query("names"))
        cache.catalog = cache.catalog.learned(names)
    lane.lot, look.lot.swept_idle = look.lot, False
    look.lot.is_light = sum(len(row[BODY] or b"") for row, _ in kept) <= LIGHT * len(kept)
    if not look.past:
        look.lot.floor = min(row[0] for row, _ in kept)
    token = look.token
    batch = [claimed(lane, token, row, verdict) for row, verdict in kept]
    return sorted(batch, key=lambda message: (message.place, message.seq))


def let_go(lane: Lane, *tokens: int) -> None:
    """Forget tokens whose rows are known to be gone; out of the gate when none is left."""
    lane.open_tokens.difference_update(tokens)
    if not lane.open_tokens:
        lane.gate.leave(lane)


def served(lane: Lane, subscriptions: list[Subscription]) -> list[int]:
    """The numbers of subscriptions, without those of which every version of the handler has paused."""
    registry = lane.context.registry
    return [
        subscription.id
        for subscription in subscriptions
        if not registry.all_paused(subscription.consumer, lane.destination or subscription.type)
    ]
