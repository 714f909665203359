"""The HTTP server of `onceward run --http` and of the dashboard: a thread beside the worker, with limits for senders.

Invariant: it listens on loopback unless another address is given; a connection that does not send a whole request head
in time, or one whose end is not certain (`runtime/framing.py`), is closed; when it stops, requests in hand are
answered first. No `X-Forwarded-*` is believed, and no address of a request is logged.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from onceward.errors import ConfigurationError
from onceward.runtime.asgi import Application, Receive, Scope, Send, respond

try:
    from onceward.runtime.http_connection import PIECE, Connection
except ImportError as error:
    raise ConfigurationError("--http needs a web server: pip install 'onceward[serve]'") from error

HEAD_SECONDS = 10.0
"""How long a connection may take for the head of its next request."""
CONNECTIONS = 1000
BACKLOG = 1024
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)?:)?(?P<port>[0-9]{1,5})")


def address(text: str) -> tuple[str, int]:
    """Where to listen: `8080` and `:8080` are on loopback, `0.0.0.0:8080` on every address.

    >>> address("8080"), address("[::1]:80"), address("0.0.0.0:8080")
    (('127.0.0.1', 8080), ('::1', 80), ('0.0.0.0', 8080))
    """
    found = _ADDRESS.fullmatch(text)
    if not found or int(found["port"]) >= 2**16:
        raise ConfigurationError(f"{text!r} is not an address to listen on; write 127.0.0.1:8080 or 8080")
    return (found["host"] or "127.0.0.1").strip("[]"), int(found["port"])


@contextmanager
def serving(app: Application, where: str, *, stop: Callable[[], None], patience: timedelta) -> Iterator[int]:
    """Serve an ASGI application until the block ends; gives the port. Calls `stop` if the server ends by itself."""
    listener = _listening(*address(where))
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop = runner.get_loop()
    server = _Server(app, listener, patience.total_seconds())
    problems: list[BaseException] = []

    def serve() -> None:
        try:
            with runner:
                runner.run(server.serve())
        except BaseException as error:  # noqa: BLE001 - raised where the block ends
            problems.append(error)
        finally:
            if not server.stopping.is_set():
                stop()

    thread = threading.Thread(target=serve, name="onceward-http", daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        with suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(server.stopping.set)
        thread.join(patience.total_seconds() + HEAD_SECONDS)
        listener.close()
    if problems:
        raise problems[0]


class _Server:
    """The connections of a listening socket, each in a task of its own."""

    def __init__(self, app: Application, listener: socket.socket, patience: float) -> None:
        self._app, self._listener, self._patience = app, listener, patience
        self._open: dict[Connection, asyncio.Task[None]] = {}
        self.stopping = asyncio.Event()

    async def serve(self) -> None:
        """Accept connections until told to stop; then answer what is in hand."""
        server = await asyncio.start_server(self._accepted, sock=self._listener, backlog=BACKLOG, limit=PIECE)
        await self.stopping.wait()
        server.close()
        for connection in self._open:
            connection.finish()
        tasks = set(self._open.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._patience)
            for task in late:
                task.cancel()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        app = self._app if len(self._open) < CONNECTIONS else _full
        connection = Connection(app, reader, writer, HEAD_SECONDS)
        task = asyncio.get_running_loop().create_task(connection.serve())
        self._open[connection] = task
        task.add_done_callback(lambda _: self._open.pop(connection))


async def _full(scope: Scope, receive: Receive, send: Send) -> None:
    del scope, receive
    headers = [(b"retry-after", b"2"), (b"connection", b"close")]
    await respond(send, 503, headers, b"too many connections")


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address or port"
        ) from error
    listener.setblocking(False)  # noqa: FBT003 - its signature
    return listener
