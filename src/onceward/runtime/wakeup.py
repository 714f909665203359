"""Waking lanes that wait for work, whether they wait in threads or on an event loop.

Invariant: a wake-up that comes between looking for work and beginning to wait is not lost: it changes a counter
that the waiter compares.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from onceward.deferred import asyncio


class Wake:
    """A bell inside one process."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rung = 0
        self._callbacks: set[Callable[[], None]] = set()

    @property
    def rung(self) -> int:
        """How often it has rung; compare it to know whether it rang since."""
        return self._rung

    def ring(self) -> None:
        """Wake everybody."""
        with self._condition:
            self._rung += 1
            self._condition.notify_all()
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback()

    def wait(self, seen: int, seconds: float) -> int:
        """Wait until it rings again or the time is over; answers the new count."""
        with self._condition:
            self._condition.wait_for(lambda: self._rung != seen, timeout=seconds)
            return self._rung

    async def async_wait(self, seen: int, seconds: float) -> int:
        """As `wait`, awaited."""
        loop = asyncio.get_running_loop()
        event = asyncio.Event()

        def callback() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

        with self._condition:
            if self._rung != seen:
                return self._rung
            self._callbacks.add(callback)
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            with self._condition:
                self._callbacks.discard(callback)
        return self._rung
