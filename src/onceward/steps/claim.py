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
    batch = yield from kept(lane, token, rows)
    yield COMMIT
    if not batch:
        let_go(lane, token)
    return batch


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
    batch = yield from kept(lane, token, found)
    yield COMMIT
    if not batch:
        let_go(lane, token)
        lane.wants_alone = False
    return batch


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


def kept(lane: Lane, token: int, rows: list[tuple[Any, ...]]) -> Flow[list[Claimed]]:
    """Park the rows that are not at the head of their key; what remains, in order."""
    parked: set[int] = set()
    keyed = [row[0] for row in rows if row[2] is not None]
    if keyed:
        answer = yield Query("park", {"seqs": keyed, "worker": lane.owner, "token": token})
        parked = {seq for (seq,) in answer}
    yield from know_numbers(lane.context.catalog, (row[4] for row in rows))
    batch = sorted((row for row in rows if row[0] not in parked), key=lambda row: row[0])
    if batch:
        lane.floor = batch[0][0]
    return [claimed(lane, token, row) for row in batch]


def let_go(lane: Lane, *tokens: int) -> None:
    """Forget tokens whose rows are known to be gone; out of the gate when none is left."""
    lane.open_tokens.difference_update(tokens)
    if not lane.open_tokens:
        lane.gate.leave(lane)


def served(lane: Lane) -> list[int]:
    """The numbers of the subscriptions this lane has handlers for."""
    return [subscription.id for subscription in lane.subscriptions]
