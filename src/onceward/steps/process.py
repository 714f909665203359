"""Process: receive and handle in one transaction, for callers that want the effect before they acknowledge.

Invariant: the ledger row, the effects and the result are one commit. A handler that raises undoes all of it,
and the message is then stored with its first attempt charged, so the caller may acknowledge either way.
`process` itself raises only when the store is away or the call is wrong.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from onceward.domain import payload
from onceward.errors import (
    ContractViolation,
    GuardFailed,
    HandlerNotFound,
    NeedsAlone,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    TransactionEnded,
)
from onceward.flow import COMMIT, ROLLBACK, Call, Each, Flow, Outcome, Query, Request, Wait
from onceward.message import Delivery, Failure, Message, Receipt
from onceward.registry import Handler
from onceward.retry import Again, Dead, decide, text_of
from onceward.steps.attempt import result_texts, send_request
from onceward.steps.blob import prepare, put_away, put_sent, take_back
from onceward.steps.context import Context, know_names, load_catalog
from onceward.steps.handle import handle
from onceward.steps.lane import Claimed, Lane
from onceward.steps.order import check_key, check_sequence
from onceward.steps.read import find_key_again, message_of
from onceward.steps.receive import (
    READY,
    Target,
    count_copies,
    look_up,
    meet_again,
    merged,
    record,
    stored_by,
    targets,
)
from onceward.steps.settle import attempt_row, columns, log_failure, written
from onceward.steps.suspects import APART
from onceward.steps.use import note_use


def process(lane: Lane, delivery: Delivery, *, is_async: bool) -> Flow[dict[str, Receipt]]:
    """Handle a delivery now, for each consumer whose handler is of this kind, each in its own transaction."""
    context = lane.context
    lane.raised = None
    yield from know_names(context, context.cache, {context.service, delivery.source})
    (delivery,) = yield from put_away(context, [delivery], context.cache)
    yield from prepare(context)
    receipts = {}
    for subscription in context.cache.catalog.by_type.get(delivery.type, ()):
        handler = context.registry.of_type(subscription.consumer, delivery.type)
        if handler is not None and handler.is_async == is_async:
            receipts[subscription.consumer] = yield from _process_for(lane, delivery, subscription.consumer)
    if receipts:
        yield from take_back(context, [delivery], [merged([*receipts.values()])])
    return receipts


def _process_for(lane: Lane, delivery: Delivery, consumer: str) -> Flow[Receipt]:
    context = lane.context
    for _ in range(5):
        yield from know_names(context, context.cache, {context.service, delivery.source})  # as in `receive`
        catalog = context.cache.catalog
        target = next((one for one in targets(context, catalog, delivery) if one.consumer == consumer), None)
        if target is None:  # as after a failover to a database that does not know it yet
            raise StoreConflict(f"consumer {consumer!r} is not subscribed to {delivery.type!r} any more; try again")
        handler = _handler(context, delivery, target)
        receipt, keeps = None, not _forgets(handler)
        if delivery.type in catalog.unplaced:
            receipt = yield from _known_receipt(lane, delivery, _row(context, delivery, target), keeps_mismatch=keeps)
        careful = keeps and context.clock() < catalog.careful_until
        if receipt is None and (careful or handler in context.stores_first):
            receipt = yield from _store_and_handle(lane, delivery, target, careful=careful)
        elif receipt is None:
            receipt = yield from _handle_inline(lane, delivery, target)
        if receipt is not None:
            return receipt
        yield from load_catalog(context, context.cache)
    raise StoreConflict("subscriptions keep changing while a message is processed; try again")


def _row(context: Context, delivery: Delivery, target: Target) -> dict[str, Any]:
    return record(0, delivery, target, context.cache.catalog.names[delivery.source])


def _handle_inline(lane: Lane, delivery: Delivery, target: Target) -> Flow[Receipt | None]:
    """One transaction: ledger row, effects, result, what was sent. None when the catalog was outdated."""
    context = lane.context
    lane.receiving = True
    handler = _handler(context, delivery, target)
    limit = (handler.timeout if handler else context.settings.handler_timeout).total_seconds()
    mark = f"{lane.worker()}.inline.{lane.new_token()}"
    # Of the catalog that the target is of: another thread may put a newer one in its place as soon as we wait.
    shared, row = {"catalog": context.cache.catalog.version}, _row(context, delivery, target)
    yield context.inline(limit, mark, forgets=_forgets(handler))
    turn = yield from _turn(target)
    if turn == "later":
        fresh = yield Each("receive", [row], {**READY, **shared})
        yield COMMIT
        return _queued(lane, fresh[0][1]) if fresh else (yield from _known_receipt(lane, delivery, row))
    fresh = yield Query("receive_inline", {**row, **shared})
    if not fresh:
        yield COMMIT  # of nothing; after a rollback the driver would prepare every statement anew
        return (yield from _known_receipt(lane, delivery, row, keeps_mismatch=not _forgets(handler)))
    seq, received_at = fresh[0]
    if turn == "stale":  # what is skipped need not be readable
        outcome, beside, sends = Outcome(), _skip(handler, target, seq), False
    else:
        call, problem = _call_of(lane, delivery, target, seq=seq, received_at=received_at)
        if call is None:
            yield ROLLBACK
            return (yield from _store_failed(lane, delivery, target, problem or AssertionError("no reason"), seq))
        outcome = yield from _run(lane, call)
        beside = _beside(context, target, call) if outcome.error is None else []
        sends = bool(call.message.draft and call.message.draft.deliveries)
    error = outcome.error
    if error is None:
        error = yield from _finish_inline(lane, seq, mark, outcome.value, beside)
    else:
        yield from _undo()
    if error is None:
        if sends:
            lane.ring()
        result = None if outcome.value is None else payload.decode_text(outcome.value)
        return Receipt("accepted", seq, finished=True, result=result)
    if outcome.infrastructure or isinstance(error, StoreUnavailable | StoreConflict):
        raise StoreUnavailable(f"the database failed while message {delivery.id!r} was processed: {error}") from error
    return (yield from _undone(lane, delivery, target, error, seq))


def _undone(lane: Lane, delivery: Delivery, target: Target, error: BaseException, seq: int) -> Flow[Receipt | None]:
    """The handler raised, and everything was rolled back."""
    handler = _handler(lane.context, delivery, target)
    if isinstance(error, NeedsAlone) and handler is not None and not handler.forgets_failures:
        lane.context.stores_first.add(handler)
        return (yield from _store_and_handle(lane, delivery, target, careful=False))
    if isinstance(error, NeedsAlone):
        error = ContractViolation(
            "message.once needs a transaction before the handler's, and of this message nothing may be stored before "
            "it has succeeded; SQLite has one writer. Use PostgreSQL, or make the call in another handler"
        )
    if _forgets(handler):
        raise error
    return (yield from _store_failed(lane, delivery, target, error, seq))


def _queued(lane: Lane, seq: int) -> Receipt:
    """It is for a worker now: nobody else would tell one."""
    lane.ring()
    return Receipt("accepted", seq)


def _failed(lane: Lane, seq: int, error: BaseException, decision: Again | Dead) -> Receipt:
    """The handler raised, and the message is stored with that."""
    lane.raised = lane.raised or error
    failure = Failure(type(error).__name__, text_of(error), final=isinstance(decision, Dead))
    return Receipt("accepted", seq, error=failure)


def _turn(target: Target) -> Flow[str]:
    """Whether it is this message's turn within its key: "now", "later" (it is queued), or "stale" (it is skipped)."""
    if target.key_hash is None:
        return "later" if target.keyless else "now"
    locked = yield Query("key_is_free", {"key_hash": target.key_hash})
    if not locked[0][0]:
        return "later"
    unfinished = yield Query("key_has_rows", {"key_hash": target.key_hash, "consumer": target.consumer_id})
    if unfinished[0][0]:
        return "later"
    if target.sequence is None:
        return "now"
    rows = yield Query(
        "progress_of", {"consumer": target.consumer_id, "aggregate": target.aggregate or "", "key": target.key}
    )
    wanted = (rows[0][0] if rows else 0) + 1
    if target.sequence < wanted:
        return "stale"
    return "now" if target.sequence == wanted else "later"


