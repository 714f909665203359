"""The runtime: lanes in threads for `def` handlers, lanes on an event loop for `async def` handlers.

Invariant: a lane owns its connection; when the lane ends in any way but the ordinary one, the connection is
dropped and the presence lets go of the lane's notes, so a stop never leaves an orphan.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from onceward.deferred import asyncio
from onceward.errors import StoreError, StoreUnavailable
from onceward.flow import Call, Flow, Wait, run_async, run_sync
from onceward.registry import Subscription
from onceward.runtime.effects import async_effects, sync_effects
from onceward.runtime.heartbeat import Presence
from onceward.runtime.runner import async_performer, performer
from onceward.runtime.wakeup import Wake
from onceward.runtime.watchdog import Watch, watched_call
from onceward.steps.context import Context
from onceward.steps.dispatch import LINGER, Dispatch, dispatch
from onceward.steps.handle import work
from onceward.steps.introduce import introduce, stay_introduced
from onceward.steps.lane import Lane
from onceward.steps.prune import Sweep, upkeep
from onceward.steps.subscribe import fan_out
from onceward.stores.protocol import AsyncSession, Bell, Session, Store

log = logging.getLogger("onceward")

_AGAIN_SECONDS = 0.5

Role = Literal["handle", "relay"]
T = TypeVar("T")

FAN_OUT_SECONDS = 2.0
"""How long a turn of fanning out takes: the same thread takes over dead processes."""


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
        lanes = concurrency if "handle" in roles else 0
        self._presence = Presence(context, store, process=process, lanes=lanes, lost=self._fail)
        sweep = Sweep()
        self._presence.also(self._introduce)
        self._presence.also(lambda: fan_out(context, seconds=FAN_OUT_SECONDS))
        self._presence.also(lambda: upkeep(context, sweep))
        self._bell: Bell | None = None
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._served_by: list[tuple[Lane, bool]] = []
        self.finished = 0
        """How many messages its lanes have finished."""
        self._problems: list[BaseException] = []

    def request_stop(self) -> None:
        """Ask every lane to stop after what it is doing; returns at once, may be called from a signal handler."""
        self._stop.set()
        self._wake.ring()

    def run(self) -> int:
        """Work until stopped (or until idle), with an event loop of its own for async handlers."""
        try:
            if self._begin():
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
            if await asyncio.shield(beginning):
                self._start_threads()
                await self._async_lanes()
            while self._threads:  # threads, not tasks
                await asyncio.sleep(0.01)
        finally:
            self.request_stop()
            await asyncio.wait([beginning])  # its thread goes on when we are cancelled; end what it has begun
            beginning.exception()
            await asyncio.shield(asyncio.to_thread(self._join))
            await asyncio.shield(asyncio.to_thread(self._end))
        self._raise_problem()
        return self.finished

    def _begin(self) -> bool:
        """Get ready, also when the database is away at first; answers whether that came before a stop."""
        pause, told = 0.05, ""
        while not self._stop.is_set():
            try:
                self._get_ready()
            except StoreUnavailable as error:
                if self._until_idle:
                    raise
                self._presence.distrust()
                if str(error) != told:
                    log.warning("waiting for the database: %s", error)
                    told = str(error)
                self._stop.wait(pause)
                pause = min(pause * 2, 2.0)
            else:
                if told:
                    log.warning("the database is back")
                return True
        return False

    def _get_ready(self) -> None:
        if any(handler.is_async for handler in self._context.registry):
            self._store.check_async()
        if self._before is not None:
            self._before()
            self._before = None
        with self._store.session() as session:
            run_sync(introduce(self._context, anew=True), session.perform)
            run_sync(fan_out(self._context), session.perform)
        self._presence.start()
        if not self._until_idle:  # whoever only drains never waits for new messages
            self._bell = self._store.watch(self._wake.ring)

    def _end(self) -> None:
        if self._bell is not None:
            self._bell.close()
        self._presence.stop()

    def _introduce(self) -> Flow[int]:
        """Subscribe to what is not, yet or any more, and serve it from then on; answers whether it did."""
        yield from stay_introduced(self._context)
        changed = 0
        for lane, is_async in self._served_by:
            served = self._subscriptions(is_async=is_async)
            if served != lane.subscriptions:
                lane.serve(served)
                changed = 1
        return changed

    def _subscriptions(self, *, is_async: bool) -> list[Subscription]:
        """What a lane of a kind serves, as far as it is subscribed to."""
        registry, known = self._context.registry, self._context.cache.catalog.subscriptions.values()
        mine = ((one, registry.of_type(one.consumer, one.type)) for one in known)
        return [one for one, of in mine if of is not None and of.is_async == is_async]

    def _lanes(self, *, is_async: bool) -> list[Lane]:
        """The lanes of the handlers of a kind."""
        if "handle" not in self._roles or not self._has_handlers(is_async=is_async):
            return []
        lanes = [self._lane(self._subscriptions(is_async=is_async)) for _ in range(self._concurrency)]
        self._served_by += [(lane, is_async) for lane in lanes]
        return lanes

    def _has_handlers(self, *, is_async: bool) -> bool:
        return any(one.is_async == is_async and not one.external for one in self._context.registry)

    def _destinations(self, *, is_async: bool) -> list[str]:
        """Where the relay publishes to, through sinks of a kind."""
        return self._context.registry.destinations(is_async=is_async) if "relay" in self._roles else []

    def _relay(self, destinations: list[str], start: Callable[[str], None]) -> Dispatch:
        return Dispatch(self._context, destinations, stopping=self._stop.is_set, start=start)

    def _lane_to(self, destination: str) -> Lane:
        relay = self._context.cache.catalog.relay
        assert relay is not None  # noqa: S101 - this process has introduced itself
        return self._lane([relay], destination=destination, linger=LINGER)

    def _lane(self, subscriptions: list[Subscription], **more: Any) -> Lane:
        return Lane(
            context=self._context,
            worker=lambda: self._presence.worker,
            new_token=self._presence.token,
            subscriptions=subscriptions,
            stopping=self._stop.is_set,
            gate=self._presence.gate,
            ring=self._store.ring,
            **more,
        )

    def _start_threads(self) -> None:
        for number, lane in enumerate(self._lanes(is_async=False)):
            self._start(partial(self._sync_lane, lane), f"onceward-lane-{number}")
        destinations = self._destinations(is_async=False)
        if destinations:
            self._start(partial(self._sync_relay, destinations), "onceward-relay")

    def _start(self, target: Any, name: str) -> None:
        thread = threading.Thread(target=self._guarded, args=(target,), name=name, daemon=True)
        with self._lock:  # whoever finds it there may join it
            thread.start()
            self._threads.add(thread)

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
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _fail(self, error: BaseException) -> None:
        """Stop, and let `run` raise this."""
        self._problems.append(error)
        self.request_stop()

    def _raise_problem(self) -> None:
        if self._problems:
            raise self._problems[0]

    def _join(self) -> None:
        """Wait for the lanes; after a stop, no longer than the stop may take."""
        while self._threads and not self._stop.is_set():
            self._join_one(0.1)
        deadline = time.monotonic() + self._context.settings.stop_timeout.total_seconds()
        while self._threads and (left := deadline - time.monotonic()) > 0:
            self._join_one(min(left, 0.1))
        for thread in list(self._threads):
            log.error("%s still runs its handler; its messages are given back", thread.name)
        if self._threads:
            self._presence.watchdog.cut()

    def _join_one(self, seconds: float) -> None:
        for thread in list(self._threads)[:1]:  # others may come and go
            thread.join(seconds)

    def _count(self, finished: int) -> None:
        with self._lock:
            self.finished += finished

    def _sync_relay(self, destinations: list[str]) -> None:
        """Look for what is to be published; each destination that has something gets a thread for a while."""
        relay = self._relay(destinations, lambda name: self._start(partial(publish, name), f"onceward-relay-{name}"))

        def publish(destination: str) -> None:
            try:
                self._sync_lane(self._lane_to(destination))
            except StoreUnavailable as error:
                log.warning("publishing to %s waits for the database: %s", destination, error)
            finally:
                relay.busy.discard(destination)
                self._wake.ring()  # what came since its last look is for the next lane

        session = self._connect()
        try:
            with self._presence.watchdog.watched() as watch:
                performer = _SyncPerformer(session, watch, self._wake)
                run_sync(dispatch(relay, until_idle=self._until_idle), performer.perform)
        finally:
            session.close()

    def _sync_lane(self, lane: Lane) -> None:
        session = self._connect()
        lane.effects = sync_effects(lane, self._store, lambda: session.idle)
        try:
            with self._presence.watchdog.watched() as watch:
                performer = _SyncPerformer(session, watch, self._wake)
                self._count(run_sync(work(lane, until_idle=self._until_idle), performer.perform))
        finally:
            session.close()

    def _connect(self) -> Session:
        """A connection of its own; while the database is away, a worker that is to stay waits for it."""
        while True:
            try:
                return self._store.connect()
            except StoreUnavailable:
                if self._until_idle or self._stop.wait(_AGAIN_SECONDS):
                    raise

    async def _async_connect(self) -> AsyncSession:
        """As `_connect`, awaited."""
        while True:
            try:
                return await self._store.async_connect()
            except StoreUnavailable:
                await asyncio.sleep(_AGAIN_SECONDS)
                if self._until_idle or self._stop.is_set():
                    raise

    async def _async_lanes(self) -> None:
        lanes, destinations = self._lanes(is_async=True), self._destinations(is_async=True)
        if not lanes and not destinations:
            return
        tasks: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:

            def start(working: Coroutine[Any, Any, None]) -> None:
                task = group.create_task(working)
                tasks.add(task)
                task.add_done_callback(tasks.discard)

            for lane in lanes:
                start(self._async_lane(lane))
            if destinations:
                start(self._async_relay(destinations, start))
            group.create_task(self._end_in_time(tasks))

    async def _end_in_time(self, tasks: set[asyncio.Task[None]]) -> None:
        """What `_join` is for threads; a handler that takes longer than a stop may is cancelled."""
        while tasks and not self._stop.is_set():
            await asyncio.wait(set(tasks), timeout=0.1)
        if tasks:
            await asyncio.wait(set(tasks), timeout=self._context.settings.stop_timeout.total_seconds())
        for task in set(tasks):
            log.error("a lane still runs its handler; it is cancelled and its messages are given back")
            task.cancel()

    async def _async_relay(self, destinations: list[str], start: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """As `_sync_relay`, with tasks."""
        relay = self._relay(destinations, lambda name: start(publish(name)))

        async def publish(destination: str) -> None:
            try:
                await self._async_lane(self._lane_to(destination))
            except StoreUnavailable as error:
                log.warning("publishing to %s waits for the database: %s", destination, error)
            finally:
                relay.busy.discard(destination)
                self._wake.ring()

        await self._performed(lambda _: dispatch(relay, until_idle=self._until_idle))

    async def _async_lane(self, lane: Lane) -> None:
        def step(session: AsyncSession) -> Flow[int]:
            lane.effects = async_effects(lane, self._store, lambda: session.idle)
            return work(lane, until_idle=self._until_idle)

        self._count(await self._performed(step))

    async def _performed(self, step: Callable[[AsyncSession], Flow[T]]) -> T:
        """Run a step on a connection of its own."""
        session = await self._async_connect()
        try:
            seen, otherwise = self._wake.rung, async_performer(session)

            async def perform(request: Any) -> Any:
                nonlocal seen
                if isinstance(request, Wait):
                    seen = await self._wake.async_wait(seen, request.seconds)
                    return None
                return await otherwise(request)

            value = await run_async(step(session), perform)
        except BaseException:
            session.abandon()
            raise
        else:
            await session.close()
            return value


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
