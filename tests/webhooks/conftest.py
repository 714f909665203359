"""Fixtures: a shop with webhooks on each store, and a real server before it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from onceward import Inbox
from onceward.runtime.http_server import serving
from onceward.webhooks import GitHub, Limits, Shopify, Slack, StandardWebhooks, Stripe, Webhooks
from tests.contract.harness import Shop
from tests.stores import postgres_database
from tests.webhooks.senders import SECRET, SHARED, generic, paypal

__all__ = ["postgres_database"]

TABLES = ("ledger", "queue", "body", "quarantine", "duplicate", "attempt", "first_seen")


def endpoints() -> dict[str, Any]:
    """Every kind of webhook."""
    return {
        "/stripe": Stripe(SECRET),
        "/github": GitHub(SECRET),
        "/slack": Slack(SECRET),
        "/shopify": Shopify(SECRET),
        "/standard": StandardWebhooks(SHARED),
        "/generic": generic(),
        "/paypal": paypal(),
    }


@pytest.fixture
def shop(store_url: str) -> Iterator[Shop]:
    """A shop on each store, with a handler."""
    with Shop(store_url, "def") as shop:
        shop.handle()
        yield shop


@pytest.fixture
def hooks(shop: Shop) -> Webhooks:
    """Its webhooks."""
    return shop.inbox.webhooks(endpoints())


def traces(inbox: Inbox) -> dict[str, int]:
    """How many rows each table has that a message could leave a trace in."""
    with inbox.transaction() as tx:
        return {
            table: tx.execute(f"SELECT count(*) FROM {inbox.context.prefix}{table}").fetchone()[0] for table in TABLES
        }


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Its content."""
        return json.loads(self.body)


class Caller:
    """Talks to a server in raw bytes."""

    def __init__(self, port: int) -> None:
        self.port = port

    def connect(self) -> socket.socket:
        """A connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def send(self, raw: bytes, *, finish: bool = False) -> bytes:
        """Send bytes, and read until the server closes or the answer is complete."""
        with self.connect() as connection:
            try:
                connection.sendall(raw)
                if finish:
                    connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it answered and closed before it had all
            return read_answer(connection)

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """An ordinary request."""
        head = {"host": "x", "content-type": "application/json", "content-length": str(len(body)), **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        return parse(self.send(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body))


def read_answer(connection: socket.socket) -> bytes:
    """Everything until the end of the answer."""
    found = b""
    while True:
        head, separator, body = found.partition(b"\r\n\r\n")
        if separator and not head.startswith(b"HTTP/1.1 100"):
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if lengths and len(body) >= int(lengths[0].split(b":")[1]):
                return found
        elif separator:
            found = body
            continue
        try:
            part = connection.recv(65_536)
        except ConnectionResetError:
            return found
        if not part:
            return found
        found += part


def parse(raw: bytes) -> Reply:
    """An answer in its parts."""
    head, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    assert status, f"no answer: {raw!r}"
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Reply(int(status.split(" ")[1]), headers, body)


@contextmanager
def served(app: Any) -> Iterator[Caller]:
    """The application behind a real server on a real socket."""
    problems: list[str] = []
    with serving(app, "0", stop=lambda: problems.append("it ended by itself"), patience=timedelta(seconds=2)) as port:
        yield Caller(port)
    assert problems == []


@pytest.fixture
def caller(hooks: Webhooks) -> Iterator[Caller]:
    """A caller of the shop's webhooks."""
    with served(hooks) as caller:
        yield caller


def small(**limits: Any) -> Limits:
    """Limits that a test can reach."""
    return Limits(**{"body": 1000, "memory": 4000, **limits})
