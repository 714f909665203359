"""Attempt: run a group of messages in one transaction: effects, results, what was sent and "done" are one commit.

Invariant: a message leaves the queue only in the transaction that holds its effects, and only while it carries our
claim. Whatever a handler raises, swallows or forgets, and wherever the connection breaks, everything of the attempt is
afterwards either committed or rolled back, and we have read which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from onceward.domain import payload
from onceward.domain.activity import Series
from onceward.domain.middleware import Surrounding
from onceward.errors import (
    ClaimLost,
    ContractViolation,
    GuardFailed,
    NeedsAlone,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    TransactionEnded,
)
from onceward.flow import RECONNECT, ROLLBACK, AfterCommit, Around, Call, Flow, Outcome, Wait
from onceward.message import Delivery
from onceward.registry import Handler
from onceward.steps.blob import offload_sent
from onceward.steps.claim import Taken, may_claim_next, next_claim, taken_by
from onceward.steps.context import Context
from onceward.steps.group import MOST_SAVEPOINTS, Group
from onceward.steps.lane import Claimed, Lane, hand_on, let_go
from onceward.steps.order import skipped
from onceward.steps.rows import outgoing_rows
from onceward.steps.settle import failed_attempt, settle, settle_of, tell, unclaim
from onceward.steps.use import record_use
from onceward.stores.moves.queue import Finish, Skip


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
    failed: BaseException | None = None
    """What the first of those raised that failed."""


def attempt(lane: Lane, messages: list[Claimed], held: Sequence[Claimed], *, claim_next: bool) -> Flow[Attempted]:
    """Run a group in one transaction, inside of what surrounds that."""
    first = messages[0]
    is_surrounded = first.handler is not None and first.handler.outside and first.call is not None and not first.stale
    return (_surrounded if is_surrounded else _attempt)(lane, messages, held, claim_next=claim_next)


def _surrounded(lane: Lane, messages: list[Claimed], held: Sequence[Claimed], *, claim_next: bool) -> Flow[Attempted]:
    handler, request = messages[0].request.handler, messages[0].request
    given = [one.request.message for one in messages] if handler.batch else request.message
    surrounding = Surrounding(handler.outside, given, is_async=handler.is_async)
    entered: Outcome = yield Around(surrounding.enter)
    if isinstance(entered.error, Exception):  # the attempt has failed before it began
        failed = [replace(one, problem=entered.error) for one in messages]
        return (yield from _attempt(lane, failed, held, claim_next=False))
    try:
        attempted = yield from _attempt(lane, messages, held, claim_next=claim_next)
    except GeneratorExit:  # nothing can be awaited any more
        raise
    except BaseException as error:
        yield Around(partial(surrounding.leave, error))
        raise
    ended = attempted.failed if attempted.lost is None else attempted.lost.error
    runs_again = ended is None and not attempted.finished
    yield Around(partial(surrounding.leave, GeneratorExit() if runs_again else ended))
    return attempted


def _attempt(lane: Lane, messages: list[Claimed], held: Sequence[Claimed], *, claim_next: bool) -> Flow[Attempted]:
    """Run a group in one transaction and finish it. One that fails is settled in the same commit, the others stay.

    What follows it in its key goes back with it, also from among what the lane holds beside the group.
    """
    first, group = messages[0], Group(messages)
    fence = f"{first.worker}.{first.token}.{first.seq}"
    lane.alone = not group.shares
    if first.problem:
        if isinstance(first.problem, StoreUnavailable):
            return Attempted(lost=Failed(first.problem, first, infrastructure=True))
        group.fails(group.next(), first.problem, infrastructure=False)
    else:
        longest = max((handler.timeout for handler in group.handlers), default=timedelta(0))
        yield from lane.context.moves.queue.begin(longest.total_seconds(), fence, savepoint=group.shares)
        lost = yield from run(lane, group, lane.context.settings.group_time.total_seconds())
        if lost is not None or not group.standing:
            yield from undo(lane)
        if lost is not None:
            lane.measure()
            return Attempted(lost=lost)
    group.leave(held)
    rest, following = group.rest, None
    sent = group.sent
    lane.measure()
    if group.standing:
        try:
            following = yield from _finish(
                lane, group, fence, sent, claim_next=claim_next and not rest and not group.alone
            )
        except (StoreError, ContractViolation) as error:
            lost = yield from _explain(lane, group, error)
            if lost is not None:
                return Attempted(lost=lost)
    else:
        yield from _settle_apart(lane, group)
    if sent:
        lane.notify()
    count_done(lane.context, group.standing)
    yield from after_commit(group)
    return Attempted(
        finished=group.standing,
        given_back=group.given_back,
        alone=group.alone,
        rest=rest,
        recovered=group.recovered,
        following=following,
        failed=group.failures[0].error if group.failures else None,
    )


def count_done(context: Context, messages: Sequence[Claimed]) -> None:
    """Count messages that are done, for the history; outgoing ones by where they went."""
    if not context.activity.is_kept:
        return
    together: dict[Series, tuple[list[float], list[float]]] = {}
    handler, source = None, ""
    ran, waited = list[float](), list[float]()
    for message in messages:
        call = message.call
        if call is None or message.stale:
            continue
        if call.handler is not handler or call.message.source != source:  # they mostly follow each other
            handler, source = call.handler, call.message.source
            ran, waited = together.setdefault(Series(handler.consumer, source, handler.type), ([], []))
        ran.append(message.ran)
        if not message.attempts:
            waited.append(message.age)
    for series, (ran, waited) in together.items():
        context.activity.count("done", series, len(ran), seconds=ran, waited=waited)


def run(lane: Lane, group: Group, patience: float) -> Flow[Failed | None]:
    """Call the handlers, one after another, for so many seconds; returns why the transaction is lost."""
    started = now = lane.context.clock()
    own = 0
    while part := group.next():
        began = now
        outcome = yield from _call(lane, group, part)
        failure = outcome.error
        if failure is None and outcome.value is not None:
            failure = _keep_results(part, outcome.value, group.results)
        away = outcome.infrastructure and not part[0].external  # a sink's database is not ours
        own += outcome.savepoints
        now = lane.context.clock()
        lane.spent += now - began
        for message in part:
            message.ran = (now - began) / len(part)
        lane.ran += len(part)
        try:
            if outcome.lost or (failure is not None and not group.shares and away):
                return Failed(failure or TransactionEnded(), _culprit(part), away)
            if failure is None:
                group.stands(part, touched=outcome.touched)
                if group.wants_savepoint(now - began - outcome.inside - outcome.computed):
                    yield from lane.context.moves.queue.savepoint()
                    group.saved()
                    now = lane.context.clock()
            else:
                if group.shares and (outcome.touched or lane.inside):
                    yield from lane.context.moves.queue.rollback_to_savepoint()
                    group.undone()
                group.is_spoiled = outcome.touched and not group.shares
                group.fails(part, failure, infrastructure=away)
        except (StoreError, ContractViolation) as error:  # the transaction was ended, or the connection is gone
            away = away or isinstance(error, StoreConflict | StoreUnavailable)
            return Failed(error, None if away else _culprit(part), infrastructure=away)
        if outcome.leaves or now - started > patience or own + group.savepoints >= MOST_SAVEPOINTS:
            break
    return None


def _culprit(part: list[Claimed]) -> Claimed | None:
    return part[0] if len(part) == 1 else None


def _call(lane: Lane, group: Group, part: list[Claimed]) -> Flow[Outcome]:
    """Call the handler for these messages, unless they are stale."""
    calls = [message.request for message in part if not message.stale]
    if not calls:
        return Outcome()
    first, fresh = calls[0], [call.message for call in calls]
    outboxes = [message.outbox for message in fresh if message.outbox]
    lane.begin_call()
    for outbox in outboxes:
        outbox.begin()
    outcome: Outcome = yield Call(first.handler, fresh) if first.handler.batch else first
    for outbox in outboxes:
        outbox.end()
    if lane.needs_alone or lane.unknown is not None:
        outcome = lane.end_call(outcome)
    used = [outbox for outbox in outboxes if outbox.deliveries or outbox.calls]
    sent = bool(used) and any(outbox.deliveries for outbox in used)
    group.leaves_something = group.leaves_something or bool(used)
    if not first.handler.use.through_tx:
        record_use(lane, first.handler, outcome, fresh, sent=sent)
    if lane.inside and not lane.tells_commit and outcome.error is None and any(one.calls for one in used):
        return replace(outcome, error=NeedsAlone())  # nothing says when they are to be made
    if outcome.error is None and sent:
        put = yield from offload_sent(lane.context, fresh)
        return outcome if put.error is None else replace(outcome, error=put.error, infrastructure=put.infrastructure)
    return outcome


def after_commit(group: Group) -> Flow[None]:
    """The transaction of a group is committed: make the calls that its handlers have left for then."""
    if group.leaves_something and (calls := group.calls):
        yield AfterCommit(calls)


def _settle_apart(lane: Lane, group: Group) -> Flow[None]:
    """Nothing stands, so there is no commit that those who failed could be settled in: each has its own."""
    for failure in group.failures:
        yield from settle(lane, failure)
    yield from unclaim(lane, group.given_back)


def _keep_results(part: list[Claimed], value: Any, results: dict[int, str]) -> ContractViolation | None:
    fresh = [message for message in part if not message.stale]
    call = fresh[0].call
    assert call is not None  # noqa: S101 - it has returned this value
    try:
        texts = result_texts(call.handler, len(fresh), value)
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
            f"the batch handler got {count} messages and returned {type(value).__name__}; "
            "return None or a list with one result for each"
        )
    try:
        return [None if one is None else payload.encode_text(one) for one in values]
    except (TypeError, ValueError, RecursionError) as error:
        raise ContractViolation(
            f"the handler returned {type(value).__name__}, which cannot be stored as its result ({error}); "
            "return None or JSON-able data"
        ) from error


def _finish(lane: Lane, group: Group, fence: str, sent: Sequence[Delivery], *, claim_next: bool) -> Flow[Taken | None]:
    """Commit what stands, settle what failed, and claim the next group, in one commit."""
    done, first = group.standing, group.standing[0]
    leaving = [*done, *(failure.message for failure in group.failures if failure.leaves_key)]
    attempts = [failed_attempt(lane, failure) for failure in group.failures]
    lot = may_claim_next(lane) if claim_next else None
    look = next_claim(lane, lot) if lot is not None else None
    finish = Finish(
        worker=first.worker,
        token=first.token,
        code_version=lane.context.code_version,
        fence=fence,
        seqs=[message.seq for message in done],
        keys={message.key_hash for message in leaving if message.key_hash is not None},
        applied=[message.seq for message in leaving if message.sequence is not None and not message.stale],
        results=group.results,
        outgoing=outgoing_rows(lane.context, lane.context.cache.catalog, sent) if sent else (),
        forget_bodies=[message.seq for message in done if message.handler and not message.handler.keep_body],
        skipped=[Skip(message.seq, skipped(message.sequence)) for message in done if message.stale],
        failures=[settle_of(failure, row) for failure, row in zip(group.failures, attempts, strict=True)],
        given_back=[message.seq for message in group.given_back],
        then=look.claim if look is not None else None,
    )
    try:
        finished = yield from lane.context.moves.queue.finish(finish)
    except StoreUnavailable:
        if look is not None:
            lane.claim_less(look.lot)
        raise
    found = finished.following
    taken = taken_by(lane, look, found) if look is not None and found is not None else None
    for failure, row in zip(group.failures, attempts, strict=True):
        tell(lane, failure, row)
    if finished.promoted:
        hand_on(lane, finished.promoted)
    return taken


def _explain(lane: Lane, group: Group, error: Exception) -> Flow[Failed | None]:
    """The finish of a group failed: find out what is true now. Read, never guess. None: it was committed after all."""
    first = group.standing[0]
    yield from undo(lane)
    if not isinstance(error, StoreUnavailable | GuardFailed):
        let_go(lane, *(lane.open_tokens - {first.token}))  # a claim that was made along was undone with the rest
        return Failed(error, infrastructure=isinstance(error, StoreConflict))
    mine = yield from still_ours(lane, first)
    yield from forget_claims(lane, keep=first.token)
    if isinstance(error, StoreUnavailable) and not any(message.seq in mine for message in group.standing):
        return None  # only the answer was lost
    if not all(message.seq in mine for message in group.standing):
        return Failed(ClaimLost(f"another worker has taken the message over: {error}"))
    if isinstance(error, GuardFailed):
        return Failed(TransactionEnded())
    return Failed(error, infrastructure=True)


def still_ours(lane: Lane, claimed: Claimed) -> Flow[set[int]]:
    """The messages that still carry this claim."""
    return (yield from lane.context.moves.claims.still_claimed(claimed.worker, [claimed.token]))


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
            raise StoreUnavailable(
                "stopped while the database was away; the claimed messages are given back when the lease runs out"
            )
        yield Wait(pause)
        pause = min(pause * 2, 2.0)


def forget_claims(lane: Lane, keep: int | None = None) -> Flow[None]:
    """Let go of claims whose commit was never answered; a row that carries none of them is not ours."""
    tokens = sorted(lane.open_tokens - {keep})
    if tokens:
        yield from lane.context.moves.claims.unclaim_tokens(lane.owner, tokens)
        let_go(lane, *tokens)
