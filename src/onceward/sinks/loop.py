"""An event loop in a thread of its own, for clients that know no other way of working.

A sink is called from any thread and from any event loop, and a client belongs to one loop for its whole life.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")


class LoopThread:
    """Runs coroutines for callers in other threads; it begins with the first, and may begin again after `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """What a coroutine returns or raises; it must not take for ever."""
        with self._guard:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        return answer.result()

    def close(self) -> None:
        """End the loop and its thread, once what it still has to do is cancelled."""
        with self._guard:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_the_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_the_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
