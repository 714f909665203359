"""Handlers that run too long: charged by name, rolled back, and the worker goes on (R13, HZ-25, HZ-31)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from onceward import Message
from tests.contract.behaviour import Do, Sql, Step, Steps, wrote
from tests.contract.harness import Shop, arguments

LIMIT = 0.3


def busy(_: Any) -> None:
    """Python that looks at nothing and ends by itself, after the limit."""
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        pass


def asleep(_: Any) -> Any:
    return asyncio.sleep(30)


STATEMENTS = {
    "postgres": Sql("SELECT pg_sleep(30)"),
    "mysql": Sql("SELECT SLEEP(30)"),
    "sqlite": Sql("WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c"),
}


def overrunning(shop: Shop) -> dict[str, Step]:
    """What a handler of this shop may be caught in."""
    if shop.kind == "def":
        return {"a statement": STATEMENTS[shop.dialect], "Python": Do(busy)}
    # SQLite's statements run in a thread that cancellation does not reach.
    waiting: dict[str, Step] = {"a sleep": Do(asleep)}
    return waiting | ({"a statement": STATEMENTS[shop.dialect]} if shop.dialect != "sqlite" else {})


def overrun(step: Step, attempts: int = 1) -> Callable[[Message], Steps]:
    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.attempt <= attempts:
            yield step

    return behaviour


@pytest.mark.parametrize("how", ["drain", "process"])
def test_a_handler_that_overruns_is_charged_and_rolled_back(shop: Shop, how: str) -> None:
    """R13: wherever it is caught, its message is charged one attempt, by name, and none of its effects is kept."""
    shop.handle("calm")
    steps = overrunning(shop)
    for name, step in steps.items():
        shop.handle(name, behaviour=overrun(step), timeout=LIMIT)
        if how == "drain":
            shop.receive(name, name)
            shop.drain()
        else:
            receipt = shop.process(name, name)
            assert (receipt.status, receipt.finished) == ("accepted", False)
        shop.receive(f"after {name}", "calm")
        shop.drain()
    for name in steps:
        detail = shop.detail(name)
        assert (detail.status, detail.attempts, [a.charged for a in detail.history]) == ("retrying", 1, [True])
        assert detail.history[0].error.startswith("HandlerTimeout: ")
        assert "timeout of 0.3 s" in detail.history[0].error
    assert shop.effects() == sorted(f"after {name}" for name in steps)
    shop.finish()
    assert set(steps) <= set(shop.effects())


def test_a_timeout_that_is_swallowed_is_still_one(shop: Shop) -> None:
    """I3: a handler cannot catch its way out of it."""
    step = next(iter(overrunning(shop).values()))

    def swallowing(message: Message) -> Steps:
        yield wrote(message)
        with suppress(Exception):
            yield step

    shop.handle(behaviour=swallowing, timeout=LIMIT)
    shop.receive("m1")
    shop.drain()
    assert (shop.status("m1"), shop.effects()) == ("retrying", [])
    assert "HandlerTimeout" in shop.error("m1")


def test_one_of_a_group_overruns(shop: Shop) -> None:
    """HZ-51: its neighbours are done, uncharged."""
    step = next(iter(overrunning(shop).values()))

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "m2" and message.attempt == 1:
            yield step

    shop.handle(behaviour=behaviour, timeout=LIMIT)
    shop.receive_many(arguments(f"m{number}") for number in range(5))
    shop.drain()
    assert shop.effects() == ["m0", "m1", "m3", "m4"]
    assert [(row.id, row.attempts) for row in shop.inbox.admin.messages(status="retrying")] == [("m2", 1)]
    assert shop.count("attempt") == 1
    shop.finish()
    assert shop.effects() == [f"m{number}" for number in range(5)]