def _handler(context: Context, delivery: Delivery, target: Target) -> Handler | None:
    try:
        return context.registry.find(target.consumer, delivery.type, delivery.version)[0]
    except HandlerNotFound:
        return None


def _forgets(handler: Handler | None) -> bool:
    return handler is not None and handler.forgets_failures


def _call_of(
    lane: Lane, delivery: Delivery, target: Target, *, seq: int, received_at: int
) -> tuple[Call | None, Exception | None]:
    """The call of the handler, or why the message cannot be shown to one."""
    context = lane.context
    try:
        handler, upcasters = context.registry.find(target.consumer, delivery.type, delivery.version)
        message = message_of(
            handler,
            delivery if delivery.key == target.key else delivery._replace(key=target.key),
            seq=seq,
            received_at=received_at,
            attempt=1,
            upcasters=upcasters,
            service=context.service,
            effects=lane.effects,
        )
        find_key_again(handler, message)
        check_key(handler, target.key)
        check_sequence(handler, target.sequence)
    except Exception as error:  # noqa: BLE001 - recorded as the message's attempt
        return None, error
    return Call(handler, message), None


def _run(lane: Lane, call: Call) -> Flow[Outcome]:
    """Call the handler; the value of the outcome is what is stored for this one message."""
    message: Message = call.message
    if message.draft:
        message.draft.begin()
    lane.begin_call()
    outcome: Outcome = yield Call(call.handler, [message]) if call.handler.batch else call
    if message.draft:
        message.draft.end()
    outcome = lane.end_call(outcome)
    note_use(lane, call.handler, outcome, [message], sent=bool(message.draft and message.draft.deliveries))
    if outcome.error is not None:
        return outcome
    put = yield from put_sent(lane.context, [message])
    if put.error is not None:
        return put
    try:
        (text,) = result_texts(call.handler, 1, outcome.value)
    except ContractViolation as violation:
        return Outcome(error=violation)
    return Outcome(value=text)


