"""Claim: mark the next due messages as ours, in a committed transaction, before anything runs.

Invariant: a row is ours only while it carries our (worker, token). With keys, a row is kept only if every
earlier row of its key is in this same claim, seen in a statement that began after the key lock was taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from onceward.domain.pauses import Pauses, Rest
from onceward.errors import StoreUnavailable
from onceward.flow import Flow
from onceward.registry import Subscription
from onceward.steps.context import load_catalog
from onceward.steps.lane import IN_KEY, Claimed, Lane, claimed, let_go
from onceward.steps.lot import LIGHT, Lot
from onceward.steps.subscribe import place_soon
from onceward.stores.moves.claims import Claim, ClaimedRow, Verdict
from onceward.stores.moves.claims import Claimed as Found

ISOLATED_SECONDS = 1.0
"""How often a lane looks for isolated messages."""
MOST_HELD = 1000
"""How many keys a look passes over at most."""

Kept = tuple[ClaimedRow, Verdict]


class Look(NamedTuple):
    """A claim that is about to be made, and for which lot."""

    lot: Lot
    claim: Claim
    began: float
    past: bool = False
    """It leaves out the types whose backlog may hide the others."""

    @property
    def token(self) -> int:
        """What it writes into the rows that it takes."""
        return self.claim.token

    @property
    def is_full_scan(self) -> bool:
        """Whether it begins at the very beginning."""
        return not self.claim.cursor and not self.claim.isolation


class Taken(NamedTuple):
    """What a committed claim has brought."""

    look: Look
    kept: Sequence[Kept]
    """What is ours to run."""
    seen: bool = True
    """It found rows, whatever became of them."""
    more: bool = False
    """Some of them wait from now on, or are to be claimed once more: behind them there may be others."""
    unplaced: bool = False
    """Some of them wait for a message that came before them and is not placed yet."""


def claim_due(lane: Lane) -> Flow[list[Claimed]]:
    """Claim a group of due messages that are not isolated, of the lot whose turn it is."""
    empty = [lot for lot in lane.lots if lot.is_empty]
    if lane.looks_around():
        empty = yield from _look_around(lane, empty)
    batch = yield from _claim_in_turn(lane, lane.lots_in_turn())
    while empty and not batch:
        empty = yield from _look_around(lane, empty)
        batch = yield from _claim_in_turn(lane, lane.lots_in_turn())
    return batch


def _claim_in_turn(lane: Lane, lots: list[Lot]) -> Flow[list[Claimed]]:
    for lot in lots:
        batch = yield from _claim_from(lane, lot)
        lane.turn += 1
        if batch:
            return batch
    return []


def _look_around(lane: Lane, empty: list[Lot]) -> Flow[list[Lot]]:
    """Find an empty lot that has got something; returns which of the others may have, too.

    All of them by one look, for it reads past the backlog of those that are not empty.
    """
    if len(empty) == 1:  # its claim is as good as a look
        empty[0].is_empty = False
        return []
    began = lane.context.clock()
    wanted = [number for lot in empty for number in served(lane, lot.subscriptions)]
    found = yield from lane.context.moves.claims.first_due(wanted)
    now = lane.context.clock()
    for lot in empty:
        if not found:
            lot.found_empty(began, now)
        elif not found.isdisjoint(one.id for one in lot.subscriptions):
            lot.is_empty = False
    return [lot for lot in empty if found and lot.is_empty]


def _claim_from(lane: Lane, lot: Lot) -> Flow[list[Claimed]]:
    while lane.isolation.enter(lane):
        look = _look(lane, lot, (yield from _share(lane, lot)) if lot.is_shared else min(lot.size, lane.most))
        taken = yield from take(lane, look)
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
    where = Claim(lane.worker(), 0, served(lane, lot.subscriptions), most, lot.cursor)
    share = yield from lane.context.moves.claims.fair_share(where)
    return max(1, min(share, most))


def _pass_over(lane: Lane, look: Look) -> Flow[bool]:
    """A claim found nothing: are rows ready whose keys others hold? Then the next one passes over those keys.

    Outgoing messages have no keys that are locked for long.
    """
    if lane.outgoing or len(look.claim.held) >= MOST_HELD:
        return False
    found = yield from lane.context.moves.claims.keys_in_front(look.claim)
    look.lot.held.add(found, lane.context.clock())
    return bool(found)


def may_claim_next(lane: Lane) -> Lot | None:
    """The lot whose next claim may be made in the transaction that finishes the last one.

    That saves a round trip where there is more to take; where there is not, the effects would be committed later.
    """
    if not any(lot.has_backlog for lot in lane.lots):
        return None
    if lane.had_isolated or isolated_are_due(lane) or lane.looks_around():  # it is the turn of others
        return None
    if lane.context.clock() >= lane.context.look_at:  # something may be paused by now
        return None
    lot = next(iter(lane.lots_in_turn()), None)
    if lot is None or not lot.has_backlog or lot.is_shared:
        return None
    return None if lane.stopping() or lane.isolation.closed else lot


def next_claim(lane: Lane, lot: Lot) -> Look:
    """The claim that is made along with a finish."""
    lane.turn += 1
    return _look(lane, lot, lane.size(lot))


def isolated_are_due(lane: Lane) -> bool:
    """Whether it is time to look for isolated messages; while one runs alone, nothing may be claimed."""
    waited = lane.context.clock() - lane.looked_at
    return lane.wants_alone or (waited >= ISOLATED_SECONDS and not lane.isolation.closed)


def _look(lane: Lane, lot: Lot, most: int) -> Look:
    """The claim of a lot. It begins at the cursor of its lot; now and then it is a full scan."""
    now, wanted = lane.context.clock(), served(lane, lot.subscriptions)
    behind = lot.behind(wanted, now)
    if not behind and lot.full_scan_due(now):
        lot.cursor = 0
    orders = lane.destination is None  # outgoing messages have neither keys that are held nor retries among new ones
    held = lot.held.at(now)
    retries, held = (lot.again(most), held) if orders else (0, [])
    lane.owner = lane.worker()
    claim = Claim(lane.owner, lane.token(), behind or wanted, most, lot.cursor, retries, held, lane.destination)
    if lane.counts:
        claim.gaps, claim.rests = gaps(lane), rests(lane, lot.subscriptions)
    return Look(lot, claim, now, bool(behind))


def gaps(lane: Lane) -> dict[int, float] | None:
    """How long a message waits for the number before it, by subscription; None where none is known to be numbered."""
    if not lane.counts:
        return None
    catalog, registry = lane.context.cache.catalog, lane.context.registry
    handlers = {number: registry.of_type(one.consumer, one.type) for number, one in catalog.subscriptions.items()}
    return {number: handler.gap.total_seconds() if handler else 0.0 for number, handler in handlers.items()}


def rests(lane: Lane, subscriptions: Sequence[Subscription]) -> dict[int, Sequence[Rest]]:
    """When these were paused, which does not count for how long a number waits for the one before it."""
    pauses, now = lane.context.cache.catalog.pauses, lane.context.clock()
    if not lane.counts or not pauses.rows:
        return {}
    return {one.id: pauses.rests(one.consumer, one.type, now) for one in subscriptions}


def take(lane: Lane, look: Look) -> Flow[Taken]:
    """Claim, in a transaction of its own."""
    try:
        found = yield from lane.context.moves.claims.claim(look.claim)
    except StoreUnavailable:
        lane.claim_less(look.lot)
        raise
    return taken_by(lane, look, found)


def taken_by(lane: Lane, look: Look, found: Found) -> Taken:
    """What a claim has brought; its lot learns of it."""
    lot, now = look.lot, lane.context.clock()
    is_full = found.found == look.claim.limit
    if look.past:
        lot.looked_past(look.began, now, full=is_full)
    else:
        lot.has_backlog = is_full
        lot.rest(look.began, now, is_empty=not found.found)
        lot.front = found.subscriptions if is_full and len(lot.subscriptions) > 1 else frozenset()
        if look.is_full_scan:
            lot.full_scan_done(look.began, now)
    keys = found.stepped_back.difference(look.claim.held)
    if keys:
        lot.held.add(keys, now)
    more = bool(found.found) and (found.parked or bool(keys) or (look.claim.gaps is None and _numbered(found.kept)))
    return Taken(look, found.kept, bool(found.found), more, found.unplaced)


def _numbered(kept: Sequence[Kept]) -> bool:
    return not {row.sequence for row, _ in kept} <= {None}


def as_batch(lane: Lane, taken: Taken) -> Flow[list[Claimed]]:
    """The messages of a committed claim, in order."""
    look, kept, *_ = taken
    if not lane.counts and _numbered(kept):  # another version counts them: look at them first from now on
        lane.counts, kept = True, []
        yield from lane.context.moves.claims.unclaim_tokens(lane.owner, [look.token])
    if not kept:
        let_go(lane, look.token)
        return []
    cache, rows = lane.context.cache, [row for row, _ in kept]
    if not cache.catalog.subscriptions.keys() >= {row.subscription for row in rows}:
        yield from load_catalog(lane.context, cache)  # a failover lost it, others told it again
    if not cache.catalog.numbers.keys() >= {row.source for row in rows}:  # a source is new
        cache.learn((yield from lane.context.moves.catalog.names()))
    lane.lot, look.lot.scanned_idle = look.lot, False
    look.lot.is_light = sum([len(row.body or b"") for row in rows]) <= LIGHT * len(rows)
    if not look.past:
        look.lot.cursor = min([row.seq for row in rows])
    batch = [claimed(lane, look.token, row, verdict) for row, verdict in kept]
    return sorted(batch, key=IN_KEY)


def served(lane: Lane, subscriptions: list[Subscription]) -> list[int]:
    """The numbers of subscriptions, without what is paused: by an operator, or as each handler's circuit is open."""
    registry, pauses = lane.context.registry, lane.context.cache.catalog.pauses
    return [
        subscription.id
        for subscription in subscriptions
        if not registry.all_paused(subscription.consumer, lane.destination or subscription.type)
        and not (pauses.rows and _is_paused(pauses, lane.destination, subscription))
    ]


def _is_paused(pauses: Pauses, destination: str | None, subscription: Subscription) -> bool:
    """Whether an operator has stopped it."""
    if destination is not None:
        return pauses.publishing(destination) is not None
    return pauses.handling(subscription.consumer, subscription.type) is not None
