"""Waking lanes that wait for work, whether they wait in threads or on an event loop.

Invariant: a wake-up that comes between looking for work and beginning to wait is not lost: it changes a counter
that the waiter compares.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from onceward.deferred import asyncio
from onceward.flow import Wait


class Wake:
    """A notification inside one process."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._callbacks: set[Callable[[], None]] = set()

    @property
    def count(self) -> int:
        """How often it was notified; compare it to know whether it was since."""
        return self._count

    def notify(self) -> None:
        """Wake all that wait."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback()

    def wait(self, seen: int, seconds: float) -> int:
        """Wait until it is notified again or the time is over; returns the new count."""
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, timeout=seconds)
            return self._count

    async def async_wait(self, seen: int, seconds: float) -> int:
        """As `wait`, awaited."""
        loop = asyncio.get_running_loop()
        event = asyncio.Event()

        def callback() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

        with self._condition:
            if self._count != seen:
                return self._count
            self._callbacks.add(callback)
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            with self._condition:
                self._callbacks.discard(callback)
        return self._count


class Waiter:
    """What waits for a notification, and knows which it has seen."""

    def __init__(self, wake: Wake) -> None:
        self._wake, self._seen = wake, wake.count

    def rest(self, request: Wait) -> bool:
        """Wait as a step wants it, but not when it was notified meanwhile; returns whether it was notified."""
        return self._notified(self._wake.wait(self._seen, request.seconds))

    async def async_rest(self, request: Wait) -> bool:
        """As `rest`, awaited."""
        return self._notified(await self._wake.async_wait(self._seen, request.seconds))

    def _notified(self, count: int) -> bool:
        before, self._seen = self._seen, count
        return count != before
