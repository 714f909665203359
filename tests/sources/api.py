"""A small API to poll: orders by number, a page at a time, over HTTP."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE = 3


class Api:
    """Its orders, and what was asked of it."""

    def __init__(self) -> None:
        self.orders = 0
        self.asked: list[int] = []
        self.at_once = 0
        self.most_at_once = 0
        self.broken = False
        self.url = ""
        self.gate = threading.Event()
        self.gate.set()
        self._lock = threading.Lock()

    def page(self, after: int) -> dict[str, Any]:
        """Some orders, each with the one before it once more, as an API whose cursor is a time would answer."""
        first, last = max(1, after), min(self.orders, after + PAGE)
        return {"orders": [{"id": f"o-{number:03}"} for number in range(first, last + 1)], "next": max(last, after)}

    @contextmanager
    def counted(self, after: int) -> Iterator[None]:
        """Note a request."""
        with self._lock:
            self.asked.append(after)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self.gate.wait(20)
        try:
            yield
        finally:
            with self._lock:
                self.at_once -= 1


@contextmanager
def served() -> Iterator[Api]:
    """The API, on a port of its own."""
    api = Api()

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            after = int(parse_qs(urlsplit(self.path).query)["after"][0])
            with api.counted(after):
                self.send_response(500 if api.broken else 200)
                self.end_headers()
                self.wfile.write(json.dumps(api.page(after)).encode())

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    api.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield api
    finally:
        api.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


def ask(url: str, after: int) -> bytes:
    """One request."""
    with urllib.request.urlopen(f"{url}/orders?after={after}", timeout=20) as answer:  # noqa: S310 - our own
        body: bytes = answer.read()
        return body
