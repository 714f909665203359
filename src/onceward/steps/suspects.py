"""Suspects: messages that a process held when it died. One of them may have killed it, and would do so again.

Invariant: a message that must run alone is noted only while its process holds no other note, so that a crash then
has one cause. All others run beside the messages of other lanes, in one lane at a time, and hold nobody up.
"""

from __future__ import annotations

from onceward.flow import Flow, Query
from onceward.steps.claim import Look, as_batch, claim_due, served, suspects_are_due, take
from onceward.steps.context import once
from onceward.steps.lane import Claimed, Lane
from onceward.steps.subscribe import place_soon

ALONE = 1
"""A level: it runs while its process holds nothing else. A higher one, n, is shared by n - 1 suspects in a claim."""
APART = 2
"""A level: it runs beside the messages of other lanes, but without another suspect."""


def next_batch(lane: Lane) -> Flow[list[Claimed]]:
    """Claim what comes next. Where suspects wait, they and other messages come in turn: neither holds up the other."""
    had_suspects, lane.had_suspects = lane.had_suspects, False
    if had_suspects:
        lane.looked_at = float("-inf")
        batch = yield from claim_due(lane)
        if batch:
            return batch
    if suspects_are_due(lane):
        batch = yield from _claim_suspects(lane)
        if batch or lane.wants_alone:
            return batch
    return (yield from claim_due(lane))


def _claim_suspects(lane: Lane) -> Flow[list[Claimed]]:
    """Claim suspects of the highest level: a group of them, or one with the process to itself."""
    while True:
        wanted = {"subscriptions": served(lane, lane.subscriptions), "destination": lane.destination}
        (rows,) = yield from once(lane.context, Query("suspects", wanted))
        level: int = rows[0][0]
        lane.looked_at, lane.wants_alone = lane.context.clock(), level == ALONE
        if not _entered(lane, level):
            return []
        lane.owner = lane.worker()
        most = min(max(level - 1, 1), lane.size(lane.suspects))
        lot, now = lane.suspects, lane.context.clock()
        params = {"worker": lane.owner, "token": lane.token(), "level": level, "limit": most, "held": lot.held.at(now)}
        look = Look(lot, Query("claim_suspects", {**params, **wanted}), now)
        taken = yield from take(lane, [lane.context.short()], look)
        lane.wants_alone = False
        if taken.unplaced:
            yield from place_soon(lane.context)
        batch = yield from as_batch(lane, taken)
        lane.had_suspects = bool(batch)
        if batch or not taken.more or lane.stopping():  # others may be behind those that wait or stepped back
            return batch


def _entered(lane: Lane, level: int) -> bool:
    """Whether it may claim suspects of a level now; what must be alone asks again until it is."""
    if level == ALONE:
        return lane.gate.enter_alone(lane)
    lane.gate.leave(lane)  # it may have asked to be alone
    kind = lane.destination, frozenset(subscription.id for subscription in lane.subscriptions)
    return level > 0 and lane.gate.enter_with_suspects(lane, kind)
