"""Inline processing: the shell around `steps/process.py` for callers that want the effect before they acknowledge.

A process that works inline is registered like a worker, so that its death is noticed and the messages it may
have died of are stored first from then on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Unpack

from onceward.deferred import asyncio
from onceward.domain.marks import Mark, marks_of
from onceward.domain.schedule import AT_ONCE
from onceward.errors import ConfigurationError, StoreUnavailable
from onceward.flow import Call, Flow, Outside
from onceward.message import Arguments, Delivery, Receipt
from onceward.runtime.effects import async_effects, sync_effects
from onceward.runtime.group_commit import batches
from onceward.runtime.heartbeat import Membership
from onceward.runtime.receiver import Receiver
from onceward.runtime.runner import OUTSIDE, OUTSIDE_ASYNC, perform, perform_async
from onceward.runtime.watchdog import Watch, watched_call
from onceward.steps.context import Context
from onceward.steps.history import keep_history
from onceward.steps.introduce import introduce, stay_introduced
from onceward.steps.lane import Lane
from onceward.steps.process import process, process_many
from onceward.steps.prune import PruneProgress, maintain
from onceward.steps.receive import folded, merged
from onceward.stores.protocol import AsyncSession, Session, Store

if TYPE_CHECKING:
    from onceward.runtime.inside import Inside

_ISOLATION_POLL = 0.005
_ONE_WRITER = 0.25
"""Where there is one writer, a batch holds it for a quarter of the usual time at most."""


T = TypeVar("T")


class Processed(NamedTuple):
    """What became of a delivery in this process."""

    receipts: dict[str, Receipt]
    """One for each consumer."""
    raised: BaseException | None = None
    """What the first handler that failed raised."""

    def and_then(self, other: Processed) -> Processed:
        """Both, this one first."""
        return Processed(self.receipts | other.receipts, self.raised or other.raised)


class Inline:
    """Runs handlers in the caller's thread or event loop."""

    def __init__(self, context: Context, store: Store, receiver: Receiver) -> None:
        self._context, self._store, self._receiver, self._copies = context, store, receiver, receiver.copies
        self._membership: Membership | None = None
        self._pid = 0
        self._lock = threading.Lock()

    @cached_property
    def inside(self) -> Inside:
        """In transactions of callers; most programs have none."""
        from onceward.runtime.inside import Inside  # noqa: PLC0415 - see above

        return Inside(self._context, self._store, self._receiver)

    def process(self, delivery: Delivery, tx: Any = None, *, raise_on_failure: bool) -> Receipt:
        """Handle a delivery now, for the consumers of this process; for others it is stored. Or it goes to the spool.

        What a handler raised is raised here if wanted, once the message is stored. What is not due yet is stored.
        """
        if tx is not None:
            return self.inside.process(delivery, tx, raise_on_failure=raise_on_failure)
        if delivery.due != AT_ONCE:
            return self._receiver.receive(delivery)
        raised: list[BaseException] = []
        (receipt,) = self._receiver.spooling.attempt([delivery], lambda: self._process(delivery, raised))
        if raise_on_failure and raised:
            raise raised[0]
        return receipt

    async def aprocess(self, delivery: Delivery, tx: Any = None, *, raise_on_failure: bool) -> Receipt:
        """As `process`, awaited; a `def` handler runs in a thread."""
        if tx is not None:
            return await self.inside.aprocess(delivery, tx, raise_on_failure=raise_on_failure)
        if delivery.due != AT_ONCE:
            return await self._receiver.areceive(delivery)
        raised: list[BaseException] = []
        (receipt,) = await self._receiver.spooling.attempt_async([delivery], lambda: self._aprocess(delivery, raised))
        if raise_on_failure and raised:
            raise raised[0]
        return receipt

    def process_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """Handle messages now, a transaction for each batch."""
        return [receipt for batch, marks in _marked(messages, "process_many") for receipt in self._batch(batch, marks)]

    async def aprocess_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """As `process_many`, awaited; `def` handlers run in a thread."""
        parts = _marked(messages, "aprocess_many")
        return [receipt for batch, marks in parts for receipt in await self._abatch(batch, marks)]

    def _batch(self, deliveries: list[Delivery], marks: Sequence[Mark]) -> list[Receipt]:
        if len(deliveries) > 1:
            return self._receiver.spooling.attempt(deliveries, lambda: self._process_batch(deliveries, marks))
        receipt = self.process(deliveries[0], raise_on_failure=False)
        if marks and receipt.status != "spooled":
            perform(self._store, lambda: self._context.moves.ledger.keep_positions(marks))
        return [receipt]

    async def _abatch(self, deliveries: list[Delivery], marks: Sequence[Mark]) -> list[Receipt]:
        if len(deliveries) > 1:
            attempt = partial(self._aprocess_batch, deliveries, marks)
            return await self._receiver.spooling.attempt_async(deliveries, attempt)
        receipt = await self.aprocess(deliveries[0], raise_on_failure=False)
        if marks and receipt.status != "spooled":
            await perform_async(self._store, lambda: self._context.moves.ledger.keep_positions(marks))
        return [receipt]

    def _process_batch(self, deliveries: list[Delivery], marks: Sequence[Mark]) -> list[Receipt]:
        batch = _Batch(deliveries)
        self._store.check_caller()
        self._store.make_missing()
        kinds = self._kinds(deliveries)
        _check_loop(kinds, deliveries[0].type, "aprocess_many")
        for step in self._steps(batch, kinds, marks):
            batch.add(asyncio.run(self._run_in_new_loop(step)) if step.is_async else self._run(step))
        left = batch.left
        return batch.receipts(self._receiver.store_first(left, marks) if left else [])

    async def _aprocess_batch(self, deliveries: list[Delivery], marks: Sequence[Mark]) -> list[Receipt]:
        batch = _Batch(deliveries)
        self._store.check_caller()
        self._store.make_missing()
        for step in self._steps(batch, self._kinds(deliveries), marks):
            batch.add(await (self._run_async(step) if step.is_async else asyncio.to_thread(self._run, step)))
        left = batch.left
        return batch.receipts(await self._receiver.astore_first(left, marks) if left else [])

    def _steps(self, batch: _Batch, kinds: set[bool], marks: Sequence[Mark]) -> list[_Step[list[list[Receipt]]]]:
        """A transaction for each kind of handlers; the first takes what neither runs, the last keeps the marks."""
        types, fresh = {one.type for one in batch.fresh}, batch.fresh
        first, last = min(kinds, default=False), max(kinds, default=False)
        return [
            _Step(
                types,
                partial(process_many, deliveries=fresh, is_async=kind, rest=kind == first),
                kind,
                marks if kind == last else (),
            )
            for kind in sorted(kinds)
        ]

    def _process(self, delivery: Delivery, raised: list[BaseException]) -> list[Receipt]:
        receipts, error = self._handled(delivery)
        stored = self._receiver.store_first([delivery]) if self._is_wanted_elsewhere(delivery, receipts) else []
        raised += [error] if error else []
        return [merged([*receipts.values(), *stored])]

    async def _aprocess(self, delivery: Delivery, raised: list[BaseException]) -> list[Receipt]:
        receipts, error = await self._ahandled(delivery)
        stored = await self._receiver.astore_first([delivery]) if self._is_wanted_elsewhere(delivery, receipts) else []
        raised += [error] if error else []
        return [merged([*receipts.values(), *stored])]

    def _is_wanted_elsewhere(self, delivery: Delivery, receipts: dict[str, Receipt]) -> bool:
        """Consumers without a handler in this process get their rows like any other message."""
        subscribed = self._context.cache.catalog.by_type.get(delivery.type, ())
        return not receipts or bool({one.consumer for one in subscribed} - receipts.keys())

    def _handled(self, delivery: Delivery) -> Processed:
        """Run every handler of this process for the delivery."""
        self._store.check_caller()
        self._store.make_missing()
        kinds = self._kinds([delivery])
        _check_loop(kinds, delivery.type, "aprocess")
        with self._copies.turn(delivery):
            processed = self._run(_step(delivery, is_async=False)) if False in kinds else Processed({})
            if True in kinds:
                later = self._run_in_new_loop(_step(delivery, is_async=True))
                processed = processed.and_then(asyncio.run(later))
        return processed

    async def _ahandled(self, delivery: Delivery) -> Processed:
        self._store.check_caller()
        self._store.make_missing()
        kinds = self._kinds([delivery])
        async with self._copies.async_turn(delivery):
            sync = _step(delivery, is_async=False)
            processed = await asyncio.to_thread(self._run, sync) if False in kinds else Processed({})
            if True in kinds:
                processed = processed.and_then(await self._run_async(_step(delivery, is_async=True)))
        return processed

    async def answer(self, consumer: str, **message: Unpack[Arguments]) -> Receipt:
        """Handle a request now, for one consumer alone, or raise; it is never spooled or stored for later.

        For handlers that forget failures: the caller waits for the result, or comes again under the same id.
        """
        receipts, _ = await self._ahandled(Delivery.of(**message))
        if consumer not in receipts:
            raise StoreUnavailable(f"consumer {consumer!r} is not subscribed to {message['type']!r} any more")
        return receipts[consumer]

    def close(self) -> None:
        """Deregister, if this process was registered."""
        if "inside" in vars(self):
            self.inside.close()
        if self._membership is not None and self._pid == os.getpid():
            self._membership.stop()
        self._membership = None

    def _kinds(self, deliveries: Sequence[Delivery]) -> set[bool]:
        types = {delivery.type for delivery in deliveries}
        return {one.is_async for one in self._context.registry if one.type in types and not one.external}

    def _run(self, step: _Step[T]) -> T:
        membership = self._registered()
        lane = self._lane(membership)
        while not membership.isolation.enter(lane):
            time.sleep(_ISOLATION_POLL)
        try:
            with membership.watchdog.watched() as watch:
                return perform(
                    self._store,
                    partial(self._flow, lane, step),
                    lambda session: self._watched(lane, session, watch),
                )
        finally:
            membership.isolation.leave(lane)

    async def _run_async(self, step: _Step[T]) -> T:
        membership = await asyncio.to_thread(self._registered)
        lane = self._lane(membership)
        while not membership.isolation.enter(lane):  # it is shared with threads, so nothing here can be awaited
            await asyncio.sleep(_ISOLATION_POLL)
        try:
            return await perform_async(
                self._store,
                partial(self._flow, lane, step),
                lambda session: self._equipped(lane, session),
            )
        finally:
            membership.isolation.leave(lane)

    async def _run_in_new_loop(self, step: _Step[T]) -> T:
        try:
            return await self._run_async(step)
        finally:
            await self._store.async_close()

    def _flow(self, lane: Lane, step: _Step[T]) -> Flow[T]:
        lane.marks = step.marks
        yield from introduce(self._context, step.types)
        return (yield from step.flow(lane))

    def _registered(self) -> Membership:
        with self._lock:
            if self._membership is None or self._pid != os.getpid():  # a forked child is a process of its own
                self._membership, self._pid = Membership(self._context, self._store), os.getpid()
                progress = PruneProgress()
                self._membership.also(lambda: stay_introduced(self._context))
                self._membership.also(lambda: maintain(self._context, progress))
                if "history" in self._store.capabilities:
                    self._membership.also(lambda: keep_history(self._context))
            membership = self._membership
        membership.start(inline=True)
        return membership

    def _watched(self, lane: Lane, session: Session, watch: Watch) -> Outside:
        lane.effects = sync_effects(lane, self._store, lambda: session.idle)
        return {**OUTSIDE, Call: partial(watched_call, session, watch)}

    def _equipped(self, lane: Lane, session: AsyncSession) -> Outside:
        lane.effects = async_effects(lane, self._store, lambda: session.idle)
        return OUTSIDE_ASYNC

    def _lane(self, membership: Membership) -> Lane:
        return Lane(
            context=self._context,
            worker=membership.number,
            new_token=membership.token,
            subscriptions=[],
            stopping=lambda: False,
            isolation=membership.isolation,
            notify=self._store.notify,
            share=_ONE_WRITER if self._store.single_writer else 1.0,
        )


