"""The runtime: lanes in threads for `def` handlers, lanes on an event loop for `async def` handlers.

Invariant: a lane owns its connection; when the lane ends in any way but the ordinary one, the connection is
dropped and the membership lets go of the lane's claims, so a stop never leaves an orphan.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from onceward.deferred import asyncio
from onceward.domain.selection import EVERYTHING, Selection
from onceward.errors import StoreConflict, StoreError, StoreUnavailable
from onceward.flow import Call, Flow, Outside, Wait, run_async, run_sync
from onceward.registry import Subscription
from onceward.runtime.effects import async_effects, sync_effects
from onceward.runtime.heartbeat import Membership
from onceward.runtime.runner import OUTSIDE, OUTSIDE_ASYNC
from onceward.runtime.wakeup import Waiter, Wake
from onceward.runtime.watchdog import Watch, watched_await, watched_call
from onceward.steps.context import Context
from onceward.steps.dispatch import LINGER, Dispatch, dispatch
from onceward.steps.handle import work
from onceward.steps.history import keep_history
from onceward.steps.introduce import introduce, stay_introduced
from onceward.steps.lane import Lane
from onceward.steps.prune import PruneProgress, maintain
from onceward.steps.subscribe import fan_out
from onceward.stores.protocol import AsyncSession, Listener, Session, Store

log = logging.getLogger("onceward")

_AGAIN_SECONDS = 0.5
_LATE = "the handler in %s did not end within %g s (stop_timeout); its messages are given back"

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
        selection: Selection = EVERYTHING,
    ) -> None:
        self._context, self._store = context, store
        self._concurrency = concurrency
        self._roles, self._before, self._selection = roles, before, selection
        self._until_idle = until_idle
        self._stop, self._is_through = threading.Event(), False
        self._wake = Wake()
        lanes = concurrency if "handle" in roles else 0
        self._membership = Membership(
            context, store, process=process, lanes=lanes, selection=selection, lost=self._fail
        )
        progress = PruneProgress()
        self._membership.also(self._introduce)
        self._membership.also(lambda: fan_out(context, seconds=FAN_OUT_SECONDS))
        self._membership.also(lambda: maintain(context, progress))
        if "history" in store.capabilities:
            self._membership.also(lambda: keep_history(context))
        self._listener: Listener | None = None
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._served_by: list[tuple[Lane, bool]] = []
        self.finished = 0
        """How many messages its lanes have finished."""
        self._problems: list[BaseException] = []

    @property
    def may_have_left_work(self) -> bool:
        """Lanes of both kinds ended when they were idle: one perhaps before it was its turn in a key."""
        of = self._served_by
        return self._is_through and len({kind for _, kind in of}) > 1 and any(lane.has_handled for lane, _ in of)

    def request_stop(self) -> None:
        """Ask every lane to stop after what it is doing; returns at once, may be called from a signal handler."""
        self._stop.set()
        self._wake.notify()

    def run(self) -> int:
        """Work until stopped (or until idle), with an event loop of its own for async handlers."""
        try:
            if self._begin():
                if any(handler.is_async for handler in self._context.registry):
                    self._start(lambda: asyncio.run(self._async_lanes()), "onceward-async")
                self._start_threads()
            self._join()
            self._is_through = not self._stop.is_set()
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
            self._is_through = not self._stop.is_set()
        finally:
            self.request_stop()
            await asyncio.wait([beginning])  # its thread goes on when we are cancelled; end what it has begun
            beginning.exception()
            await asyncio.shield(asyncio.to_thread(self._join))
            await asyncio.shield(asyncio.to_thread(self._end))
        self._raise_problem()
        return self.finished

    def _begin(self) -> bool:
        """Get ready, also when the database is away or busy at first; returns whether that came before a stop."""
        pause, told, began = 0.05, "", time.time()
        while not self._stop.is_set():
            try:
                self._get_ready()
            except (StoreConflict, StoreUnavailable) as error:
                if self._until_idle:
                    raise
                if isinstance(error, StoreUnavailable):  # else it met another transaction, such as a migration's
                    self._membership.distrust()
                    if str(error) != told:
                        log.warning("database unreachable since %s, retrying: %s", time.strftime("%H:%M:%S"), error)
                        told = str(error)
                self._stop.wait(pause)
                pause = min(pause * 2, 2.0)
            else:
                if told:
                    log.warning("database back after %.0f s", time.time() - began)
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
        self._membership.start()
        if not self._until_idle:  # whoever only drains never waits for new messages
            self._listener = self._store.watch(self._wake.notify)

    def _end(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._membership.stop()
        if not self._until_idle:  # what it has given back, and what comes after what it has done, is for others now
            self._store.notify()

    def _introduce(self) -> Flow[int]:
        """Subscribe to what is not, yet or any more, and serve it from then on; returns whether it did."""
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
        taken = ((one, of) for one, of in mine if of is not None and self._selection.takes(one.type))
        return [one for one, of in taken if of.is_async == is_async]

    def _lanes(self, *, is_async: bool) -> list[Lane]:
        """The lanes of the handlers of a kind."""
        mine = (one for one in self._context.registry if not one.external and self._selection.takes(one.type))
        if "handle" not in self._roles or not any(one.is_async == is_async for one in mine):
            return []
        lanes = [self._lane(self._subscriptions(is_async=is_async)) for _ in range(self._concurrency)]
        self._served_by += [(lane, is_async) for lane in lanes]
        return lanes

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
            worker=self._membership.number,
            new_token=self._membership.token,
            subscriptions=subscriptions,
            stopping=self._stop.is_set,
            isolation=self._membership.isolation,
            notify=self._store.notify,
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
        """A lane that fails unexpectedly stops the worker loudly instead of leaving a silent gap."""
        try:
            target()
        except StoreError as error:
            if not self._stop.is_set():
                self._fail(error)
        except BaseException as error:
            log.exception("a worker thread failed with an unexpected error; the worker stops")
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
        limit = self._context.settings.stop_timeout.total_seconds()
        deadline = time.monotonic() + limit
        while self._threads and (left := deadline - time.monotonic()) > 0:
            self._join_one(min(left, 0.1))
        for thread in list(self._threads):
            log.error(_LATE, f"thread {thread.name}", limit)
        if self._threads:
            self._membership.watchdog.cut()

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
                self._wake.notify()  # what came since its last look is for the next lane

        session = self._connect()
        try:
            with self._membership.watchdog.watched() as watch:
                run_sync(dispatch(relay, until_idle=self._until_idle), session.perform, self._outside(session, watch))
        finally:
            session.close()

    def _sync_lane(self, lane: Lane) -> None:
        session = self._connect()
        lane.effects = sync_effects(lane, self._store, lambda: session.idle)
        try:
            with self._membership.watchdog.watched(lane) as watch:
                working = work(lane, until_idle=self._until_idle)
                self._count(run_sync(working, session.perform, self._outside(session, watch)))
        finally:
            session.close()

    def _outside(self, session: Session, watch: Watch) -> Outside:
        """What a lane asks for beside its session: it watches the handler's time, and waits for notifications."""
        return {**OUTSIDE, Call: partial(watched_call, session, watch), Wait: Waiter(self._wake).rest}

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
        limit = self._context.settings.stop_timeout.total_seconds()
        if tasks:
            await asyncio.wait(set(tasks), timeout=limit)
        for task in set(tasks):
            log.error(_LATE, "a task that is cancelled", limit)
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
                self._wake.notify()

        await self._performed(lambda _: dispatch(relay, until_idle=self._until_idle))

    async def _async_lane(self, lane: Lane) -> None:
        def step(session: AsyncSession) -> Flow[int]:
            lane.effects = async_effects(lane, self._store, lambda: session.idle)
            return work(lane, until_idle=self._until_idle)

        with self._membership.watchdog.watched(lane) as watch:
            self._count(await self._performed(step, watch))

    async def _performed(self, step: Callable[[AsyncSession], Flow[T]], watch: Watch | None = None) -> T:
        """Run a step on a connection of its own."""
        session = await self._async_connect()
        try:
            outside: Outside = {**OUTSIDE_ASYNC, Wait: Waiter(self._wake).async_rest}
            if watch is not None:
                outside = {**outside, Call: partial(watched_await, session, watch)}
            value = await run_async(step(session), session.perform, outside)
        except BaseException:
            session.abandon()
            raise
        else:
            await session.close()
            return value
