"""A real HTTP server for webhooks: it keeps what it was sent and answers as the test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Request:
    """What came."""

    path: str
    headers: Mapping[str, str]
    """By their names in small letters."""
    body: bytes
    peer: str


@dataclass(slots=True)
class Answer:
    """What to answer."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None
    """Answer only when this is set."""


class Receiver:
    """The server; `answer` is what it says to everybody, `answers` what it says to a webhook-id."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.requests: list[Request] = []
        self.answer = Answer()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.path, headers, self.rfile.read(length), self.client_address[0])
                receiver.requests.append(request)
                answer = receiver.answer
                if answer.hold:
                    answer.hold.wait(30)
                try:
                    self.send_response(answer.status)
                    for name, value in {"content-length": "0", **answer.headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                except (BrokenPipeError, ConnectionResetError):  # the client did not wait
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                """Be quiet."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def handle_error(self, *_: Any) -> None:
                """A client that hung up is part of the test."""

        self._server = Server((host, 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def url(self, host: str = "127.0.0.1", path: str = "/hooks") -> str:
        """Its address."""
        return f"http://{host}:{self.port}{path}"

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
