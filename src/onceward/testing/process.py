"""A process of the service, played inside this one: it receives, works or handles inline, and may die at any point.

Invariant: it is made of the very steps that a real worker runs, on a connection of its own, in a thread of its own.
When it dies it says nothing: its connection goes, its claim stays, and another process has to take it over.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from onceward.errors import StoreError
from onceward.flow import Flow, run_async, run_sync
from onceward.inbox import Inbox
from onceward.message import Delivery, Receipt
from onceward.registry import Handler, Registry
from onceward.retry import RetryPolicy
from onceward.runtime.effects import async_effects, sync_effects
from onceward.runtime.runner import OUTSIDE, OUTSIDE_ASYNC
from onceward.steps import membership
from onceward.steps.context import load_catalog
from onceward.steps.handle import work
from onceward.steps.introduce import subscribe
from onceward.steps.isolation import Isolation
from onceward.steps.lane import Lane
from onceward.steps.process import process
from onceward.steps.receive import receive
from onceward.steps.subscribe import fan_out
from onceward.stores.protocol import Session, Store
from onceward.testing.fault import Crash, InjectedError, Watch, with_faults
from onceward.testing.outside import listening
from onceward.testing.recorder import recorded

T = TypeVar("T")

NEIGHBOUR = "onceward.testing.neighbour"
FAILING = "onceward.testing.failing"
# A retry comes when the proof makes it due, so that what a failed attempt left behind can be looked at first.
_LATER = RetryPolicy(attempts=20, first=timedelta(hours=1), jitter=0)
_names = itertools.count(1)


class Sessions:
    """Connections that were used without harm are used again: most of a short case would be connecting."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pid = os.getpid()
        self._idle: list[Session] = []
        self._parents: list[Session] = []

    @contextmanager
    def one(self) -> Iterator[Any]:
        """A session; thrown away when anything went wrong with it."""
        if self._pid != os.getpid():  # a forked child: kept, because to close them here would close them there
            self._parents, self._idle, self._pid = self._idle, [], os.getpid()
        session = self._idle.pop() if self._idle else self._store.connect()
        usable = False
        try:
            yield session
            usable = session.idle
        finally:
            if usable:
                self._idle.append(session)
            else:
                session.close()

    def close(self) -> None:
        """Close them all."""
        while self._idle:
            self._idle.pop().close()


class Process:
    """One process of the service."""

    def __init__(self, inbox: Inbox, target: Handler, watch: Watch, sessions: Sessions) -> None:
        self._sessions = sessions
        self.name = f"onceward.testing-{os.getpid()}-{next(_names)}"
        self.watch = watch
        self.crashed = False
        self.problem = ""
        """Why what was delivered was not acknowledged, so that it is delivered again."""
        self._store = inbox.store
        self._context = replace(
            inbox.context, registry=_registry(inbox, target, watch), cache=type(inbox.context.cache)()
        )
        self._tokens = itertools.count(1)
        self._worker = 0

    def receive(self, *messages: Mapping[str, Any]) -> list[Receipt]:
        """Store messages; no handler has run yet. Empty where it died."""
        deliveries = [Delivery.of(**message) for message in messages]
        return apart(lambda: self._living(lambda: self._receive(deliveries))) or []

    def work(self) -> int:
        """Run whatever is due, as a worker."""
        return apart(lambda: self._living(self._work)) or 0

    def process(self, message: Mapping[str, Any]) -> dict[str, Receipt]:
        """Handle a message inline; nothing where it died or where the database was lost."""
        return apart(lambda: self._living(lambda: self._process(Delivery.of(**message)))) or {}

    def introduce(self) -> None:
        """Tell the database of its handlers, as every process does when it starts."""
        with self._store.session() as session:
            run_sync(subscribe(self._context, self._context.cache), session.perform)
            run_sync(fan_out(self._context), session.perform)

    def take_over(self, process_name: str) -> None:
        """Do what a supervisor does when it has seen a process die."""
        with self._store.session() as session:
            step = membership.take_over_process(self._context, process_name, "killed by onceward.testing")
            run_sync(step, session.perform)

    def _living(self, life: Callable[[], T]) -> T | None:
        try:
            answer = life()
        except Crash as crash:
            crash.__traceback__ = None  # or it keeps alive what the handler had opened
            self.crashed = True
            return None
        except StoreError as error:
            self.problem = str(error)
            answer = None
        if self._worker:
            with self._store.session() as session:
                run_sync(membership.deregister(self._context, self._worker), session.perform)
        return answer

    def _enter(self, *, inline: bool) -> None:
        with self._store.session() as session:
            run_sync(load_catalog(self._context, self._context.cache), session.perform)
            step = membership.register(
                self._context, process=self.name, host=socket.gethostname(), pid=os.getpid(), inline=inline
            )
            self._worker = run_sync(step, session.perform)

    def _receive(self, deliveries: list[Delivery]) -> list[Receipt]:
        return self._run(lambda _: receive(self._context, self._context.cache, deliveries), is_async=False)

    def _work(self) -> int:
        self._enter(inline=False)
        return sum(self._run(lambda lane: work(lane, until_idle=True), is_async=kind) for kind in self._kinds(None))

    def _process(self, delivery: Delivery) -> dict[str, Receipt]:
        self._enter(inline=True)
        receipts: dict[str, Receipt] = {}
        for kind in self._kinds(delivery.type):
            receipts |= self._run(lambda lane, kind=kind: process(lane, delivery, is_async=kind), is_async=kind)  # type: ignore[misc]
        return receipts

    def _kinds(self, message_type: str | None) -> list[bool]:
        return sorted({h.is_async for h in self._context.registry if message_type in (None, h.type)})

    def _run(self, step: Callable[[Lane], Flow[T]], *, is_async: bool) -> T:
        lane = self._lane(is_async=is_async)
        if is_async:
            return asyncio.run(self._run_async(step, lane))
        with self._sessions.one() as session:
            self.watch.sever = lambda: None if self._store.single_writer else session.connection.force_close()
            lane.effects = self.watch.once(sync_effects(lane, self._store, lambda: bool(session.idle)), is_async=False)
            return run_sync(with_faults(step(lane), self.watch), session.perform, OUTSIDE)

    async def _run_async(self, step: Callable[[Lane], Flow[T]], lane: Lane) -> T:
        session: Any = await self._store.async_connect()
        self.watch.sever = lambda: None if self._store.single_writer else session.connection.force_close()
        lane.effects = self.watch.once(async_effects(lane, self._store, lambda: bool(session.idle)), is_async=True)
        try:
            return await run_async(with_faults(step(lane), self.watch), session.perform, OUTSIDE_ASYNC)
        finally:
            await session.close()
            await self._store.async_close()

    def _lane(self, *, is_async: bool) -> Lane:
        served = []
        for subscription in self._context.cache.catalog.subscriptions.values():
            handler = self._context.registry.of_type(subscription.consumer, subscription.type)
            if handler is not None and handler.is_async == is_async:
                served.append(subscription)
        return Lane(
            context=self._context,
            worker=lambda: self._worker,
            new_token=lambda: next(self._tokens),
            subscriptions=served,
            stopping=lambda: False,
            isolation=Isolation(),
        )


