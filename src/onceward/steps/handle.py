"""Handle: run claimed messages in groups; the handler's effects, its results and "done" are one commit.

Invariant: a message leaves the queue only in the transaction that holds its effects, and only while it carries
our note. Whatever a handler raises, swallows or forgets, and wherever the connection breaks, the message is
afterwards finished, settled, or still noted as ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onceward import payload
from onceward.errors import (
    ClaimLost,
    ContractViolation,
    GuardFailed,
    StoreConflict,
    StoreError,
    StoreUnavailable,
)
from onceward.flow import COMMIT, RECONNECT, ROLLBACK, Each, Flow, Outcome, Query, Request, Wait
from onceward.steps.claim import as_batch, claim_query, heads, let_go, may_ride, next_batch
from onceward.steps.context import once
from onceward.steps.lane import Claimed, Lane
from onceward.steps.settle import postpone, release, settle


@dataclass(frozen=True, slots=True)
class Finished:
    """The first `count` messages of a group are committed; `following` was claimed along with them."""

    count: int
    following: list[Claimed] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Failed:
    """Everything was rolled back. `culprit` is the message that raised, where it is known."""

    error: BaseException
    culprit: Claimed | None
    infrastructure: bool = False


def work(lane: Lane, *, until_idle: bool = False) -> Flow[int]:
    """The life of a lane: claim, handle, wait; answers how many messages it finished."""
    batch: list[Claimed] = []
    swept = False
    while not lane.stopping():
        try:
            if not batch:
                batch = yield from next_batch(lane)
            if batch:
                swept = False
                batch = yield from handle(lane, batch)
            elif lane.wants_alone or lane.gate.closed:
                yield Wait(0.01)
            elif until_idle and not swept:  # idle is only what a look from the very beginning finds idle
                lane.swept_at, swept = float("-inf"), True
            elif until_idle:
                break
            else:
                yield Wait(lane.context.settings.poll.total_seconds())
        except StoreUnavailable:
            batch = []
            yield from reconnect(lane)
            yield from forget_claims(lane)
    if batch:
        yield from release(lane, batch)
    lane.gate.leave(lane)
    return lane.finished


def handle(lane: Lane, batch: list[Claimed]) -> Flow[list[Claimed]]:
    """Run a batch to its end: in groups while all goes well, one by one where something fails."""
    aside = _with_followers([message for message in batch if message.problem], batch)
    pending = [message for message in batch if message not in aside]
    failures = 0
    following: list[Claimed] = []
    while pending or aside:
        if lane.stopping():
            yield from release(lane, pending + aside)
            break
        group = _next_group(pending, aside, alone=failures > 1)
        outcome = yield from _attempt(lane, group, ride=not pending and not aside)
        if isinstance(outcome, Finished):
            lane.finished += outcome.count
            lane.group = min(lane.group + max(1, lane.group // 10), lane.largest_group)
            pending[:0] = group[outcome.count :]
            following = outcome.following
        elif isinstance(outcome.error, ClaimLost):
            mine = yield from _still_ours(lane, group[0])
            pending = [message for message in group + pending if message.seq in mine]
            aside = [message for message in aside if message.seq in mine]
        elif len(group) == 1:
            yield from _settle_one(lane, group[0], outcome)
            behind = [message for message in pending + aside if message.follows(group[0])]
            yield from release(lane, behind)
            pending = [message for message in pending if message not in behind]
            aside = [message for message in aside if message not in behind]
        else:
            failures += 1
            lane.group = max(1, lane.group // 2)
            suspects = _suspects(outcome, group, pending)
            aside = sorted(aside + suspects, key=lambda message: message.seq)
            pending = [message for message in group + pending if message not in suspects]
    let_go(lane, batch[0].token)
    return following


def _next_group(pending: list[Claimed], aside: list[Claimed], *, alone: bool) -> list[Claimed]:
    """Take the messages that may share the next transaction."""
    if not pending:
        return [aside.pop(0)]
    size = 1
    if not alone:
        limits = [message.group for message in pending]
        while size < min(limits[: size + 1]) and size < len(pending):
            size += 1
    group = pending[:size]
    del pending[:size]
    return group


def _suspects(failed: Failed, group: list[Claimed], pending: list[Claimed]) -> list[Claimed]:
    """Who must run alone after a group failed: the one that raised and what comes after it in its key, or everyone."""
    named = [failed.culprit] if failed.culprit and not failed.infrastructure else group
    return _with_followers(named, group + pending)


def _with_followers(chosen: list[Claimed], among: list[Claimed]) -> list[Claimed]:
    """The chosen ones and whatever comes after one of them in its key."""
    return [message for message in among if message in chosen or any(message.follows(one) for one in chosen)]


def _attempt(lane: Lane, group: list[Claimed], *, ride: bool) -> Flow[Finished | Failed]:
    """Run a group in one transaction and finish it; or undo all of it and say who failed."""
    if group[0].problem:
        return Failed(group[0].problem, group[0])
    patience = lane.context.settings.group_time.total_seconds()
    mark = f"{group[0].worker}.{group[0].token}.{group[0].seq}"
    started = lane.context.clock()
    results: list[dict[str, Any]] = []
    count = 0
    yield lane.context.long(max(message.timeout for message in group), mark)
    for message in group:
        outcome: Outcome = yield message.request
        failure = outcome.error or _keep_result(message, outcome.value, results)
        if failure:
            yield from undo(lane)
            return Failed(failure, message, outcome.infrastructure)
        count += 1
        if lane.context.clock() - started > patience:
            break
    try:
        following = yield from _finish(lane, group[:count], results, mark, ride=ride and count == len(group))
    except (StoreError, ContractViolation) as error:
        return (yield from _explain(lane, group[:count], error))
    return Finished(count, following)


def _explain(lane: Lane, group: list[Claimed], error: Exception) -> Flow[Finished | Failed]:
    """The finish of a group failed: find out what is true now. Read, never guess."""
    yield from undo(lane)
    if not isinstance(error, StoreUnavailable | GuardFailed):
        return Failed(error, None, infrastructure=isinstance(error, StoreConflict))
    mine = yield from _still_ours(lane, group[0])
    yield from forget_claims(lane, keep=group[0].token)
    if isinstance(error, StoreUnavailable) and not any(message.seq in mine for message in group):
        return Finished(len(group))  # it was committed, only the answer was lost
    if isinstance(error, GuardFailed) and all(message.seq in mine for message in group):
        return Failed(_transaction_ended(), None)
    return Failed(ClaimLost(f"the group was not committed: {error}"), None)


def _keep_result(message: Claimed, value: Any, results: list[dict[str, Any]]) -> ContractViolation | None:
    if value is None:
        return None
    try:
        results.append({"seq": message.seq, "result": payload.encode_text(value)})
    except (TypeError, ValueError, RecursionError) as error:
        return ContractViolation(
            f"the handler returned {type(value).__name__}, which cannot be stored as its result ({error}); "
            "return None or JSON-able data"
        )
    return None


def _transaction_ended() -> ContractViolation:
    return ContractViolation(
        "the handler ended the transaction it was given (a COMMIT or ROLLBACK inside a statement or procedure); "
        "what it committed by itself is not undone. Returning commits, raising rolls back: remove the statement"
    )


def _finish(
    lane: Lane, group: Sequence[Claimed], results: list[dict[str, Any]], mark: str, *, ride: bool
) -> Flow[list[Claimed]]:
    """Delete the queue rows under our note, and claim the next group in the same transaction."""
    seqs = [message.seq for message in group]
    keys = sorted({message.key_hash for message in group if message.key_hash is not None})
    bodies = [message.seq for message in group if message.handler and not message.handler.keep_body]
    requests: list[Request] = []
    if results:
        requests.append(Each("store_results", results))
    if bodies:
        requests.append(Query("forget_bodies", {"seqs": bodies}))
    if keys:
        requests.append(Query("lock_keys", {"key_hashes": keys}))
    requests.append(
        Query(
            "finish",
            {
                "seqs": seqs,
                "worker": group[0].worker,
                "token": group[0].token,
                "code_version": lane.context.code_version,
                "mark": mark,
                "expected": len(seqs),
            },
        )
    )
    if keys:
        requests.append(Query("promote", {"key_hashes": keys}))
    if not ride or not may_ride(lane):
        yield (*requests, COMMIT)
        return []
    token = lane.token()
    answers = yield (*requests, claim_query(lane, token))
    rows = yield from heads(lane, token, answers[-1])
    yield COMMIT
    return as_batch(lane, token, rows)


def _settle_one(lane: Lane, message: Claimed, failed: Failed) -> Flow[None]:
    """A message failed alone: charge it, or try again soon where the database was at fault."""
    if failed.infrastructure:
        yield from postpone(lane, message, failed.error)
    else:
        yield from settle(lane, message, failed.error)


def _still_ours(lane: Lane, claimed: Claimed) -> Flow[set[int]]:
    """What still carries the note of this claim."""
    (rows,) = yield from once(lane.context, Query("noted", {"worker": claimed.worker, "token": claimed.token}))
    return {seq for (seq,) in rows}


def undo(lane: Lane) -> Flow[None]:
    """Roll back; a lost connection has rolled back by itself."""
    try:
        yield ROLLBACK
    except StoreUnavailable:
        yield from reconnect(lane)


def reconnect(lane: Lane) -> Flow[None]:
    """Get a working connection again, however long that takes; a stop ends the wait."""
    pause = 0.05
    while not (yield RECONNECT):
        if lane.stopping():
            raise StoreUnavailable("stopped while the database was away; the messages in hand come back by themselves")
        yield Wait(pause)
        pause = min(pause * 2, 2.0)


def forget_claims(lane: Lane, keep: int | None = None) -> Flow[None]:
    """Let go of claims whose commit was never answered; a row that carries none of them is not ours."""
    tokens = sorted(lane.open_tokens - {keep})
    if tokens:
        yield from once(lane.context, Query("release", {"worker": lane.owner, "tokens": tokens}))
        let_go(lane, *tokens)
