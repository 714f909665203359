"""Isolated messages: those that a process held when it died. One of them may have killed it, and would do so again.

Invariant: a message that must run alone is claimed only while its process holds no other claim, so that a crash then
has one cause. All others run beside the messages of other lanes, in one lane at a time, and hold up no other.
"""

from __future__ import annotations

from onceward.flow import Flow
from onceward.steps.claim import (
    ISOLATED_SECONDS,
    Look,
    as_batch,
    claim_due,
    gaps,
    isolated_are_due,
    rests,
    served,
    take,
)
from onceward.steps.context import catalog_wait, stay_current
from onceward.steps.lane import Claimed, Lane
from onceward.steps.subscribe import place_soon
from onceward.stores.moves.claims import Claim

ALONE = 1
"""A level: it runs while its process holds nothing else. A higher one, n, is shared by n - 1 of them in a claim."""
APART = 2
"""A level: it runs beside the messages of other lanes, but without another isolated message."""


def next_batch(lane: Lane) -> Flow[list[Claimed]]:
    """Claim what comes next. Where isolated messages wait, they and others come in turn: neither holds up the other."""
    if lane.context.clock() >= lane.context.look_at:
        yield from stay_current(lane.context)
    lane.current_at = lane.context.current_at
    had_isolated, lane.had_isolated = lane.had_isolated, False
    if had_isolated:
        lane.looked_at = float("-inf")
        batch = yield from claim_due(lane)
        if batch:
            return batch
    if isolated_are_due(lane):
        batch = yield from _claim_isolated(lane)
        if batch or lane.wants_alone:
            return batch
    return (yield from claim_due(lane))


def look_wait(lane: Lane) -> float:
    """After looks in vain: in how many seconds one is due that is not made every time.

    What woke the lane may be there: something isolated, something that is paused no more, or a key that is free.
    """
    now, isolated = lane.context.clock(), lane.isolated.held
    again = 0.0 if lane.looked_at < lane.woken_at else isolated.wait(now)
    catalog = catalog_wait(lane.context, lane.current_at, lane.woken_at)
    return min(catalog, max(0.0, lane.looked_at + ISOLATED_SECONDS - now, again))


def _claim_isolated(lane: Lane) -> Flow[list[Claimed]]:
    """Claim isolated messages of the highest level: a group of them, or one with the process to itself."""
    while True:
        wanted = served(lane, lane.subscriptions)
        level = yield from lane.context.moves.claims.isolation_level(wanted, lane.destination)
        lane.looked_at, lane.wants_alone = lane.context.clock(), level == ALONE
        if level == 0:
            lane.isolated.held.forget()
        if not _entered(lane, level):
            return []
        lane.owner = lane.worker()
        most = min(max(level - 1, 1), lane.size(lane.isolated))
        lot, now = lane.isolated, lane.context.clock()
        claim = Claim(lane.owner, lane.token(), wanted, most, held=lot.held.at(now), isolation=level, gaps=gaps(lane))
        claim.destination, claim.rests = lane.destination, rests(lane, lane.subscriptions)
        taken = yield from take(lane, Look(lot, claim, now))
        lane.wants_alone = False
        if taken.unplaced:
            yield from place_soon(lane.context)
        batch = yield from as_batch(lane, taken)
        lane.had_isolated = bool(batch)
        if batch or not taken.more or lane.stopping():  # others may be behind those that wait or stepped back
            return batch


def _entered(lane: Lane, level: int) -> bool:
    """Whether it may claim isolated messages of a level now; what must be alone asks again until it is."""
    if level == ALONE:
        return lane.isolation.enter_alone(lane)
    lane.isolation.leave(lane)  # it may have asked to be alone
    kind = lane.destination, frozenset(subscription.id for subscription in lane.subscriptions)
    return level > 0 and lane.isolation.enter_with_isolated(lane, kind)