def in_real_process(life: Callable[[], object]) -> bool:
    """Run something in a forked child, which may be killed; returns whether it was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads; ours are idle
        child = os.fork()
    if child == 0:
        try:
            life()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def kill_self() -> None:
    """Die as by kill -9: no `finally`, no `atexit`, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)


def apart(call: Callable[[], T]) -> T:
    """Run something in a thread of its own, as a worker's lane is; its answer, or its error."""
    return together(call)[0]


def together(*calls: Callable[[], T]) -> list[T]:
    """Run calls at the same time, each in a thread; what they return, in order, or the first error."""
    answers: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(number: int, call: Callable[[], T]) -> None:
        try:
            answers[number] = call()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            errors.append(error)

    threads = [threading.Thread(target=run, args=each, name="onceward-testing") for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [answers[number] for number in range(len(calls))]


def _registry(inbox: Inbox, target: Handler, watch: Watch) -> Registry:
    """The handlers of the service, watched, with retries that wait for the proof; nothing is published."""
    registry = Registry()
    for handler in inbox.context.registry:
        if not handler.external:
            watched = replace(
                handler, function=_watched(handler, watch), retry=_LATER, breaker=None, stands_for=handler
            )
            registry.add(watched)
            watched.surround(handler.outside, ())  # what is inside is in the call of the one that it stands for
    for (kind, version), upcaster in inbox.context.registry._upcasters.items():  # noqa: SLF001 - a copy of all
        registry.add_upcaster(kind, version, upcaster)

    def fail(message: Any, _tx: Any) -> None:
        if watch.failing and message.type == FAILING:
            raise InjectedError("this neighbour fails (onceward.testing)")

    async def fail_async(message: Any, tx: Any) -> None:
        fail(message, tx)

    function = fail_async if target.is_async else fail
    plain = replace(target, function=function, version=1, key=None, sequence=None, batch=False, raw=True, retry=_LATER)
    for kind in (NEIGHBOUR, FAILING):
        registry.add(replace(plain, type=kind, breaker=None, on_dead="block"))
    return registry


def _watched(handler: Handler, watch: Watch) -> Callable[[Any, Any], Any]:
    """The handler's function; for the message of the proof with a recorder on its tx."""

    def is_watched(given: Any) -> bool:
        return any(watch.concerns(message) for message in (given if isinstance(given, list) else [given]))

    def call(given: Any, tx: Any) -> Any:
        if not is_watched(given):
            return handler.call(given, tx)
        with recorded(tx, watch), listening(watch.outside):
            value = handler.call(given, tx)
        watch.end()
        return value

    async def call_async(given: Any, tx: Any) -> Any:
        if not is_watched(given):
            return await handler.call(given, tx)
        with recorded(tx, watch), listening(watch.outside):
            value = await handler.call(given, tx)
        watch.end()
        return value

    return call_async if handler.is_async else call
