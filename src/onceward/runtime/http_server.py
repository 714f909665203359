"""The HTTP server of `onceward run --http`: uvicorn in a thread beside the worker, with limits for strangers.

Invariant: it listens on loopback unless another address is given; a connection that does not send a whole request head
in time, or one whose end is not certain (`runtime/framing.py`), is closed; when it stops, requests in hand are
answered first.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from onceward.errors import ConfigurationError

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from onceward.runtime.framing import Framed
except ImportError as error:
    raise ConfigurationError("--http needs a web server: pip install 'onceward[serve]'") from error

log = logging.getLogger("onceward")

HEAD_SECONDS = 10.0
"""How long a connection may take for the head of its next request."""
CONNECTIONS = 1000
HEAD_BYTES = 32 * 1024
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
def serving(app: Any, where: str, *, stop: Callable[[], None], patience: timedelta) -> Iterator[int]:
    """Serve an ASGI application until the block ends; gives the port. Calls `stop` if the server ends by itself."""
    listener = _listening(*address(where))
    # No X-Forwarded-* is believed, and no address of a request is logged.
    config = uvicorn.Config(
        app,
        http=_Strict,
        ws="none",
        lifespan="off",
        interface="asgi3",
        loop="asyncio",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_graceful_shutdown=max(1, int(patience.total_seconds())),
    )
    server = uvicorn.Server(config)
    problems: list[BaseException] = []

    def serve() -> None:
        try:
            asyncio.run(server.serve([listener]))
        except BaseException as error:  # noqa: BLE001 - raised where the block ends
            problems.append(error)
        finally:
            if not server.should_exit:
                stop()

    thread = threading.Thread(target=serve, name="onceward-http", daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(patience.total_seconds() + HEAD_SECONDS)
        listener.close()
    if problems:
        raise problems[0]


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    listener.setblocking(False)  # noqa: FBT003 - its signature
    return listener


class _Strict(H11Protocol):
    """uvicorn's pure-Python protocol, which takes no ambiguous request, and waits for one for a limited time."""

    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = Framed(h11.SERVER, HEAD_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self._expect_a_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_a_request()

    def _expect_a_request(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._end_if_idle)

    def _end_if_idle(self) -> None:
        cycle: Any = self.cycle  # None before the first request
        if (cycle is None or cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()
