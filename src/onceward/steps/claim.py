"""Claim: note the next due messages as ours, in a committed transaction, before anything runs.

Invariant: a row is ours only while it carries our (worker, token). With keys, a row is kept only if every
earlier row of its key is in this same claim, seen in a statement that began after the key lock was taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from onceward.errors import StoreUnavailable
from onceward.flow import COMMIT, Flow, Query, Request
from onceward.steps.context import load_catalog, once
from onceward.steps.lane import PASS, Claimed, Lane, Verdict, claimed
from onceward.steps.subscribe import place_soon

SWEEP_SECONDS = 1.0
SUSPECTS_SECONDS = 1.0

Row = tuple[Any, ...]
Kept = tuple[Row, Verdict]


class Taken(NamedTuple):
    """What a committed claim has brought."""

    token: int
    kept: list[Kept]
    """What is ours to run."""
    seen: bool = True
    """It found rows, whatever became of them."""
    more: bool = False
    """Some of them wait from now on, or are to be claimed once more: behind them there may be others."""
    unplaced: bool = False
    """Some of them wait for a message that came before them and is not placed yet."""


def claim_due(lane: Lane) -> Flow[list[Claimed]]:
    """Claim a group of due messages that are not suspects."""
    passed = 0
    while lane.gate.enter(lane):
        token = lane.token()
        # All that a handler does commits after its claim, and is lost with it; what is published is not.
        begin = lane.context.short(durable=lane.outgoing)
        query = claim_query(lane, token, passed)
        taken = yield from take(lane, [begin], query)
        if taken.unplaced:
            yield from place_soon(lane.context)
        batch = yield from as_batch(lane, taken)
        beyond = [] if taken.seen else (yield from _beyond(lane, query))
        if batch or not (taken.more or beyond) or lane.stopping():
            return batch
        # Every row was parked, or its key was locked by others: that is not idle, more may be behind them.
        passed = beyond[0][0] + 1 if beyond else passed
    return []


def _beyond(lane: Lane, query: Query) -> Flow[list[Row]]:
    """How far a claim that found nothing has looked; outgoing messages have no keys that are locked for long."""
    if lane.outgoing:
        return []
    where = {name: query.params[name] for name in ("worker", "floor", "limit", "subscriptions")}
    (found,) = yield from once(lane.context, Query("ready_beyond", where), durable=False)
    return found


def may_ride(lane: Lane) -> bool:
    """Whether the next claim may be made in the transaction that finishes the last one.

    That saves a round trip where there is more to take; where there is not, the effects would be committed later.
    """
    if lane.had_suspects or suspects_are_due(lane):  # it is the turn of the others, or of suspects
        return False
    return lane.ahead and not (lane.stopping() or lane.gate.closed or _sweep_is_due(lane))


def suspects_are_due(lane: Lane) -> bool:
    """Whether it is time to look for suspects; while one runs alone, nothing may be claimed."""
    waited = lane.context.clock() - lane.looked_at
    return lane.wants_alone or (waited >= SUSPECTS_SECONDS and not lane.gate.closed)


def _sweep_is_due(lane: Lane) -> bool:
    return lane.context.clock() - lane.swept_at >= SWEEP_SECONDS


def claim_query(lane: Lane, token: int, passed: int = 0) -> Query:
    """The statement that claims; it may also ride in the transaction that finishes the group before.

    It begins at the lane's floor, or behind what was just looked at in vain.
    """
    lane.owner = lane.worker()
    if _sweep_is_due(lane):  # from zero: for late commits and released rows
        lane.swept_at = lane.context.clock()
        lane.floor = 0
    return Query(
        "claim_outgoing" if lane.outgoing else "claim",
        {
            "worker": lane.owner,
            "token": token,
            "limit": lane.group,
            "floor": max(lane.floor, passed),
            **wanted(lane),
        },
    )


def take(lane: Lane, before: Sequence[Request], claim: Query) -> Flow[Taken]:
    """End a transaction with a claim, without the rows that are not at the head of their key, and commit it.

    It travels in one go, unless messages are numbered within their key: then it is looked at before it is committed.
    """
    try:
        return (yield from _take(lane, before, claim))
    except StoreUnavailable:
        lane.claim_less()
        raise


def _take(lane: Lane, before: Sequence[Request], claim: Query) -> Flow[Taken]:
    token: int = claim.params["token"]
    park = Query("park", {"worker": lane.owner, "token": token})
    if not lane.counts:
        *_, rows, parked, _ = yield (*before, claim, park, COMMIT)
        lane.ahead = len(rows) == lane.group
        kept = [(row, PASS) for row in _without(rows, parked)]
        return Taken(token, kept, bool(rows), bool(rows) and (_waits(parked) or _numbered(kept)), _unplaced(parked))
    *_, rows, parked = yield (*before, claim, park)
    lane.ahead = len(rows) == lane.group
    heads = _without(rows, parked)
    passed = yield from _in_sequence(lane, token, heads)
    yield COMMIT
    more = bool(rows) and (_waits(parked) or len(passed) < len(heads))
    return Taken(token, passed, bool(rows), more, _unplaced(parked))


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
    subscription = lane.context.cache.catalog.subscriptions[row[1]]
    handler = lane.context.registry.of_type(subscription.consumer, subscription.type)
    return handler.gap.total_seconds() - float(row[-1]) if handler else 0.0


def as_batch(lane: Lane, taken: Taken) -> Flow[list[Claimed]]:
    """The messages of a committed claim, in order."""
    token, kept, *_ = taken
    if not lane.counts and _numbered(kept):  # another version counts them: look at them first from now on
        lane.counts, kept = True, []
        yield from once(lane.context, Query("release", {"worker": lane.owner, "tokens": [token]}))
    if not kept:
        let_go(lane, token)
        return []
    cache = lane.context.cache
    if any(row[1] not in cache.catalog.subscriptions for row, _ in kept):  # a failover lost it, others told it again
        yield from load_catalog(lane.context, cache)
    if not cache.catalog.knows(row[6] for row, _ in kept):  # a source is new
        (names,) = yield from once(lane.context, Query("names"))
        cache.catalog = cache.catalog.learned(names)
    lane.floor, lane.swept_idle = min(row[0] for row, _ in kept), False
    batch = [claimed(lane, token, row, verdict) for row, verdict in kept]
    return sorted(batch, key=lambda message: (message.place, message.seq))


def let_go(lane: Lane, *tokens: int) -> None:
    """Forget tokens whose rows are known to be gone; out of the gate when none is left."""
    lane.open_tokens.difference_update(tokens)
    if not lane.open_tokens:
        lane.gate.leave(lane)


def wanted(lane: Lane) -> dict[str, Any]:
    """Which messages a claim is for; `destination` is where outgoing ones go, and no incoming one has any."""
    return {"subscriptions": served(lane), "destination": lane.destination}


def served(lane: Lane) -> list[int]:
    """The numbers of the subscriptions this lane has handlers for, without those whose every version has paused."""
    registry = lane.context.registry
    return [
        subscription.id
        for subscription in lane.subscriptions
        if not registry.all_paused(subscription.consumer, lane.destination or subscription.type)
    ]
