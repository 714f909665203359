"""The runtime: lanes in threads for `def` handlers, lanes on an event loop for `async def` handlers.

Invariant: a lane owns its connection; when the lane ends in any way but the ordinary one, the connection is
dropped and the presence lets go of the lane's notes, so a stop never leaves an orphan.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from onceward.deferred import asyncio, signal
from onceward.effects import async_effects, sync_effects
from onceward.errors import StoreError
from onceward.flow import Call, Flow, Outcome, Wait, run_async, run_sync
from onceward.presence import Presence
from onceward.registry import Subscription
from onceward.steps.context import Context
from onceward.steps.handle import work
from onceward.steps.introduce import introduce
from onceward.steps.lane import Lane
from onceward.steps.prune import Sweep, upkeep
from onceward.steps.subscribe import fan_out
from onceward.stores.calls import overrun
from onceward.stores.protocol import Bell, Session, Store
from onceward.transact import async_performer, performer
from onceward.wake import Wake
from onceward.watchdog import Watch

log = logging.getLogger("onceward")

Role = Literal["handle", "relay"]


class Worker:
    """Everything of one process that runs handlers."""

    def __init__(  # noqa: PLR0913 - how to run
        self,
        context: Context,
        store: Store,
        *,
        concurrency: int = 1,
        process: str = "",
        until_idle: bool = False,
        roles: Sequence[Role] = ("handle", "relay"),
        before: Callable[[], None] | None = None,
    ) -> None:
        self._context, self._store = context, store
        self._concurrency = concurrency
        self._roles, self._before = roles, before
        self._until_idle = until_idle
        self._stop = threading.Event()
        self._wake = Wake()
        self._presence = Presence(context, store, process=process, lost=self._fail)
        self._bell: Bell | None = None
        self._threads: list[threading.Thread] = []
        self._served_by: list[tuple[Lane, bool]] = []
        self._finished: list[int] = []
        self._problems: list[BaseException] = []

    @property
    def finished(self) -> int:
        """How many messages its lanes have finished."""
        return sum(self._finished)

    def request_stop(self) -> None:
        """Ask every lane to stop after what it is doing; returns at once, may be called from a signal handler."""
        self._stop.set()
        self._wake.ring()

    def run(self) -> int:
        """Work until stopped (or until idle), with an event loop of its own for async handlers."""
        try:
            self._begin()
            if any(handler.is_async for handler in self._context.registry):
                self._start(lambda: asyncio.run(self._async_lanes()), "onceward-async")
            self._start_threads()
            self._join()
        finally:
            self.request_stop()
            self._end()
        self._raise_problem()
        return self.finished

    async def run_async(self) -> int:
        """As `run`, with async handlers on the running event loop; a cancellation stops gracefully."""
        beginning = asyncio.ensure_future(asyncio.to_thread(self._begin))
        try:
            await asyncio.shield(beginning)
            self._start_threads()
            await self._async_lanes()
            while any(thread.is_alive() for thread in self._threads):  # threads, not tasks
                await asyncio.sleep(0.01)
        finally:
            self.request_stop()
            await asyncio.wait([beginning])  # its thread goes on when we are cancelled; end what it has begun
            beginning.exception()
            await asyncio.shield(asyncio.to_thread(self._join))
            await asyncio.shield(asyncio.to_thread(self._end))
        self._raise_problem()
        return self.finished

    def _begin(self) -> None:
        if self._before is not None:
            self._before()
        with self._store.session() as session:
            run_sync(introduce(self._context, anew=True), session.perform)
            while run_sync(fan_out(self._context), session.perform):
                pass
        sweep = Sweep()
        self._presence.also(self._introduce)
        self._presence.also(lambda: fan_out(self._context))
        self._presence.also(lambda: upkeep(self._context, sweep))
        self._presence.start()
        if not self._until_idle:  # whoever only drains never waits for new messages
            self._bell = self._store.watch(self._wake.ring)

    def _end(self) -> None:
        if self._bell is not None:
            self._bell.close()
        self._presence.stop()

    def _introduce(self) -> Flow[int]:
        """Subscribe to what could not be subscribed to yet, and serve it from then on; answers whether it did."""
        yield from introduce(self._context)
        changed = 0
        for lane, is_async in self._served_by:
            served = self._subscriptions(is_async=is_async, outgoing=lane.outgoing)
            if served != lane.subscriptions:
                lane.serve(served)
                changed = 1
        return changed

    def _subscriptions(self, *, is_async: bool, outgoing: bool) -> list[Subscription]:
        """What a lane of a kind serves, as far as it is subscribed to."""
        registry, known = self._context.registry, self._context.cache.catalog.subscriptions.values()
        mine = ((one, registry.of_type(one.consumer, one.type)) for one in known)
        return [one for one, of in mine if of is not None and (of.is_async, of.external) == (is_async, outgoing)]

    def _lanes(self, *, is_async: bool) -> list[Lane]:
        """The lanes of a kind: some for the handlers, one for the relay."""
        kinds = {handler.external for handler in self._context.registry if handler.is_async == is_async}
        lanes = []
        if False in kinds and "handle" in self._roles:
            lanes += [self._lane(is_async=is_async) for _ in range(self._concurrency)]
        if True in kinds and "relay" in self._roles:
            lanes.append(self._lane(is_async=is_async, outgoing=True))
        self._served_by += [(lane, is_async) for lane in lanes]
        return lanes

    def _lane(self, *, is_async: bool, outgoing: bool = False) -> Lane:
        return Lane(
            context=self._context,
            worker=lambda: self._presence.worker,
            new_token=self._presence.token,
            subscriptions=self._subscriptions(is_async=is_async, outgoing=outgoing),
            stopping=self._stop.is_set,
            gate=self._presence.gate,
            outgoing=outgoing,
            ring=self._store.ring,
        )

    def _start_threads(self) -> None:
        for number, lane in enumerate(self._lanes(is_async=False)):
            self._start(partial(self._sync_lane, lane), f"onceward-lane-{number}")

    def _start(self, target: Any, name: str) -> None:
        thread = threading.Thread(target=self._guarded, args=(target,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guarded(self, target: Any) -> None:
        """A lane that fails for a reason nobody foresaw stops the worker loudly instead of leaving a silent gap."""
        try:
            target()
        except StoreError as error:
            if not self._stop.is_set():
                self._fail(error)
        except BaseException as error:
            log.exception("a lane stopped unexpectedly; the worker stops")
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop, and let `run` raise this."""
        self._problems.append(error)
        self.request_stop()

    def _raise_problem(self) -> None:
        if self._problems:
            raise self._problems[0]

    def _join(self) -> None:
        """Wait for the lanes; after a stop, no longer than the stop may take."""
        patience = self._context.settings.stop_timeout.total_seconds()
        for thread in self._threads:
            while thread.is_alive() and not self._stop.is_set():
                thread.join(0.1)
        for thread in self._threads:
            thread.join(patience)
            if thread.is_alive():
                log.error("%s still runs its handler; its messages are given back", thread.name)
                self._presence.watchdog.cut()

    def _sync_lane(self, lane: Lane) -> None:
        session = self._store.connect()
        lane.effects = sync_effects(lane, self._store, lambda: session.idle)
        try:
            with self._presence.watchdog.watched() as watch:
                performer = _SyncPerformer(session, watch, self._wake)
                self._finished.append(run_sync(work(lane, until_idle=self._until_idle), performer.perform))
        finally:
            session.close()

    async def _async_lanes(self) -> None:
        lanes = self._lanes(is_async=True)
        if lanes:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._async_lane(lane)) for lane in lanes]
                group.create_task(self._end_in_time(tasks))

    async def _end_in_time(self, tasks: list[asyncio.Task[None]]) -> None:
        """What `_join` is for threads; a handler that takes longer than a stop may is cancelled."""
        while not self._stop.is_set() and not all(task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=0.1)
        _, running = await asyncio.wait(tasks, timeout=self._context.settings.stop_timeout.total_seconds())
        for task in running:
            log.error("a lane still runs its handler; it is cancelled and its messages are given back")
            task.cancel()

    async def _async_lane(self, lane: Lane) -> None:
        session = await self._store.async_connect()
        lane.effects = async_effects(lane, self._store, lambda: session.idle)
        try:
            seen, otherwise = self._wake.rung, async_performer(session)

            async def perform(request: Any) -> Any:
                nonlocal seen
                if isinstance(request, Wait):
                    seen = await self._wake.async_wait(seen, request.seconds)
                    return None
                return await otherwise(request)

            self._finished.append(await run_async(work(lane, until_idle=self._until_idle), perform))
        except BaseException:
            session.abandon()
            raise
        else:
            await session.close()


class _SyncPerformer:
    """Performs the requests of one lane: waits on the bell, watches the handler's time; the session does the rest."""

    def __init__(self, session: Session, watch: Watch, wake: Wake) -> None:
        self._session, self._watch, self._wake = session, watch, wake
        self._otherwise = performer(session)
        self._seen = wake.rung

    def perform(self, request: Any) -> Any:
        if isinstance(request, Call):
            return watched_call(self._session, self._watch, request)
        if isinstance(request, Wait):
            self._seen = self._wake.wait(self._seen, request.seconds)
            return None
        return self._otherwise(request)


def watched_call(session: Session, watch: Watch, call: Call) -> Outcome:
    """Call a `def` handler under its time limit."""
    limit = call.handler.timeout.total_seconds()
    watch.begin(session, limit)
    expired = True
    try:
        outcome: Outcome = session.perform(call)
    finally:
        expired = watch.end()
    return Outcome(error=overrun(limit)) if expired else outcome


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Stop gracefully on SIGTERM and SIGINT, where this thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
