"""The thread that notifies on PostgreSQL: it asks for no processor time while nothing is to be said."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onceward.stores.postgres.notifier import Notifier
from tests.waiting import wait_until


class Connection:
    """Counts what is sent through it."""

    closed = False

    def __init__(self) -> None:
        self.sent = threading.Semaphore(0)

    def execute(self, statement: bytes) -> None:
        assert b"NOTIFY onceward" in statement
        self.sent.release()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def connection() -> Connection:
    return Connection()


@pytest.fixture
def notifier(connection: Any) -> Iterator[Notifier]:
    made = Notifier(lambda: connection, "onceward")
    yield made
    made.close()
    assert not made.is_alive()


def test_it_notifies(notifier: Notifier, connection: Connection) -> None:
    for _ in range(3):
        notifier.notify()
        assert connection.sent.acquire(timeout=30)


def test_it_waits_again_after_it_was_woken_for_nothing(notifier: Notifier, connection: Connection) -> None:
    """Two calls at once can leave it woken with nothing wanted; it must not turn in circles until the next call."""
    notifier._asked.set()
    wait_until(lambda: not notifier._asked.is_set())
    notifier.notify()
    assert connection.sent.acquire(timeout=30)


def test_what_could_not_be_sent_is_sent_later(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that refuses a connection for a moment must not cost the workers a whole poll interval."""
    monkeypatch.setattr(Notifier, "AGAIN", 0.01)
    answers: list[Any] = [connection, psycopg.OperationalError("too many clients already")]

    def connect() -> Any:
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    notifier = Notifier(connect, "onceward")
    try:
        notifier.notify()
        assert connection.sent.acquire(timeout=30)
    finally:
        notifier.close()
