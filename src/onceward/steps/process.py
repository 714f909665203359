"""Process: receive and handle in one transaction, for callers that want the effect before they acknowledge.

Invariant: the ledger row, the effects and the result are one commit. A handler that raises undoes all of it,
and the message is then stored with its first attempt charged, so the caller may acknowledge either way.
`process` itself raises only when the store is away or the call is wrong.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from onceward import payload
from onceward.errors import (
    ContractViolation,
    GuardFailed,
    StoreConflict,
    StoreError,
    StoreUnavailable,
)
from onceward.flow import COMMIT, ROLLBACK, Call, Each, Flow, Outcome, Query, Request
from onceward.message import Delivery, Message, Receipt
from onceward.registry import Handler
from onceward.retry import Again, Dead, decide
from onceward.steps.context import Context, know_names, load_catalog, once
from onceward.steps.handle import handle
from onceward.steps.lane import Claimed, Lane
from onceward.steps.receive import (
    READY,
    Target,
    count_copies,
    look_up,
    meet_again,
    message_of,
    record,
    targets,
)
from onceward.steps.settle import attempt_row, columns

INLINE: dict[str, Any] = {**READY, "state": None}


def process(lane: Lane, delivery: Delivery, *, is_async: bool) -> Flow[dict[str, Receipt]]:
    """Handle a delivery now, for each consumer whose handler is of this kind, each in its own transaction."""
    context = lane.context
    yield from know_names(context, context.cache, {context.service, delivery.source})
    receipts = {}
    for target in targets(context, context.cache.catalog, delivery):
        handler = context.registry.of_type(target.consumer, delivery.type)
        if handler is not None and handler.is_async == is_async and target.subscription is not None:
            receipts[target.consumer] = yield from _process_target(lane, delivery, target)
    return receipts


def _process_target(lane: Lane, delivery: Delivery, target: Target) -> Flow[Receipt]:
    context = lane.context
    for _ in range(5):
        if context.clock() < context.cache.catalog.careful_until:
            receipt = yield from _store_and_handle(lane, delivery, target)
        else:
            receipt = yield from _handle_inline(lane, delivery, target)
        if receipt is not None:
            return receipt
        yield from load_catalog(context, context.cache)
    raise StoreConflict("subscriptions keep changing while a message is processed; try again")


def _row(context: Context, delivery: Delivery, target: Target) -> dict[str, Any]:
    return record(0, delivery, target, context.cache.catalog.names[delivery.source])


def _handle_inline(lane: Lane, delivery: Delivery, target: Target) -> Flow[Receipt | None]:
    """One transaction: ledger row, effects, result. None when the catalog was outdated."""
    context = lane.context
    handler, message, problem = _prepare(context, delivery, target)
    limit = (handler.timeout if handler else context.settings.handler_timeout).total_seconds()
    mark = f"{lane.worker()}.inline.{lane.new_token()}"
    yield context.long(limit, mark)
    shared = {"catalog": context.cache.catalog.version}
    row = _row(context, delivery, target)
    if target.key_hash is not None and not (yield from _key_is_free(target.key_hash)):
        yield Each("receive", [row], {**READY, **shared})
        yield COMMIT
        return (yield from _known_receipt(context, delivery, row, accepted=True))
    kept = row if handler is None or handler.keep_body else {**row, "body": None}
    fresh = yield Each("receive", [kept], {**INLINE, **shared})
    if not fresh:
        yield ROLLBACK
        return (yield from _known_receipt(context, delivery, row, accepted=False))
    _, seq, received_at = fresh[0]
    if handler is None or message is None or problem is not None:
        yield ROLLBACK
        return (yield from _store_failed(lane, delivery, target, problem or RuntimeError("unreadable"), seq))
    message = message_of(handler, delivery, seq=seq, received_at=received_at, attempt=1)
    outcome: Outcome = yield Call(handler, message)
    error = outcome.error
    if error is None:
        error = yield from _finish_inline(lane, seq, mark, outcome.value)
    else:
        yield from _undo()
    if error is None:
        return Receipt("accepted", seq, finished=True, result=outcome.value)
    if outcome.infrastructure or isinstance(error, StoreUnavailable | StoreConflict):
        raise StoreUnavailable(f"the database failed while message {delivery.id!r} was processed: {error}") from error
    return (yield from _store_failed(lane, delivery, target, error, seq))


def _prepare(
    context: Context, delivery: Delivery, target: Target, *, seq: int = 0, received_at: int = 0
) -> tuple[Handler | None, Message | None, Exception | None]:
    try:
        handler = context.registry.find(target.consumer, delivery.type, delivery.version)
    except Exception as error:  # noqa: BLE001 - recorded as the message's attempt
        return None, None, error
    try:
        return handler, message_of(handler, delivery, seq=seq, received_at=received_at, attempt=1), None
    except Exception as error:  # noqa: BLE001 - recorded as the message's attempt
        return handler, None, error


def _key_is_free(key_hash: int) -> Flow[bool]:
    """Take the key for this transaction; False when another message of the key is unfinished."""
    locked = yield Query("key_is_free", {"key_hash": key_hash})
    if not locked[0][0]:
        return False
    unfinished = yield Query("key_has_rows", {"key_hash": key_hash})
    return not unfinished[0][0]


def _finish_inline(lane: Lane, seq: int, mark: str, value: Any) -> Flow[Exception | None]:
    """Commit the effects; answers what went wrong, with everything undone."""
    requests: list[Request] = []
    if value is not None:
        try:
            text = payload.encode_text(value)
        except (TypeError, ValueError, RecursionError) as error:
            yield from _undo()
            return ContractViolation(
                f"the handler returned {type(value).__name__}, which cannot be stored as its result ({error})"
            )
        requests.append(Each("store_results", [{"seq": seq, "result": text}]))
    done = {"worker": lane.worker(), "code_version": lane.context.code_version, "seq": seq, "mark": mark}
    try:
        yield (*requests, Query("finish_inline", done), COMMIT)
    except GuardFailed:
        yield from _undo()
        return ContractViolation(
            "the handler ended the transaction it was given; what it committed by itself is not undone. "
            "Returning commits, raising rolls back: remove the statement"
        )
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
    shared = {**READY, **columns(decision), "attempts": 1, "catalog": context.cache.catalog.version}
    yield context.short()
    fresh = yield Each("receive", [row], shared)
    stored = fresh[0][1] if fresh else (yield from _requeue_own(target, decision, seq))
    if stored is not None:
        story = attempt_row(context, stored, attempt=1, error=error, decision=decision, worker=lane.worker())
        yield Query("add_attempt", story)
        yield COMMIT
        return Receipt("accepted", stored)
    yield COMMIT
    return (yield from _known_receipt(context, delivery, row, accepted=False))


def _requeue_own(target: Target, decision: Again | Dead, seq: int) -> Flow[int | None]:
    """Where the handler committed on its own, the ledger row is there already: give it its queue row back."""
    params = {
        "seq": seq,
        "subscription": target.subscription,
        "key_hash": target.key_hash,
        "attempts": 1,
        **columns(decision),
    }
    rows = yield Query("requeue_own", params)
    return rows[0][0] if rows else None


def _known_receipt(
    context: Context, delivery: Delivery, row: dict[str, Any], *, accepted: bool
) -> Flow[Receipt | None]:
    """The receipt of a message that is in the ledger by now; None when it is not, because the catalog was outdated."""
    known = (yield from look_up(context, [row])).get(0)
    if known is None:
        return None
    if accepted and known.hash == delivery.hash:
        return Receipt("accepted", known.seq)
    copies: dict[int, int] = {}
    receipt = yield from meet_again(context, delivery, known, copies)
    if copies:
        yield from count_copies(context, copies)
    return receipt


def _store_and_handle(lane: Lane, delivery: Delivery, target: Target) -> Flow[Receipt | None]:
    """After a crash: store the message with our note, commit, handle it like a worker; so a crash is counted."""
    context = lane.context
    row = _row(context, delivery, target)
    token = lane.token()
    lane.owner = lane.worker()
    noted = {**READY, "worker": lane.owner, "token": token, "solo": True, "catalog": context.cache.catalog.version}
    if target.key_hash is not None:  # order needs the claim's own rules: a worker takes it from here
        noted = {**READY, "catalog": context.cache.catalog.version}
    (fresh,) = yield from once(context, Each("receive", [row], noted))
    if not fresh:
        lane.open_tokens.discard(token)
        return (yield from _known_receipt(context, delivery, row, accepted=False))
    _, seq, received_at = fresh[0]
    if target.key_hash is not None:
        lane.open_tokens.discard(token)
        return Receipt("accepted", seq)
    handler, message, problem = _prepare(context, delivery, target, seq=seq, received_at=received_at)
    call = Call(handler, message) if handler and message else None
    claimed = Claimed(seq, lane.owner, token, None, 0, 0.0, handler, call, problem)
    yield from handle(lane, [claimed])
    after = yield from _known_receipt_quietly(context, row)
    return Receipt("accepted", seq, after[0], after[1])


def _known_receipt_quietly(context: Context, row: dict[str, Any]) -> Flow[tuple[bool, Any]]:
    known = (yield from look_up(context, [row])).get(0)
    return (known.finished, known.result) if known else (False, None)
