"""Attempt: run a group of messages in one transaction: effects, results, what was sent and "done" are one commit.

Invariant: a message leaves the queue only in the transaction that holds its effects, and only while it carries our
note. Whatever a handler raises, swallows or forgets, and wherever the connection breaks, everything of the attempt is
afterwards either committed or rolled back, and we have read which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from onceward.domain import identity, payload
from onceward.errors import (
    ClaimLost,
    ContractViolation,
    GuardFailed,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    TransactionEnded,
)
from onceward.flow import COMMIT, RECONNECT, ROLLBACK, Call, Each, Flow, Outcome, Query, Request, Wait
from onceward.message import Delivery
from onceward.registry import OUTBOX, Handler
from onceward.steps.blob import put_sent
from onceward.steps.claim import Taken, let_go, may_ride, riding, take
from onceward.steps.context import Catalog, Context, once
from onceward.steps.group import MOST_SAVEPOINTS, Group
from onceward.steps.lane import Claimed, Lane
from onceward.steps.receive import READY, Target, record
from onceward.steps.settle import release, release_query, settle, settle_query, story_of, tell
from onceward.steps.use import note_use


class Failed(NamedTuple):
    """Why nothing of a group is committed, and who was at fault where that is known."""

    error: BaseException
    culprit: Claimed | None = None
    infrastructure: bool = False


class Attempted(NamedTuple):
    """What became of a group: `finished` and `given_back` are committed, and what failed is settled with them."""

    finished: Sequence[Claimed] = ()
    given_back: Sequence[Claimed] = ()
    alone: Sequence[Claimed] = ()
    """They are to run again, alone."""
    rest: Sequence[Claimed] = ()
    """They have not run yet."""
    recovered: Sequence[Handler] = ()
    """Their circuits were open, and a message has gone through."""
    lost: Failed | None = None
    """Nothing of it is committed, for this reason."""
    following: Taken | None = None
    """What was claimed along with it."""


def attempt(lane: Lane, messages: list[Claimed], held: Sequence[Claimed], *, ride: bool) -> Flow[Attempted]:
    """Run a group in one transaction and finish it. One that fails is settled in the same commit, the others stay.

    What follows it in its key goes back with it, also from among what the lane holds beside the group.
    """
    first, group = messages[0], Group(messages)
    mark = f"{first.worker}.{first.token}.{first.seq}"
    lane.alone = not group.shares
    if first.problem:
        if isinstance(first.problem, StoreUnavailable):
            return Attempted(lost=Failed(first.problem, first, infrastructure=True))
        group.fails(group.next(), first.problem, infrastructure=False)
    else:
        yield lane.context.long(max(message.timeout for message in messages), mark, savepoint=group.shares)
        lost = yield from _run(lane, group)
        lane.note_pace()
        if lost is not None or not group.standing:
            yield from undo(lane)
        if lost is not None:
            return Attempted(lost=lost)
    group.leave(held)
    following = None
    if group.standing:
        try:
            following = yield from _finish(lane, group, mark, ride=ride and not group.rest and not group.alone)
        except (StoreError, ContractViolation) as error:
            lost = yield from _explain(lane, group, error)
            if lost is not None:
                return Attempted(lost=lost)
    else:
        yield from _settle_apart(lane, group)
    if any(message.sent for message in group.standing):
        lane.ring()
    return Attempted(
        finished=group.standing,
        given_back=group.given_back,
        alone=group.alone,
        rest=group.rest,
        recovered=group.recovered,
        following=following,
    )


def _run(lane: Lane, group: Group) -> Flow[Failed | None]:
    """Call the handlers, one after another, for as long as a group may take; answers why the transaction is lost."""
    patience = lane.context.settings.group_time.total_seconds()
    started = now = lane.context.clock()
    own = 0
    while part := group.next():
        began = now
        outcome = yield from _call(lane, part)
        failure = outcome.error
        if failure is None and outcome.value is not None:
            failure = _keep_results(part, outcome.value, group.results)
        away = outcome.infrastructure and not part[0].external  # a sink's database is not ours
        culprit = part[0] if len(part) == 1 else None
        own += outcome.savepoints
        now = lane.context.clock()
        lane.spent += now - began
        lane.ran += len(part)
        try:
            if outcome.lost or (failure is not None and not group.shares and away):
                return Failed(failure or TransactionEnded(), culprit, away)
            if failure is None:
                group.stands(part, touched=outcome.touched)
                if group.wants_savepoint(now - began - outcome.inside):
                    yield Query("make_point")
                    group.saved()
                    now = lane.context.clock()
            else:
                if outcome.touched and group.shares:
                    yield Query("back_to_point")
                    group.undone()
                group.fails(part, failure, infrastructure=away)
        except (StoreError, ContractViolation) as error:  # the transaction was ended, or the connection is gone
            away = away or isinstance(error, StoreConflict | StoreUnavailable)
            return Failed(error, None if away else culprit, infrastructure=away)
        if outcome.leaves or now - started > patience or own + group.savepoints >= MOST_SAVEPOINTS:
            break
    return None


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
    sent = any(draft.deliveries for draft in drafts)
    note_use(lane, first.handler, outcome, fresh, sent=sent)
    if outcome.error is None and sent:
        put = yield from put_sent(lane.context, fresh)
        return outcome if put.error is None else replace(outcome, error=put.error, infrastructure=put.infrastructure)
    return outcome


def _settle_apart(lane: Lane, group: Group) -> Flow[None]:
    """Nothing stands, so there is no commit that those who failed could be settled in: each has its own."""
    for failure in group.failures:
        yield from settle(lane, failure)
    yield from release(lane, group.given_back)


def _keep_results(part: list[Claimed], value: Any, results: dict[int, str]) -> ContractViolation | None:
    fresh = [message for message in part if not message.stale]
    try:
        texts = result_texts(fresh[0].request.handler, len(fresh), value)
    except ContractViolation as violation:
        return violation
    results.update((message.seq, text) for message, text in zip(fresh, texts, strict=True) if text is not None)
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


def _finish(lane: Lane, group: Group, mark: str, *, ride: bool) -> Flow[Taken | None]:
    """Delete the queue rows of what stands under our note, settle what failed, and claim the next group, in one commit.

    That the rows are still ours is a condition of `finish` itself; those of the failures carry the same note.
    """
    done, first = group.standing, group.standing[0]
    leaving = [failure.message for failure in group.failures if failure.leaves_key]
    keys = sorted({message.key_hash for message in (*done, *leaving) if message.key_hash is not None})
    counted = [message.seq for message in (*done, *leaving) if message.sequence is not None and not message.stale]
    requests = [*_beside(lane.context, group)]
    if keys:
        requests.append(Query("lock_keys", {"key_hashes": keys}))
    if counted:
        requests.append(Query("advance", {"seqs": counted}))
    requests.append(
        Query(
            "finish",
            {
                "seqs": [message.seq for message in done],
                "worker": first.worker,
                "token": first.token,
                "code_version": lane.context.code_version,
                "mark": mark,
                "expected": len(done),
            },
        )
    )
    stories = [story_of(lane, failure) for failure in group.failures]
    for failure, story in zip(group.failures, stories, strict=True):
        requests += [settle_query(failure), Query("add_attempt", story)]
    if group.given_back:
        requests.append(release_query(group.given_back))
    if keys:
        requests.append(Query("promote", {"key_hashes": keys}))
    lot = may_ride(lane) if ride else None
    if lot is None:
        yield (*requests, COMMIT)
        taken = None
    else:
        taken = yield from take(lane, requests, riding(lane, lot))
    for failure, story in zip(group.failures, stories, strict=True):
        tell(lane, failure, story)
    return taken


def _beside(context: Context, group: Group) -> Iterator[Request]:
    """What is written in the same transaction beside the effects themselves."""
    if group.results:
        yield Each("store_results", [{"seq": seq, "result": text} for seq, text in group.results.items()])
    sent = [delivery for message in group.standing for delivery in message.sent]
    if sent:
        yield send_request(context, context.cache.catalog, sent)
    bodies = [message.seq for message in group.standing if message.handler and not message.handler.keep_body]
    if bodies:
        yield Query("forget_bodies", {"seqs": bodies})
    for message in group.standing:
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


def _explain(lane: Lane, group: Group, error: Exception) -> Flow[Failed | None]:
    """The finish of a group failed: find out what is true now. Read, never guess. None: it was committed after all."""
    first = group.standing[0]
    yield from undo(lane)
    if not isinstance(error, StoreUnavailable | GuardFailed):
        let_go(lane, *(lane.open_tokens - {first.token}))  # a claim that rode along was undone with the rest
        return Failed(error, infrastructure=isinstance(error, StoreConflict))
    mine = yield from still_ours(lane, first)
    yield from forget_claims(lane, keep=first.token)
    if isinstance(error, StoreUnavailable) and not any(message.seq in mine for message in group.standing):
        return None  # only the answer was lost
    if not all(message.seq in mine for message in group.standing):
        return Failed(ClaimLost(f"another worker took a message over: {error}"))
    if isinstance(error, GuardFailed):
        return Failed(TransactionEnded())
    return Failed(error, infrastructure=True)


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