def _skip(handler: Handler | None, target: Target, seq: int) -> list[Request]:
    """What is written for a stale number."""
    reason = f"number {target.sequence} came after a later one of its key was applied"
    skipped = Query("add_audit", {"action": "skip", "seq": seq, "actor": "onceward", "reason": reason})
    return [skipped] if handler is None or handler.keep_body else [skipped, Query("forget_bodies", {"seqs": [seq]})]


def _beside(context: Context, target: Target, call: Call) -> list[Request]:
    """What is written in the same transaction beside the effects themselves."""
    message: Message = call.message
    requests: list[Request] = []
    if target.sequence is not None:
        applied = _applied(target)
        requests.append(Query("advance_inline", applied))
    if message.draft and message.draft.deliveries:
        requests.append(send_request(context, context.cache.catalog, message.draft.deliveries))
    if not call.handler.keep_body:
        requests.append(Query("forget_bodies", {"seqs": [message.seq]}))
    return requests


def _applied(target: Target) -> dict[str, Any]:
    """The number that a key has come to."""
    key = {"consumer": target.consumer_id, "aggregate": target.aggregate or "", "key": target.key}
    return {**key, "sequence": target.sequence}


def _finish_inline(lane: Lane, seq: int, mark: str, text: str | None, beside: list[Request]) -> Flow[Exception | None]:
    """Commit the effects; answers what went wrong, with everything undone."""
    requests = list(beside)
    if text is not None:
        requests.append(Each("store_results", [{"seq": seq, "result": text}]))
    done = {"worker": lane.worker(), "code_version": lane.context.code_version, "seq": seq, "mark": mark}
    try:
        yield (*requests, Query("finish_inline", done), COMMIT)
    except GuardFailed:
        yield from _undo()
        return TransactionEnded()
    except (StoreError, ContractViolation) as error:
        yield from _undo()
        return error
    return None


def _undo() -> Flow[None]:
    try:
        yield ROLLBACK
    except StoreUnavailable:
        return  # a lost connection has rolled back by itself


