"""For clients that know nothing but asyncio: an event loop in a thread of its own, and one connection that lives there.

A sink is called from any thread and from any event loop, and a client belongs to one loop for its whole life.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

CONFIRM_SECONDS = 10.0
"""How long the other side may take to confirm, connecting included."""

Value = TypeVar("Value")
Connection = TypeVar("Connection")


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


class Link(Generic[Connection]):
    """One connection for all callers: made when it is needed, dropped when it fails."""

    def __init__(
        self,
        where: str,
        connect: Callable[[], Awaitable[Connection]],
        disconnect: Callable[[Connection], Awaitable[object]],
        troubles: tuple[type[Exception], ...],
    ) -> None:
        self._where, self._connect, self._disconnect = where, connect, disconnect
        self._troubles: tuple[type[Exception], ...] = (*troubles, OSError, TimeoutError)
        self._thread = LoopThread("onceward-sink")
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None

    def use(self, work: Callable[[Connection], Awaitable[object]]) -> None:
        """Do something with the connection; trouble with it is a `ConnectionError`, and a new one for the next."""
        self._thread.run(self._use(work))

    def close(self) -> None:
        """Disconnect; the next use connects again."""
        if self._connection is not None:
            self._thread.run(self._drop(self._connection))
        self._thread.close()
        self._connecting = asyncio.Lock()  # it belonged to the loop that is gone

    async def _use(self, work: Callable[[Connection], Awaitable[object]]) -> None:
        connection = None
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                connection = await self._connected()
                await work(connection)
        except self._troubles as trouble:
            await self._drop(connection)
            raise ConnectionError(f"{self._where} did not confirm: {type(trouble).__name__}: {trouble}") from trouble

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is None:
                self._connection = await self._connect()
            return self._connection

    async def _drop(self, connection: Connection | None) -> None:
        if connection is None:
            return
        if self._connection is connection:  # and not one that was made since
            self._connection = None
        with suppress(*self._troubles):  # it is gone already
            async with asyncio.timeout(CONFIRM_SECONDS):
                await self._disconnect(connection)


async def _cancel_the_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
