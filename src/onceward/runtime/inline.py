"""Inline processing: the shell around `steps/process.py` for callers that want the effect before they acknowledge.

A process that works inline is registered like a worker, so that its death is noticed and the messages it may
have died of are stored first from then on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

from onceward.deferred import asyncio
from onceward.errors import ConfigurationError, StoreUnavailable
from onceward.flow import Call, Flow, Wait
from onceward.message import Arguments, Delivery, Receipt
from onceward.runtime.effects import async_effects, sync_effects
from onceward.runtime.heartbeat import Presence
from onceward.runtime.receiver import Receiver
from onceward.runtime.runner import async_performer, perform, perform_async, performer, repeatable
from onceward.runtime.watchdog import Watch, watched_call
from onceward.steps.context import Context, Try
from onceward.steps.introduce import introduce, stay_introduced
from onceward.steps.lane import Lane
from onceward.steps.process import process
from onceward.steps.prune import Sweep, upkeep
from onceward.steps.receive import merged
from onceward.stores.protocol import AsyncSession, Session, Store

_GATE_POLL = 0.005


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
        self._presence: Presence | None = None
        self._pid = 0
        self._lock = threading.Lock()

    def process(self, delivery: Delivery, *, raise_on_failure: bool) -> Receipt:
        """Handle a delivery now, for the consumers of this process; for others it is stored. Or it goes to the spool.

        What a handler raised is raised here if wanted, once the message is stored.
        """
        raised: list[BaseException] = []
        (receipt,) = self._receiver.spooling.attempt([delivery], lambda: self._process(delivery, raised))
        if raise_on_failure and raised:
            raise raised[0]
        return receipt

    async def aprocess(self, delivery: Delivery, *, raise_on_failure: bool) -> Receipt:
        """As `process`, awaited; a `def` handler runs in a thread."""
        raised: list[BaseException] = []
        (receipt,) = await self._receiver.spooling.attempt_async([delivery], lambda: self._aprocess(delivery, raised))
        if raise_on_failure and raised:
            raise raised[0]
        return receipt

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
        kinds = self._kinds(delivery)
        if True in kinds and _in_event_loop():
            raise ConfigurationError(
                f"{delivery.type!r} has an async handler; inside an event loop use `await inbox.aprocess(...)`"
            )
        with self._copies.turn(delivery):
            processed = self._run(delivery) if False in kinds else Processed({})
            if True in kinds:
                processed = processed.and_then(asyncio.run(self._run_in_new_loop(delivery)))
        return processed

    async def _ahandled(self, delivery: Delivery) -> Processed:
        self._store.check_caller()
        kinds = self._kinds(delivery)
        async with self._copies.async_turn(delivery):
            processed = await asyncio.to_thread(self._run, delivery) if False in kinds else Processed({})
            if True in kinds:
                processed = processed.and_then(await self._run_async(delivery))
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
        """Say goodbye, if this process was registered."""
        if self._presence is not None and self._pid == os.getpid():
            self._presence.stop()
        self._presence = None

    def _kinds(self, delivery: Delivery) -> set[bool]:
        handlers = (handler for handler in self._context.registry if not handler.external)
        return {handler.is_async for handler in handlers if handler.type == delivery.type}

    def _run(self, delivery: Delivery) -> Processed:
        presence = self._registered()
        lane = self._lane(presence)
        while not presence.gate.enter(lane):
            time.sleep(_GATE_POLL)
        try:
            with presence.watchdog.watched() as watch:
                return perform(
                    self._store,
                    self._trying(lane, delivery, is_async=False),
                    lambda session: self._watching(lane, session, watch),
                )
        finally:
            presence.gate.leave(lane)

    async def _run_async(self, delivery: Delivery) -> Processed:
        presence = await asyncio.to_thread(self._registered)
        lane = self._lane(presence)
        while not presence.gate.enter(lane):  # it is shared with threads, so nothing here can be awaited
            await asyncio.sleep(_GATE_POLL)
        try:
            return await perform_async(
                self._store,
                self._trying(lane, delivery, is_async=True),
                lambda session: self._equipped(lane, session),
            )
        finally:
            presence.gate.leave(lane)

    async def _run_in_new_loop(self, delivery: Delivery) -> Processed:
        try:
            return await self._run_async(delivery)
        finally:
            await self._store.async_close()

    def _trying(self, lane: Lane, delivery: Delivery, *, is_async: bool) -> Callable[[], Flow[Processed]]:
        def one_try(first: Try | None) -> Flow[Processed]:
            lane.first_try = first
            return self._step(lane, delivery, is_async=is_async)

        return repeatable(one_try, self._context.clock)

    def _step(self, lane: Lane, delivery: Delivery, *, is_async: bool) -> Flow[Processed]:
        yield from introduce(self._context, {delivery.type})
        receipts = yield from process(lane, delivery, is_async=is_async)
        return Processed(receipts, lane.raised)

    def _registered(self) -> Presence:
        with self._lock:
            if self._presence is None or self._pid != os.getpid():  # a forked child is a process of its own
                self._presence, self._pid = Presence(self._context, self._store), os.getpid()
                sweep = Sweep()
                self._presence.also(lambda: stay_introduced(self._context))
                self._presence.also(lambda: upkeep(self._context, sweep))
            presence = self._presence
        presence.start(inline=True)
        return presence

    def _watching(self, lane: Lane, session: Session, watch: Watch) -> Callable[[Any], Any]:
        lane.effects = sync_effects(lane, self._store, lambda: session.idle)

        otherwise = performer(session)

        def watching(request: Any) -> Any:
            if isinstance(request, Call):
                return watched_call(session, watch, request)
            if isinstance(request, Wait):
                return time.sleep(request.seconds)
            return otherwise(request)

        return watching

    def _equipped(self, lane: Lane, session: AsyncSession) -> Callable[[Any], Any]:
        lane.effects = async_effects(lane, self._store, lambda: session.idle)

        otherwise = async_performer(session)

        async def equipped(request: Any) -> Any:
            if isinstance(request, Wait):
                return await asyncio.sleep(request.seconds)
            return await otherwise(request)

        return equipped

    def _lane(self, presence: Presence) -> Lane:
        return Lane(
            context=self._context,
            worker=lambda: presence.worker,
            new_token=presence.token,
            subscriptions=[],
            stopping=lambda: False,
            gate=presence.gate,
            ring=self._store.ring,
        )


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
