"""A TCP proxy that fails on demand.

Invariant: every fault has happened when the call that asks for it returns, except the two that wait for a
pattern: they strike once, and then count in `hits`. Bytes are never altered or reordered, only delayed or
lost with their connection, as on a real network.

The event loop runs in a thread of its own, so sync and async tests use it alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING, Self, TypeVar

from onceward.testing.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Coroutine

Result = TypeVar("Result")

_CHUNK = 65_536
# After the first byte of a reply: how long the server must stay silent before the reply counts as complete.
_QUIET = 0.1
_LONGEST_PATTERN = 1024
_ATTEMPTS = 10
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class FaultProxy:
    """Stands between a client and `target_host:target_port`; use as a context manager, connect to `port`."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self.port = 0
        self.hits = 0
        self._target = (target_host, target_port)
        self._request_pattern = b""
        self._reply_pattern = b""
        self._links: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    def start(self) -> Self:
        """Open the port."""
        self._thread.start()
        self._run(self._listen())
        return self

    def close(self) -> None:
        """Close the port and every connection."""
        if self._thread.is_alive():
            self._run(self._cut())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Reset every connection and refuse new ones."""
        self._run(self._cut())

    def heal(self) -> None:
        """Take connections again, on the same port."""
        self._run(self._listen())

    def lead_to(self, target_host: str, target_port: int) -> None:
        """Reset every connection, and lead new ones elsewhere, as a router does after a failover."""
        self._run(self._cut())
        self._target = (target_host, target_port)
        self._run(self._listen())

    def freeze(self) -> None:
        """Stop forwarding while everything stays connected, as when a host vanishes without a word."""
        self._run(self._set_flowing(flowing=False))

    def thaw(self) -> None:
        """Forward what was held back, and everything after it."""
        self._run(self._set_flowing(flowing=True))

    def drop_request_with(self, pattern: bytes) -> None:
        """Reset the next connection whose client sends `pattern`, before the server sees the whole of it."""
        self._request_pattern = pattern

    def drop_reply_after(self, pattern: bytes) -> None:
        """Forward one request with `pattern`, then lose the reply: the server acts, the client cannot know.

        No byte of the reply reaches the client, whose connection is reset only once the server has answered.
        """
        self._reply_pattern = pattern

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[object, object, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        if self._listener is not None:
            return
        for attempt in range(_ATTEMPTS):
            port = self.port or free_port()
            try:
                self._listener = await asyncio.start_server(self._accept, "127.0.0.1", port)
            except OSError:
                if self.port or attempt == _ATTEMPTS - 1:
                    raise
                continue
            self.port = port
            return

    async def _cut(self) -> None:
        if self._listener is not None:
            # A connection that is accepted in this very turn gets its protocol first; asyncio would leak it otherwise.
            for listening in self._listener.sockets:
                self._loop.remove_reader(listening.fileno())
            for _ in range(3):
                await asyncio.sleep(0)
            self._listener.close()
            self._listener = None
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        # An aborted transport closes its socket in the next turn of the loop.
        await asyncio.sleep(0)

    async def _set_flowing(self, *, flowing: bool) -> None:
        if flowing:
            self._flowing.set()
        else:
            self._flowing.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._listener is None:  # cut between the kernel's accept and this first step
            _reset(writer)
            return
        link = asyncio.current_task()
        assert link is not None  # noqa: S101 - this runs in one
        self._links.add(link)
        try:
            await self._serve(reader, writer)
        except (OSError, _Dropped, asyncio.CancelledError):
            pass  # `_cut` cancels, and asyncio would report a connection that ends as cancelled
        finally:
            _reset(writer)
            self._links.discard(link)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        muted = asyncio.Event()
        requests = asyncio.create_task(self._requests(reader, server_writer, muted))
        replies = asyncio.create_task(self._replies(server_reader, writer, muted))
        try:
            done, _ = await asyncio.wait({requests, replies}, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
            # One side hung up in good order: let the other read what is on its way, and the end after it.
            for each in (server_writer, writer):
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()
        finally:
            for pump in (requests, replies):
                pump.cancel()
            await asyncio.gather(requests, replies, return_exceptions=True)
            _reset(server_writer)

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, muted: asyncio.Event) -> None:
        before = b""
        while chunk := await reader.read(_CHUNK):
            await self._flowing.wait()
            if _arrives(self._request_pattern, before, chunk):
                self._request_pattern = b""
                self.hits += 1
                raise _Dropped
            if _arrives(self._reply_pattern, before, chunk):
                self._reply_pattern = b""
                muted.set()
            writer.write(chunk)
            await writer.drain()
            before = (before + chunk)[-_LONGEST_PATTERN:]

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, muted: asyncio.Event) -> None:
        while chunk := await reader.read(_CHUNK):
            await self._flowing.wait()
            if muted.is_set():
                await _drain_until_quiet(reader)
                break
            writer.write(chunk)
            await writer.drain()
        if muted.is_set():
            self.hits += 1
            raise _Dropped


class _Dropped(Exception):
    """This connection has met the fault that was asked for."""


def _arrives(pattern: bytes, before: bytes, chunk: bytes) -> bool:
    """Whether `pattern` is completed by `chunk`; it may have begun in an earlier one."""
    if not pattern:
        return False
    overlap = len(pattern) - 1  # any more, and an old occurrence would count again
    return pattern in (before[-overlap:] if overlap else b"") + chunk


async def _drain_until_quiet(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(TimeoutError):
        while await asyncio.wait_for(reader.read(_CHUNK), _QUIET):
            pass


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a TCP reset, so that the other side sees a broken connection and not a polite end."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