class _Step(NamedTuple, Generic[T]):
    """What a lane does with deliveries of these types."""

    types: set[str]
    flow: Callable[[Lane], Flow[T]]
    is_async: bool
    marks: Sequence[Mark] = ()
    """How far a source was read when all of it is done."""


def _marked(messages: Iterable[Arguments], call: str) -> Iterator[tuple[list[Delivery], Sequence[Mark]]]:
    """Messages in batches; the last one keeps how far their source was read."""
    marks, waiting = marks_of(messages), None
    for batch in batches(messages, call):
        if waiting is not None:
            yield waiting, ()
        waiting = batch
    if waiting is not None:
        yield waiting, marks


class _Batch:
    """A batch on its way: what was answered of it."""

    def __init__(self, deliveries: list[Delivery]) -> None:
        self._deliveries = deliveries
        firsts, copies = folded(deliveries)
        self._firsts = [index for index in firsts if deliveries[index].due == AT_ONCE]
        self._others = sorted({*firsts, *copies} - {*self._firsts})
        self.fresh = [deliveries[index] for index in self._firsts]
        """Without copies, and without what is not due yet."""
        self._parts: list[list[Receipt]] = [[] for _ in self.fresh]

    def add(self, answers: list[list[Receipt]]) -> None:
        """The handlers of one kind have run."""
        self._parts = [parts + more for parts, more in zip(self._parts, answers, strict=True)]

    @property
    def left(self) -> list[Delivery]:
        """What is stored now: copies, what is not due yet, and everything where nothing was answered."""
        if not any(self._parts):
            return self._deliveries
        return [self._deliveries[index] for index in self._others]

    def receipts(self, stored: list[Receipt]) -> list[Receipt]:
        """A receipt for each delivery, in their order."""
        if len(stored) == len(self._deliveries):
            return stored
        answers = dict(zip(self._firsts, map(merged, self._parts), strict=True))
        answers |= dict(zip(self._others, stored, strict=True))
        return [answers[index] for index in range(len(self._deliveries))]


def _step(delivery: Delivery, *, is_async: bool) -> _Step[Processed]:
    def flow(lane: Lane) -> Flow[Processed]:
        receipts = yield from process(lane, delivery, is_async=is_async)
        return Processed(receipts, lane.raised)

    return _Step({delivery.type}, flow, is_async)


def _check_loop(kinds: set[bool], name: str, awaited: str) -> None:
    """Refuse to block an event loop that async handlers would need."""
    if True in kinds and _in_event_loop():
        raise ConfigurationError(
            f"{name!r} has an async handler; inside an event loop use `await inbox.{awaited}(...)`"
        )


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
