"""One connection of a sink for all callers: made when it is needed, dropped when it fails.

A sink is called from any thread and from any event loop. A client that knows nothing but asyncio belongs to one loop
for its whole life, so it lives in a thread with an event loop of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

from onceward.brokers.protocol import unconfirmed

CONFIRM_SECONDS = 10.0
"""How long the other side may take to confirm, connecting included."""

Value = TypeVar("Value")
Client = TypeVar("Client")


class Connection(Generic[Client]):
    """Of a client whose calls block, for all threads."""

    def __init__(self, connect: Callable[[], Client], disconnect: Callable[[Client], object]) -> None:
        self._connect, self._disconnect = connect, disconnect
        self._guard = threading.Lock()
        self._client: Client | None = None

    def get(self) -> Client:
        """Return the client, connected."""
        with self._guard:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def forget(self, client: Client | None) -> None:
        """Connect anew for the next call, unless that was done since."""
        with self._guard:
            if self._client is client:
                self._client = None

    def drop(self, client: Client | None) -> None:
        """Disconnect a client and forget it."""
        self.forget(client)
        if client is not None:
            self._disconnect(client)

    def close(self) -> None:
        """Disconnect; the next call connects again."""
        self.drop(self._client)


class LoopThread:
    """Runs coroutines for callers in other threads; it starts with the first, and may start again after `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Return or raises what a coroutine does; it must not take for ever."""
        with self._guard:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            result = asyncio.run_coroutine_threadsafe(work, self._loop)
        return result.result()

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


class AsyncConnection(Generic[Client]):
    """Of a client whose calls are awaited, in a thread of its own."""

    def __init__(
        self,
        where: str,
        connect: Callable[[], Awaitable[Client]],
        disconnect: Callable[[Client], Awaitable[object]],
        troubles: tuple[type[Exception], ...],
    ) -> None:
        self._where, self._connect, self._disconnect = where, connect, disconnect
        self._troubles: tuple[type[Exception], ...] = (*troubles, OSError)
        self._thread = LoopThread("onceward-sink")
        self._connecting = asyncio.Lock()
        self._client: Client | None = None

    def use(self, work: Callable[[Client], Awaitable[object]]) -> None:
        """Do something with the client; an error of it is a `ConnectionError`, and a new connection for the next."""
        self._thread.run(self._use(work))

    def close(self) -> None:
        """Disconnect; the next use connects again."""
        if self._client is not None:
            self._thread.run(self._drop(self._client))
        self._thread.close()
        self._connecting = asyncio.Lock()  # it belonged to the loop that is gone

    async def _use(self, work: Callable[[Client], Awaitable[object]]) -> None:
        client = None
        with unconfirmed(self._where, *self._troubles):
            try:
                async with asyncio.timeout(CONFIRM_SECONDS):
                    client = await self._connected()
                    await work(client)
            except self._troubles:
                await self._drop(client)
                raise

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is None:
                self._client = await self._connect()
            return self._client

    async def _drop(self, client: Client | None) -> None:
        if client is None:
            return
        if self._client is client:  # and not one that was made since
            self._client = None
        with suppress(*self._troubles):  # it is gone already
            async with asyncio.timeout(CONFIRM_SECONDS):
                await self._disconnect(client)


async def _cancel_the_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
