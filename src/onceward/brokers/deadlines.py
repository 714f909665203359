"""Deliveries in hand whose deadline at the broker is extended until they are settled (SQS, Pub/Sub)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from onceward.brokers.protocol import BrokerUnavailable


class Deadlines:
    """Extends the deadline of each handle it holds, every third of it, in a task."""

    def __init__(self, seconds: float, at_once: int, extend: Callable[[list[str]], Awaitable[object]]) -> None:
        self._seconds, self._at_once, self._extend = seconds, at_once, extend
        self._held: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin with nothing in hand."""
        self._held = set()
        self._task = asyncio.create_task(self._run())

    def hold(self, handles: Iterable[str]) -> None:
        """Extend these from now on."""
        self._held |= set(handles)

    def settle(self, handles: Iterable[str]) -> None:
        """Extend these no longer."""
        self._held -= set(handles)

    async def stop(self) -> None:
        """Extend nothing any more; does nothing when not started."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / 3)
            for batch in batches(sorted(self._held), self._at_once):
                # One that fails is delivered again, and is known by then or stored by its reader.
                with suppress(BrokerUnavailable):
                    await self._extend(batch)


def batches(handles: Sequence[str], size: int) -> Iterator[list[str]]:
    """Return the handles in lists of at most so many as one call of the broker may have."""
    for start in range(0, len(handles), size):
        yield list(handles[start : start + size])
