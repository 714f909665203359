"""What runs until it is told to stop: workers, and what goes on beside them; by itself or inside a web application.

Invariant of an application: it serves only while its workers do. It starts once they have begun (or wait for a database
that is away); what they cannot start with stops its start; and where they end by themselves the process is asked to
end, and their error is raised when it does. At shutdown they stop as at a signal: finished or rolled back.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from onceward.deferred import asyncio, signal
from onceward.domain import checks
from onceward.errors import StoreUnavailable
from onceward.runtime.signals import stopped_by_signals
from onceward.runtime.worker import Worker
from onceward.runtime.workers import Workers
from onceward.steps.context import UNKNOWN, Context
from onceward.stores.protocol import Store

if TYPE_CHECKING:
    from onceward.admin.admin import Admin
    from onceward.retention.retention import Retention
    from onceward.runtime.ingress import Ingress

log = logging.getLogger("onceward")

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
"""As FastAPI, Starlette and Litestar expect it: a function of the application that returns an async context manager."""


class Parts(Protocol):
    """An inbox: its parts are made when they are first used, and only those that were made are attended to."""

    @property
    def context(self) -> Context:
        """What its steps know."""

    @property
    def store(self) -> Store:
        """Its database."""

    @property
    def admin(self) -> Admin:
        """Alerts."""

    @property
    def retention(self) -> Retention:
        """Archive and blobs."""

    @property
    def ingress(self) -> Ingress:
        """Brokers and polled APIs."""

    async def aclose(self) -> None:
        """Close what is open."""


class Resident(Worker):
    """A worker inside an application, which waits until it has begun."""

    tried: Callable[[], object]
    """Called when it has begun, or waits for a database that is away."""

    def _get_ready(self) -> None:
        try:
            super()._get_ready()
        except StoreUnavailable:
            self.tried()
            raise
        self.tried()


class Running:
    """The workers of an inbox with everything beside them."""

    def __init__(self, inbox: Parts, workers: Workers, *, archives: bool) -> None:
        self._inbox, self._workers, self._archives = inbox, workers, archives

    def run(self, concurrency: int, **options: Any) -> int:
        """Work until stopped or signalled."""
        working = self._workers.working(concurrency, before=self._check_guarantees, **options)
        with working as worker, stopped_by_signals(worker.request_stop), self._attended(worker.request_stop):
            return worker.run()

    async def arun(self, concurrency: int, **options: Any) -> int:
        """As `run`, on the running event loop."""
        working = self._workers.working(concurrency, before=self._check_guarantees, **options)
        with working as worker, self._attended(worker.request_stop):
            return await worker.run_async()

    def lifespan(self, concurrency: int, around: Lifespan | None) -> Lifespan:
        """Run while an application serves; with a concurrency of 0 it only receives."""
        checks.whole("lifespan()", "concurrency", concurrency, least=0)
        if around is not None:
            checks.function("lifespan()", "around", around)

        @asynccontextmanager
        async def running(app: Any) -> AsyncIterator[Any]:
            async with around(app) if around is not None else nullcontext() as state:
                try:
                    async with self._beside_an_application(concurrency) if concurrency else nullcontext():
                        yield state
                finally:
                    await self._inbox.aclose()

        return running

    @asynccontextmanager
    async def _beside_an_application(self, concurrency: int) -> AsyncIterator[None]:
        working = self._workers.working(concurrency, kind=Resident, before=self._check_guarantees)
        with working as worker, self._attended(worker.request_stop):
            assert isinstance(worker, Resident)  # noqa: S101 - what was asked for
            loop, begun = asyncio.get_running_loop(), asyncio.Event()
            worker.tried = lambda: loop.call_soon_threadsafe(begun.set)
            running = asyncio.create_task(worker.run_async(), name="onceward")
            beginning = asyncio.create_task(begun.wait())
            try:
                await asyncio.wait({running, beginning}, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()  # raises what it cannot start with
                running.add_done_callback(_take_down)
                yield
            finally:
                beginning.cancel()
                running.remove_done_callback(_take_down)
                worker.request_stop()
                await running  # raises what it has ended with

    def _check_guarantees(self) -> None:
        """Log what is in force, and refuse to start with less than is declared."""
        from onceward.admin import guarantees  # noqa: PLC0415 - only where handlers run until told to stop
        from onceward.domain.discovery import name_of  # noqa: PLC0415 - as above

        context = self._inbox.context
        if context.program == UNKNOWN:  # a program without onceward's command line: the log names commands all the same
            context.program = name_of(self._inbox) or UNKNOWN
        guarantees.check(context, self._inbox.store)

    @contextmanager
    def _attended(self, stop: Callable[[], None]) -> Iterator[None]:
        """What goes on beside the workers: reading sources, archiving, alerts; `stop` is called if reading fails."""
        with ExitStack() as beside:
            if self._archives or self._inbox.context.large.store is not None:
                beside.enter_context(self._inbox.retention.during())
            if "ingress" in vars(self._inbox):
                beside.enter_context(self._inbox.ingress.attended(stop))
            if "admin" in vars(self._inbox) and self._inbox.admin.alerts is not None:
                beside.enter_context(self._inbox.admin.alerts.during())
            yield


def _take_down(running: asyncio.Task[int]) -> None:
    """End the process when the workers of its application have ended with an error; a server stops at SIGTERM."""
    if running.cancelled() or running.exception() is not None:
        log.critical("the workers of this application have failed, so this process is stopped with SIGTERM")
        if threading.current_thread() is threading.main_thread():
            os.kill(os.getpid(), signal.SIGTERM)
