"""What is not charged is not repeated for ever: handlers that wait for themselves, errors of the database (D23)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from onceward import Message, RetryPolicy
from onceward.errors import StoreUnavailable
from tests.contract.behaviour import Do, Steps, wrote
from tests.contract.harness import Shop, arguments

CALLS: dict[str, Callable[[Shop], Any]] = {
    "receive": lambda shop: method(shop, "receive")(**arguments("inner")),
    "process": lambda shop: method(shop, "process")(**arguments("inner")),
    "send": lambda shop: method(shop, "send")("shipped", {}),
}

WAITING = (("retrying", 0), ("due", 0))
"""For its next try, which comes soon: a slow machine finds it due already."""


def method(shop: Shop, name: str) -> Callable[..., Any]:
    """A method of the inbox, of the shop's kind."""
    bound: Callable[..., Any] = getattr(shop.inbox, f"a{name}" if shop.kind == "async" else name)
    return bound


@pytest.mark.parametrize("name", CALLS)
def test_a_handler_that_would_wait_for_itself_is_refused_at_once(sqlite_shop: Shop, name: str) -> None:
    """SQLite has one writer, and the handler is it. Before it has used tx, or with tx, the call is fine."""
    shop = sqlite_shop

    def behaviour(message: Message) -> Steps:
        if message.id == "before":
            yield Do(lambda _: CALLS[name](shop))
        if message.id != "inner":
            yield wrote(message)
        if message.id == "after":
            yield Do(lambda _: CALLS[name](shop))

    shop.handle(behaviour=behaviour)
    shop.receive("after")
    shop.drain()
    assert (shop.status("after"), shop.detail("after").attempts) == ("dead", 1)
    assert "would wait for the handler itself. Pass tx=tx" in shop.error("after")
    shop.receive("before")
    shop.drain()
    assert (shop.status("before"), shop.effects()) == ("done", ["before"])


def test_a_handler_whose_own_connection_waits_for_its_transaction_is_charged(sqlite_shop: Shop) -> None:
    """The database is locked because the handler has locked it."""
    shop = sqlite_shop

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        with closing(sqlite3.connect(shop.url.removeprefix("sqlite:///"), timeout=0)) as own:
            own.execute("INSERT INTO effects (message_id, note) VALUES ('own', '')")

    shop.handle(behaviour=behaviour, retry=RetryPolicy(attempts=2, first=timedelta(0)))
    shop.receive("m1")
    shop.finish()
    detail = shop.detail("m1")
    assert (detail.status, detail.attempts, shop.effects()) == ("dead", 2, [])
    assert all("locked" in entry.error for entry in detail.history)


def test_what_the_database_fails_on_again_and_again_is_charged_in_the_end(shop: Shop) -> None:
    """First ten times for nothing, each time later; then within its budget. Others go on; a redrive starts anew."""
    again = RetryPolicy(attempts=2, first=timedelta(0))

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "m1":
            raise StoreUnavailable("the connection is lost")

    shop.handle(behaviour=behaviour, retry=again)
    shop.receive("m1")
    due = []
    for number in range(10):
        shop.receive(f"other {number}")
        shop.drain()
        detail = shop.detail("m1")
        assert (detail.status, detail.attempts) in WAITING
        due.append(detail.due_at)
        shop.hurry()
    assert due[0] is not None
    assert due[-1] is not None
    assert due[-1] - due[0] > timedelta(seconds=20)
    shop.finish()
    assert (shop.status("m1"), shop.detail("m1").attempts) == ("dead", 2)
    assert len(shop.effects()) == 10
    shop.inbox.admin.redrive(shop.seqs["m1"])
    shop.drain()
    assert (shop.status("m1"), shop.detail("m1").attempts) in WAITING
