"""Attempt: run a group of messages in one transaction: effects, results, what was sent and "done" are one commit.

Invariant: a message leaves the queue only in the transaction that holds its effects, and only while it carries our
note. Whatever a handler raises, swallows or forgets, and wherever the connection breaks, everything of the attempt is
afterwards either committed or rolled back, and we have read which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from onceward import identity, payload
from onceward.errors import (
    ClaimLost,
    ContractViolation,
    GuardFailed,
    HandlerTimeout,
    StoreConflict,
    StoreError,
    StoreUnavailable,
)
from onceward.flow import COMMIT, RECONNECT, ROLLBACK, Call, Each, Flow, Outcome, Query, Request, Wait
from onceward.message import Delivery
from onceward.registry import OUTBOX, Handler
from onceward.steps.blob import put_sent
from onceward.steps.claim import Taken, claim_query, let_go, may_ride, take
from onceward.steps.context import Catalog, Context, once
from onceward.steps.lane import Claimed, Lane
from onceward.steps.receive import READY, Target, record


class Failed(NamedTuple):
    """What went wrong, and for whom where that is known."""

    error: BaseException
    culprit: Claimed | None
    infrastructure: bool = False


class Attempted(NamedTuple):
    """The first `finished` messages of a group are committed, and nothing of the others."""

    finished: int = 0
    failed: Failed | None = None
    """Why it ended there, if not because it took long."""
    following: Taken | None = None
    """What was claimed along with it."""


SPACING = 10
"""After how many messages a wary lane makes a point to go back to: that is one more round trip, and saves running half
as many again for each that fails."""


def attempt(lane: Lane, group: list[Claimed], *, ride: bool) -> Flow[Attempted]:
    """Run a group in one transaction and finish it; what fails is undone, with the others since the last point."""
    if group[0].problem:
        away = isinstance(group[0].problem, StoreUnavailable)
        return Attempted(failed=Failed(group[0].problem, group[0], infrastructure=away))
    mark = f"{group[0].worker}.{group[0].token}.{group[0].seq}"
    results: list[dict[str, Any]] = []
    lane.alone = len(group) == 1
    yield lane.context.long(max(message.timeout for message in group), mark)
    count, failed = yield from _run(lane, group, results)
    if not count:
        yield from undo(lane)
        return Attempted(failed=failed)
    done = group[:count]
    if failed:
        kept = {message.seq for message in done}
        results = [result for result in results if result["seq"] in kept]
    try:
        following = yield from _finish(lane, done, results, mark, ride=ride and count == len(group))
    except (StoreError, ContractViolation) as error:
        return (yield from _explain(lane, done, error))
    if any(message.sent for message in done):
        lane.ring()
    return Attempted(count, failed, following)


def _run(lane: Lane, group: list[Claimed], results: list[dict[str, Any]]) -> Flow[tuple[int, Failed | None]]:
    """Call the handlers, one after another, for as long as a group may take; answers how many stand, and who failed."""
    patience = lane.context.settings.group_time.total_seconds()
    started = lane.context.clock()
    count = point = 0
    for part in _calls(group):
        if lane.wary and count - point == SPACING and not lane.outgoing:  # what is published cannot be gone back on
            try:
                yield Query("make_point")
            except (StoreError, ContractViolation) as error:  # somebody has swallowed one, or ended the transaction
                away = isinstance(error, StoreConflict | StoreUnavailable)
                return 0, Failed(error, None, infrastructure=away)
            point = count
        outcome = yield from _call(lane, part)
        failure = outcome.error if outcome.error is not None else _keep_results(part, outcome.value, results)
        if failure is not None:
            failed = Failed(failure, part[0] if len(part) == 1 else None, outcome.infrastructure)
            if part[0].external:  # what was published before it stays published, and a sink's database is not ours
                return count, failed._replace(infrastructure=False)
            return (yield from _step_back(failed, point)), failed
        count += len(part)
        if outcome.leaves or lane.context.clock() - started > patience:
            break
    return count, None


def _step_back(failed: Failed, point: int) -> Flow[int]:
    """Undo what came since the last point; answers how many stand, none where there is no point to rely on."""
    # One that ran too long may still be about to be interrupted: that would hit whatever comes next.
    if not point or failed.infrastructure or isinstance(failed.error, HandlerTimeout):
        return 0
    try:
        yield Query("back_to_point")
    except (StoreError, ContractViolation):  # the handler has ended the transaction, or the connection is gone
        return 0
    return point


def _calls(group: list[Claimed]) -> Iterator[list[Claimed]]:
    """The messages that share one call: each its own, except for a handler that takes them all."""
    if group[0].handler and group[0].handler.batch:
        yield group
    else:
        yield from ([message] for message in group)


def _call(lane: Lane, part: list[Claimed]) -> Flow[Outcome]:
    """Call the handler for these messages, unless they are stale."""
    calls = [message.request for message in part if not message.stale]
    if not calls:
        return Outcome()
    drafts = [call.message.draft for call in calls if call.message.draft]
    for draft in drafts:
        draft.begin()
    lane.begin_call()
    first, fresh = calls[0], [call.message for call in calls]
    outcome: Outcome = yield Call(first.handler, fresh) if first.handler.batch else first
    for draft in drafts:
        draft.end()
    outcome = lane.end_call(outcome)
    if outcome.error is None and any(draft.deliveries for draft in drafts):
        put = yield from put_sent(lane.context, fresh)
        return outcome if put.error is None else put
    return outcome


def _keep_results(part: list[Claimed], value: Any, results: list[dict[str, Any]]) -> ContractViolation | None:
    if value is None:
        return None
    fresh = [message for message in part if not message.stale]
    try:
        texts = result_texts(fresh[0].request.handler, len(fresh), value)
    except ContractViolation as violation:
        return violation
    results += [{"seq": m.seq, "result": text} for m, text in zip(fresh, texts, strict=True) if text is not None]
    return None


def result_texts(handler: Handler, count: int, value: Any) -> list[str | None]:
    """What a handler returned for so many messages, as it is stored: one text each, None for nothing."""
    if value is None:
        return [None] * count
    values = value if handler.batch else [value]
    if not isinstance(values, list) or len(values) != count:
        raise ContractViolation(
            f"the handler took {count} messages and returned {type(value).__name__}; "
            "return None or a list with one result for each"
        )
    try:
        return [None if one is None else payload.encode_text(one) for one in values]
    except (TypeError, ValueError, RecursionError) as error:
        raise ContractViolation(
            f"the handler returned {type(value).__name__}, which cannot be stored as its result ({error}); "
            "return None or JSON-able data"
        ) from error


def _finish(
    lane: Lane, group: Sequence[Claimed], results: list[dict[str, Any]], mark: str, *, ride: bool
) -> Flow[Taken | None]:
    """Delete the queue rows under our note, and claim the next group in the same transaction."""
    seqs = [message.seq for message in group]
    keys = sorted({message.key_hash for message in group if message.key_hash is not None})
    requests = [*_beside(lane.context, group, results)]
    counted = [message.seq for message in group if message.sequence is not None and not message.stale]
    if keys:
        requests.append(Query("lock_keys", {"key_hashes": keys}))
    if counted:
        requests.append(Query("advance", {"seqs": counted}))
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
        return None
    return (yield from take(lane, requests, claim_query(lane, lane.token())))


def _beside(context: Context, group: Sequence[Claimed], results: list[dict[str, Any]]) -> Iterator[Request]:
    """What is written in the same transaction beside the effects themselves."""
    if results:
        yield Each("store_results", results)
    sent = [delivery for message in group for delivery in message.sent]
    if sent:
        yield send_request(context, context.cache.catalog, sent)
    bodies = [message.seq for message in group if message.handler and not message.handler.keep_body]
    if bodies:
        yield Query("forget_bodies", {"seqs": bodies})
    for message in group:
        if message.stale:
            reason = f"number {message.sequence} came after a later one of its key was applied"
            yield Query("add_audit", {"action": "skip", "seq": message.seq, "actor": "onceward", "reason": reason})


def send_request(context: Context, catalog: Catalog, deliveries: Sequence[Delivery]) -> Each:
    """The rows of outgoing messages: messages like any other, whose consumer is the relay."""
    relay = catalog.relay
    if relay is None:
        raise AssertionError("a process that sends has introduced itself")
    records = []
    for ordinal, delivery in enumerate(deliveries):
        hashed = None if delivery.key is None else outgoing_key_hash(context.prefix, delivery.destination, delivery.key)
        target = Target(OUTBOX, relay.consumer_id, relay.id, delivery.key, hashed)
        records.append(record(ordinal, delivery, target, catalog.names[delivery.source]))
    return Each("receive", records, {**READY, "outgoing": True, "catalog": None})


def outgoing_key_hash(prefix: str, destination: str | None, key: str) -> int:
    """Outgoing messages are in order per destination and key."""
    return identity.key_hash(prefix, OUTBOX, f"{destination or ''}\x00{key}")


def _explain(lane: Lane, group: list[Claimed], error: Exception) -> Flow[Attempted]:
    """The finish of a group failed: find out what is true now. Read, never guess."""
    yield from undo(lane)
    if not isinstance(error, StoreUnavailable | GuardFailed):
        let_go(lane, *(lane.open_tokens - {group[0].token}))  # a claim that rode along was undone with the rest
        return Attempted(failed=Failed(error, None, infrastructure=isinstance(error, StoreConflict)))
    mine = yield from still_ours(lane, group[0])
    yield from forget_claims(lane, keep=group[0].token)
    if isinstance(error, StoreUnavailable) and not any(message.seq in mine for message in group):
        return Attempted(len(group))  # it was committed, only the answer was lost
    if not all(message.seq in mine for message in group):
        return Attempted(failed=Failed(ClaimLost(f"another worker took a message over: {error}"), None))
    if isinstance(error, GuardFailed):
        return Attempted(failed=Failed(transaction_ended(), None))
    return Attempted(failed=Failed(error, None, infrastructure=True))


def transaction_ended() -> ContractViolation:
    """The error of a handler whose transaction is not the one it was given."""
    return ContractViolation(
        "the handler ended the transaction it was given (a COMMIT or ROLLBACK inside a statement or procedure); "
        "what it committed by itself is not undone. Returning commits, raising rolls back: remove the statement"
    )


def still_ours(lane: Lane, claimed: Claimed) -> Flow[set[int]]:
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
