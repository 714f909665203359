"""The workers of an inbox in this process, whether they run until told to stop or until nothing is due."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onceward.domain import checks
from onceward.domain.selection import selection_of
from onceward.runtime.spooling import Spooling
from onceward.runtime.worker import Role, Worker
from onceward.steps.context import Context
from onceward.stores.protocol import Store

HANDLE: tuple[Role, ...] = ("handle",)
RELAY: tuple[Role, ...] = ("relay",)


class Workers:
    """Those that run now."""

    def __init__(self, context: Context, store: Store, spooling: Spooling) -> None:
        self._context, self._store, self._spooling = context, store, spooling
        self._running: set[Worker] = set()

    @contextmanager
    def working(self, concurrency: int, *, kind: type[Worker] = Worker, **options: Any) -> Iterator[Worker]:
        """A worker that is told to stop with the others."""
        checks.whole("run() and drain()", "concurrency", concurrency)
        checks.text("run()", "process", options.get("process", ""), empty=True)
        if "only" in options:
            types = options.pop("only"), options.pop("exclude")
            options["selection"] = selection_of("run()", *types, self._context.registry.types)
        self._store.make_missing()
        self._spooling.start()  # what a process that is gone has left
        worker = kind(self._context, self._store, concurrency=concurrency, **options)
        self._running.add(worker)
        try:
            yield worker
        finally:
            self._running.discard(worker)

    def drain(self, concurrency: int, *, relays: bool) -> int:
        """Handle whatever is due, and publish what that sends, until nothing is left; returns how many were handled."""
        handled = self._idle(concurrency, HANDLE)
        while relays and self._idle(concurrency, RELAY):
            handled += self._idle(concurrency, HANDLE)
        return handled

    async def adrain(self, concurrency: int, *, relays: bool) -> int:
        """As `drain`, with async handlers on the running event loop."""
        handled = await self._aidle(concurrency, HANDLE)
        while relays and await self._aidle(concurrency, RELAY):
            handled += await self._aidle(concurrency, HANDLE)
        return handled

    def stop(self) -> None:
        """Ask all of them to stop; returns at once."""
        for worker in list(self._running):
            worker.request_stop()

    def _idle(self, concurrency: int, roles: tuple[Role, ...]) -> int:
        handled = 0
        while True:
            with self.working(concurrency, until_idle=True, roles=roles) as worker:
                handled += worker.run()
            if not worker.may_have_left_work:
                return handled

    async def _aidle(self, concurrency: int, roles: tuple[Role, ...]) -> int:
        handled = 0
        while True:
            with self.working(concurrency, until_idle=True, roles=roles) as worker:
                handled += await worker.run_async()
            if not worker.may_have_left_work:
                return handled
