"""Claim: note the next due messages as ours, in a committed transaction, before anything runs.

Invariant: a row is ours only while it carries our (worker, token). With keys, a row is kept only if every
earlier row of its key is in this same claim, seen in a statement that began after the key lock was taken.
"""

from __future__ import annotations

from typing import Any

from onceward.flow import COMMIT, Flow, Query
from onceward.steps.context import know_numbers, once
from onceward.steps.lane import Claimed, Lane, claimed

SWEEP_SECONDS = 1.0

Row = tuple[Any, ...]


def next_batch(lane: Lane) -> Flow[list[Claimed]]:
    """Claim what comes next: now and then a suspect, else a group of due messages."""
    if lane.wants_alone or _sweep_is_due(lane):
        batch = yield from _claim_suspect(lane)
        if batch or lane.wants_alone:
            return batch
    if not lane.gate.enter(lane):
        return []
    token = lane.token()
    yield lane.context.short()
    rows = yield claim_query(lane, token)
    rows = yield from heads(lane, token, rows)
    yield COMMIT
    return as_batch(lane, token, rows)


def may_ride(lane: Lane) -> bool:
    """Whether the next claim may be made in the transaction that finishes the last one."""
    return not (lane.stopping() or lane.gate.closed or _sweep_is_due(lane))


def _sweep_is_due(lane: Lane) -> bool:
    return lane.context.clock() - lane.swept_at >= SWEEP_SECONDS


def _claim_suspect(lane: Lane) -> Flow[list[Claimed]]:
    """Claim one message that was in flight when a process died, with the process to itself."""
    (rows,) = yield from once(lane.context, Query("suspects", {"subscriptions": served(lane)}))
    lane.wants_alone = bool(rows[0][0])
    if not lane.wants_alone:
        lane.gate.leave(lane)
        return []
    if not lane.gate.enter_alone(lane):
        return []
    token = lane.token()
    lane.owner = lane.worker()
    yield lane.context.short()
    found = yield Query("claim_solo", {"worker": lane.owner, "token": token, "subscriptions": served(lane)})
    found = yield from heads(lane, token, found)
    yield COMMIT
    lane.wants_alone = bool(found)
    return as_batch(lane, token, found)


def claim_query(lane: Lane, token: int) -> Query:
    """The statement that claims; it may also ride in the transaction that finishes the group before."""
    lane.owner = lane.worker()
    if _sweep_is_due(lane):  # from zero: for late commits and released rows
        lane.swept_at = lane.context.clock()
        lane.floor = 0
    return Query(
        "claim",
        {
            "worker": lane.owner,
            "token": token,
            "limit": lane.group,
            "floor": lane.floor,
            "subscriptions": served(lane),
        },
    )


def heads(lane: Lane, token: int, rows: list[Row]) -> Flow[list[Row]]:
    """Park the rows that are not at the head of their key; answers what remains."""
    yield from know_numbers(lane.context.cache, (row[4] for row in rows))
    keyed = [row[0] for row in rows if row[2] is not None]
    if not keyed:
        return rows
    answer = yield Query("park", {"seqs": keyed, "worker": lane.owner, "token": token})
    parked = {seq for (seq,) in answer}
    return [row for row in rows if row[0] not in parked]


def as_batch(lane: Lane, token: int, rows: list[Row]) -> list[Claimed]:
    """The messages of a committed claim, in order."""
    if not rows:
        let_go(lane, token)
        return []
    batch = sorted((claimed(lane, token, row) for row in rows), key=lambda message: message.seq)
    lane.floor = batch[0].seq
    return batch


def let_go(lane: Lane, *tokens: int) -> None:
    """Forget tokens whose rows are known to be gone; out of the gate when none is left."""
    lane.open_tokens.difference_update(tokens)
    if not lane.open_tokens:
        lane.gate.leave(lane)


def served(lane: Lane) -> list[int]:
    """The numbers of the subscriptions this lane has handlers for."""
    return [subscription.id for subscription in lane.subscriptions]
