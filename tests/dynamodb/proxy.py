"""What stands before DynamoDB and knows its requests: it loses answers, and makes the server forget what it has done.

Invariant: a request whose answer is lost was carried out, and the client cannot know. Each attempt of a client counts.
"""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from onceward.domain import identity

_TOKEN = re.compile(rb'("ClientRequestToken": ")[^"]*')
Lost = Callable[[str, bytes], bool]


class LossyProxy:
    """Stands between clients and a DynamoDB; use as a context manager, connect to `address`."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="lossy-proxy")
        self._lost: Lost = _none
        self._lock = threading.Lock()
        self.forgets = False
        """Whether ten minutes pass between any two attempts: no token of a transaction is known any more."""
        self.asked = 0
        """How many requests have come,"""
        self.hits = 0
        """and how many answers were lost."""

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def lose_answers(self, lost: Lost) -> None:
        """Lose the answers to those requests, by their operation and body, for which this is true."""
        self._lost, self.hits = lost, 0

    def lose_answer(self, words: bytes) -> None:
        """Lose the answer to the next request with these words, and to no other."""
        self.lose_answers(lambda _operation, body: self.hits == 0 and words in body)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def _passes(self, operation: str, body: bytes) -> bool:
        with self._lock:
            self.asked += 1
            is_lost = self._lost(operation, body)
            self.hits += is_lost
            return not is_lost

    def _forwarded(self, headers: dict[str, str], body: bytes) -> http.client.HTTPResponse:
        if self.forgets:
            body = _TOKEN.sub(rb"\g<1>" + identity.new_id().encode(), body)
        connection = http.client.HTTPConnection("127.0.0.1", self._server_port)
        connection.request("POST", "/", body, headers | {"Content-Length": str(len(body)), "Connection": "close"})
        return connection.getresponse()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                operation = self.headers["X-Amz-Target"].rpartition(".")[2]
                with proxy._forwarded(dict(self.headers), body) as answer:
                    content = answer.read()
                if not proxy._passes(operation, body):
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name in ("Content-Type", "x-amz-crc32", "x-amzn-RequestId"):
                    if (value := answer.getheader(name)) is not None:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        return Handler


def _none(_operation: str, _body: bytes) -> bool:
    return False