def _store_failed(
    lane: Lane, delivery: Delivery, target: Target, error: BaseException, seq: int
) -> Flow[Receipt | None]:
    """The attempt was undone: store the message for later, with this attempt charged."""
    context = lane.context
    handler = context.registry.of_type(target.consumer, delivery.type)
    assert handler is not None  # noqa: S101 - the caller has looked
    decision = decide(handler.retry, error, attempt=1, age=timedelta(0))
    row = _row(context, delivery, target)
    leaves = isinstance(decision, Dead) and handler.on_dead == "continue"
    if leaves:  # dead, and its key goes on without it
        row["key_hash"] = None
    shared = {**READY, **columns(decision), "attempts": 1, "catalog": context.cache.catalog.version}
    keys = [target.key_hash] if leaves and target.key_hash is not None else []
    story = attempt_row(context, seq, attempt=1, error=error, decision=decision, worker=lane.worker())

    def store(told: dict[str, Any]) -> Flow[int | None]:
        yield context.short()
        if keys:
            yield Query("lock_keys", {"key_hashes": keys})
        fresh = yield Each("receive", [row], shared)
        stored = fresh[0][1] if fresh else (yield from _requeue_own(row, decision, seq))
        if stored is not None:
            if leaves and target.sequence is not None:
                yield Query("advance_inline", _applied(target))
            if keys:
                yield Query("promote", {"key_hashes": keys})
            yield Query("add_attempt", {**told, "seq": stored})
            yield Query("keep_effects", {"seq": seq, "stored": stored})
        yield COMMIT
        return stored

    stored = yield from written(story, store)
    if stored is None:
        return (yield from _known_receipt(lane, delivery, row))
    log_failure(context, delivery, {**story, "seq": stored}, decision, handler.retry)
    return _failed(lane, stored, error, decision)


def _requeue_own(row: dict[str, Any], decision: Again | Dead, seq: int) -> Flow[int | None]:
    """Where the handler committed on its own, the ledger row is there already: give it its queue row back."""
    names = ("consumer", "source", "stored_id", "subscription", "key_hash", "place", "sequence")
    params = {"seq": seq, "attempts": 1, **{name: row[name] for name in names}, **columns(decision)}
    rows = yield Query("requeue_own", params)
    return rows[0][0] if rows else None


def _known_receipt(
    lane: Lane, delivery: Delivery, row: dict[str, Any], *, keeps_mismatch: bool = True
) -> Flow[Receipt | None]:
    """The receipt of a message that is in the ledger already; None when it is not, because the catalog was outdated."""
    context = lane.context
    known = (yield from look_up(context, context.cache.catalog, [row])).get(0)
    if known is None:
        return None
    if not known.is_same(delivery) and not keeps_mismatch:
        return Receipt("mismatch", known.seq)
    if (yield from stored_by(context, [(delivery, known)], lane.first_try)):
        return Receipt("accepted", known.seq, known.finished, known.result)
    copies: dict[int, int] = {}
    receipt = yield from meet_again(context, delivery, known, copies)
    if copies:
        yield from count_copies(context, copies)
    return receipt


def _store_and_handle(lane: Lane, delivery: Delivery, target: Target, *, careful: bool) -> Flow[Receipt | None]:
    """Store the message with our note, commit, handle it like a worker.

    `careful` is after a crash, so that the next one is counted; else the handler needs a transaction that begins when
    its message is stored.
    """
    context = lane.context
    lane.receiving = False
    row = _row(context, delivery, target)
    while not lane.gate.enter(lane):  # the consumer before this one may have let it go
        yield Wait(0.005)
    lane.owner, token = lane.worker(), lane.token()
    shared = {**READY, "catalog": context.cache.catalog.version}
    noted = {**shared, "worker": lane.owner, "token": token, "suspect": APART if careful else 0}
    yield context.short()
    # After a crash order needs the claim's own rules. Else what is the first of its key while the key is locked is ours
    # as if it were claimed: whatever comes later finds it there.
    unkeyed = target.key_hash is None and not target.keyless
    ours = unkeyed or (not careful and (yield from _turn(target)) == "now")
    fresh, _ = yield (Each("receive", [row], noted if ours else shared), COMMIT)
    if not ours or not fresh:
        lane.open_tokens.discard(token)
        return _queued(lane, fresh[0][1]) if fresh else (yield from _known_receipt(lane, delivery, row))
    _, seq, received_at = fresh[0]
    handler = _handler(context, delivery, target)
    call, problem = _call_of(lane, delivery, target, seq=seq, received_at=received_at)
    place = seq if row["place"] is None else row["place"]
    note = (seq, lane.owner, token, target.key_hash, place, target.sequence)
    claimed = Claimed(*note, 0, 0.0, handler, call, problem)
    yield from handle(lane, [claimed])
    known = (yield from look_up(context, context.cache.catalog, [row])).get(0)
    if claimed.failed and not (known and known.finished):
        return _failed(lane, seq, *claimed.failed)
    return Receipt("accepted", seq, known.finished, known.result) if known else Receipt("accepted", seq)
