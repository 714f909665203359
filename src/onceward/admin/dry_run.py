"""Dry run: run a handler on a stored message, show all that it does, and undo it.

Invariant: nothing stays. The transaction is rolled back on a connection of its own, calls through `message.once` are
stopped before they are made, and what the handler sends is shown and not stored. No claim, attempt or audit is written.
"""

from __future__ import annotations

import asyncio
import threading
import traceback as tracebacks
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

from onceward.admin import messages
from onceward.admin.messages import MessageDetail
from onceward.domain import identity, payload
from onceward.domain.middleware import Surrounding
from onceward.errors import ConfigurationError, ContractViolation
from onceward.flow import ROLLBACK, Around, Call, DryRun, Flow, Outcome, run_async, run_sync
from onceward.message import Delivery, Message, microseconds
from onceward.registry import OUTBOX, Handler
from onceward.retry import Again, decide
from onceward.runtime.runner import OUTSIDE, OUTSIDE_ASYNC, perform
from onceward.steps.attempt import result_texts
from onceward.steps.context import Context
from onceward.steps.read import message_of
from onceward.stores.dry_run import Change, DryRunResult, Statement
from onceward.stores.protocol import Store


@dataclass(frozen=True, slots=True)
class ExternalCall:
    """A call through `message.once`. Where its result is on record the handler got that, else it was stopped there."""

    name: str
    key: str
    recorded: bool


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message that the handler would send."""

    type: str
    to: str
    key: str | None
    id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class DryRunReport:
    """What the handler did with the message, before all of it was undone."""

    seq: int
    handler: str
    ended: Literal["returned", "raised", "stopped"]
    """`stopped`: at an external call, which was not made."""
    result: Any
    error: str
    traceback: str
    decision: str
    """What would become of the message."""
    statements: tuple[Statement, ...]
    changes: tuple[Change, ...]
    unseen: str
    """Why the changes are not all there, where they are not."""
    calls: tuple[ExternalCall, ...]
    sent: tuple[SentMessage, ...]


class StoppedHere(BaseException):
    """Ends a handler where it would call the outside world. Not an Exception, so that handlers do not swallow it."""


@dataclass(slots=True)
class _Calls:
    """Stands in for `message.once`: gives results that are on record, stops everything else."""

    detail: MessageDetail
    is_async: bool
    made: list[ExternalCall] = field(default_factory=list)
    stopped: bool = False

    def __call__(self, message: Message, name: str, call: Callable[[], Any], idempotent: bool | timedelta) -> Any:  # noqa: ARG002, FBT001 - as `once` calls it
        return self._awaited(message, name) if self.is_async else self._answer(message, name)

    async def _awaited(self, message: Message, name: str) -> Any:
        return self._answer(message, name)

    def _answer(self, message: Message, name: str) -> Any:
        key = identity.effect_key(message.consumer, message.source, message.id, name)
        known = next((effect for effect in self.detail.effects if effect.key == key and effect.done), None)
        self.made.append(ExternalCall(name, key, recorded=known is not None))
        if known is None:
            self.stopped = True
            raise StoppedHere(name)
        return known.result


def run(context: Context, store: Store, seq: int) -> DryRunReport:
    """Try a message; raises `LookupError` where there is none, `ConfigurationError` where it cannot be tried."""
    detail = perform(store, lambda: messages.detail(context, seq))
    if detail is None:
        raise LookupError(f"there is no message with number {seq}")
    handler, delivery, upcasters = _found(context, detail)
    calls = _Calls(detail, handler.is_async)
    message = message_of(
        handler,
        delivery,
        seq=seq,
        received_at=microseconds(detail.received_at),
        attempt=detail.attempts + 1,
        upcasters=upcasters,
        service=context.service,
        effects=calls,
    )
    if message.outbox:
        message.outbox.begin()
    # Whoever counts or traces what handlers do is not told: nothing of this happens.
    call = Call(replace(handler, hooks=()), [message] if handler.batch else message)
    result = _in_new_loop(context, store, call) if handler.is_async else _in_thread(context, store, call)
    return _told(detail, handler, message, calls, result)


def _found(context: Context, detail: MessageDetail) -> tuple[Handler, Delivery, list[Any]]:
    if detail.consumer == OUTBOX:
        raise ConfigurationError(
            f"message {detail.seq} is outgoing: publishing it cannot be rolled back. Try the message that sent it"
        )
    if detail.body is None or detail.type is None:
        raise ConfigurationError(
            f"the body of message {detail.seq} is not kept any more, so nothing can be tried on it"
        )
    handler, upcasters = context.registry.find(detail.consumer, detail.type, detail.version or 1)
    delivery = Delivery(
        source=detail.source,
        id=detail.id,
        type=detail.type,
        version=detail.version or 1,
        key=detail.key,
        headers=detail.headers,
        body=detail.body,
        hash=b"",
    )
    return handler, delivery, upcasters


def _step(context: Context, call: Call) -> Flow[DryRunResult]:
    handler = call.handler
    surrounding = Surrounding(handler.outside, call.message, is_async=handler.is_async)
    entered: Outcome = yield Around(surrounding.enter)
    if entered.error is not None:
        return DryRunResult(entered, (), ())
    try:
        yield from context.moves.queue.begin(handler.timeout.total_seconds(), "", savepoint=False)
        try:
            result: DryRunResult = yield DryRun(call, context.prefix)
        finally:
            yield ROLLBACK
    finally:
        yield Around(partial(surrounding.leave, GeneratorExit()))  # nothing of it has happened
    return result


def _in_thread(context: Context, store: Store, call: Call) -> DryRunResult:
    session = store.connect()
    watchdog = threading.Timer(call.handler.timeout.total_seconds(), session.interrupt)
    watchdog.daemon = True
    try:
        watchdog.start()
        return run_sync(_step(context, call), session.perform, OUTSIDE)
    finally:
        watchdog.cancel()
        session.close()


def _in_new_loop(context: Context, store: Store, call: Call) -> DryRunResult:
    """In a thread of its own: the caller may have a running event loop, and this one is only for the dry run."""

    async def dry_run() -> DryRunResult:
        session = await store.async_connect()
        try:
            return await run_async(_step(context, call), session.perform, OUTSIDE_ASYNC)
        finally:
            await session.close()

    ended: list[DryRunResult | BaseException] = []

    def target() -> None:
        try:
            ended.append(asyncio.run(dry_run()))
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            ended.append(error)

    thread = threading.Thread(target=target, name="onceward-dry-run")
    thread.start()
    thread.join()
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


def _told(
    detail: MessageDetail, handler: Handler, message: Message, calls: _Calls, result: DryRunResult
) -> DryRunReport:
    outcome = _checked(handler, result.outcome)
    error = None if calls.stopped else outcome.error
    sent = message.outbox.deliveries if message.outbox else []
    return DryRunReport(
        seq=detail.seq,
        handler=handler.name,
        ended="stopped" if calls.stopped else "raised" if error else "returned",
        result=None if error or calls.stopped else outcome.value,
        error="" if error is None else f"{type(error).__name__}: {error}",
        traceback="" if error is None else "".join(tracebacks.format_exception(error)),
        decision=_decision(detail, handler, calls, error),
        statements=tuple(result.statements),
        changes=tuple(result.changes),
        unseen=result.unseen,
        calls=tuple(calls.made),
        sent=tuple(SentMessage(d.type, d.destination or "default", d.key, d.id, d.body) for d in sent),
    )


def _checked(handler: Handler, outcome: Outcome) -> Outcome:
    """An outcome that could not be stored is a failure, as in a real run."""
    if outcome.error is not None:
        return outcome
    try:
        (text,) = result_texts(handler, 1, outcome.value)
    except ContractViolation as violation:
        return Outcome(error=violation)
    return Outcome(value=None if text is None else payload.decode_text(text))


def _decision(detail: MessageDetail, handler: Handler, calls: _Calls, error: BaseException | None) -> str:
    if calls.stopped:
        return f"stopped at the external call {calls.made[-1].name!r}; what comes after it is not known"
    if error is None:
        return "done: everything above would be committed"
    age = datetime.now(UTC) - (detail.scheduled_at or detail.received_at)
    decided = decide(handler.retry, error, attempt=detail.attempts + 1, age=age)
    if isinstance(decided, Again):
        return f"tried again after about {decided.delay.total_seconds():.1f} s; everything above is rolled back"
    return f"dead: {decided.reason}; everything above is rolled back"
