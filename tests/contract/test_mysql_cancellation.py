"""A statement on MySQL ends before its answer has been read: no other statement may ever get what is left of it.

asyncmy closes a connection whose answer it cannot read to the end, by the same `close()` that handlers must not call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from onceward import Message
from tests.contract.behaviour import Do, Sql, Steps, wrote
from tests.contract.harness import Shop, arguments
from tests.waiting import wait_until

PAUSED = "SELECT SLEEP(30)"
"""Cancelled before anything of the answer has come,"""
TRICKLING = "SELECT repeat('x', 40000), SLEEP(0.2) FROM counter a, counter b, counter c, counter d"
"""and when some of its rows have."""


@pytest.fixture
def shop(mariadb_url: str) -> Iterator[Shop]:
    """A shop on MariaDB whose handlers are awaited."""
    with Shop(mariadb_url, "async") as shop:
        shop.sql("CREATE TABLE counter (id int PRIMARY KEY) ENGINE = InnoDB")
        shop.sql("INSERT INTO counter VALUES (1), (2)")
        yield shop


@pytest.mark.parametrize("statement", [PAUSED, TRICKLING], ids=["before", "in the middle"])
def test_a_handler_whose_time_is_over_during_a_statement_fails_alone(shop: Shop, statement: str) -> None:
    """It is charged by name, its transaction is undone, and each neighbour gets the answers to its own statements."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "m1" and message.attempt == 1:
            yield Sql(statement)
        yield Sql("UPDATE counter SET id = id")

    shop.handle(behaviour=behaviour, timeout=0.3)
    for name in ("m0", "m1", "m2"):
        shop.receive(name)
    shop.drain()
    assert (shop.status("m1"), shop.effects()) == ("retrying", ["m0", "m2"])
    assert shop.error("m1").startswith("HandlerTimeout: ")
    shop.finish()
    assert shop.effects() == ["m0", "m1", "m2"]


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_handler_that_passes_over_its_own_cancellation_does_not_finish(shop: Shop, goes_on: bool) -> None:  # noqa: FBT001
    """What it had done is lost with the connection; that is its own doing, and not a server that is away."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        entered.append(message.id)
        if len(entered) == 1:
            yield Do(_given_up(TRICKLING))
            if goes_on:
                with suppress(TimeoutError):
                    yield Sql("SELECT 1")

    entered: list[str] = []
    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    assert shop.drain() == 0
    assert (shop.effects(), [one.charged for one in shop.detail("m1").history]) == ([], [True])
    assert "swallowed a database error (it was cancelled before its answer had come)" in shop.error("m1")
    shop.inbox.admin.redrive(type="order.paid", actor="operator")
    shop.finish()
    assert shop.effects() == ["m1"]


@pytest.mark.parametrize("statement", [PAUSED, TRICKLING], ids=["before", "in the middle"])
def test_a_worker_that_is_cancelled_during_a_statement_leaves_nothing_behind(shop: Shop, statement: str) -> None:
    """Neither its answers to the next on its connection, nor its locks to anybody."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        entered.append(message.id)
        if len(entered) == 1:
            yield Sql(statement)

    entered: list[str] = []
    shop.handle(behaviour=behaviour, key="id")
    shop.receive_many(arguments(name) for name in ("m0", "m1"))

    async def cancelled() -> None:
        task = asyncio.ensure_future(shop.inbox.adrain())
        await asyncio.to_thread(wait_until, lambda: _sleepers(shop))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    shop.await_(cancelled())
    wait_until(lambda: not _sleepers(shop))
    shop.finish()
    assert shop.effects() == ["m0", "m1"]
    assert shop.count("attempt") == 0  # nobody is charged


def _sleepers(shop: Shop) -> Any:
    return shop.sql("SELECT 1 FROM information_schema.processlist WHERE state = 'User sleep' AND db = database()")


def _given_up(statement: str) -> Callable[[Any], Any]:
    async def run(tx: Any) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await tx.execute(statement)

    return run
