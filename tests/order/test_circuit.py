"""A broken downstream: after failures in a row the handler pauses, and nobody's attempts are burnt (R23; HZ-53)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from onceward import Circuit, ConfigurationError, Message, Reject
from tests.contract.behaviour import Steps, wrote
from tests.contract.harness import Shop
from tests.order.conftest import everywhere
from tests.order.ledger import statuses

PAUSE = timedelta(seconds=30)


class Downstream:
    """What the handlers call: broken until it is repaired; and a clock that the test moves."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.broken = True
        self.error: Callable[[], Exception] = lambda: ConnectionError("the warehouse is away")
        self.calls: list[str] = []
        self.now = 1000.0

    def handle(self, *, failures: int = 3, **options: Any) -> None:
        """Register a handler with a circuit that uses this clock."""
        self.shop.handle(behaviour=self.behaviour, circuit=Circuit(failures=failures, pause=PAUSE), **options)
        for handler in self.shop.inbox.context.registry:
            if handler.breaker is not None:
                handler.breaker.clock = lambda: self.now

    def behaviour(self, message: Message) -> Steps:
        """Call it."""
        self.calls.append(message.id)
        yield wrote(message)
        if self.broken:
            raise self.error()

    def pass_the_pause(self) -> None:
        """Let the pause be over."""
        self.now += PAUSE.total_seconds()

    def burnt(self) -> dict[str, int]:
        """How many attempts of each message were charged."""
        rows = self.shop.sql(
            f"SELECT b.id, count(*) FROM {self.shop.prefix}attempt a JOIN {self.shop.prefix}body b ON b.seq = a.seq"
            " WHERE a.charged GROUP BY b.id"
        )
        return {message_id: int(count) for message_id, count in rows}


@pytest.fixture
def downstream(shop: Shop) -> Downstream:
    """A broken downstream."""
    return Downstream(shop)


def receive(shop: Shop, count: int, **more: Any) -> list[str]:
    ids = [f"m{number}" for number in range(count)]
    for message_id in ids:
        shop.receive(message_id, **more)
    return ids


@everywhere
def test_failures_in_a_row_pause_the_handler(downstream: Downstream) -> None:
    """Three of twenty are charged once; the others stay due, unburnt; another handler goes on."""
    shop = downstream.shop
    downstream.handle(failures=3)
    shop.handle("other")
    ids = receive(shop, 20)
    for number in range(5):
        shop.receive(f"other {number}", "other")
    shop.drain()
    assert sum(downstream.burnt().values()) == 3
    assert set(downstream.burnt().values()) == {1}
    assert shop.inbox.admin.stats().due == 17
    assert shop.effects() == [f"other {number}" for number in range(5)]
    calls = len(downstream.calls)
    shop.drain()
    assert len(downstream.calls) == calls, "an open circuit let a message through"
    shop.receive("late other", "other")
    shop.drain()
    assert shop.status("late other") == "done"
    assert {shop.status(message_id) for message_id in ids} == {"due", "retrying"}


@everywhere
def test_after_the_pause_one_message_tries(downstream: Downstream) -> None:
    """It fails: the pause begins again, and one attempt is all that it cost."""
    shop = downstream.shop
    downstream.handle(failures=3)
    receive(shop, 20)
    shop.drain()
    for expected in (4, 5, 6):
        downstream.pass_the_pause()
        shop.drain()
        assert sum(downstream.burnt().values()) == expected
    assert set(downstream.burnt().values()) == {1}
    assert shop.effects() == []


@everywhere
def test_a_success_closes_the_circuit(downstream: Downstream) -> None:
    """Repaired: everything due is done, and the next failure is the first of a new row."""
    shop = downstream.shop
    downstream.handle(failures=3)
    ids = receive(shop, 20)
    shop.drain()
    downstream.broken = False
    downstream.pass_the_pause()
    shop.drain()
    shop.finish()
    assert set(statuses(shop, ids).values()) == {"done"}
    assert sum(downstream.burnt().values()) == 3
    downstream.broken = True
    shop.receive("one more")
    shop.receive("and another")
    shop.drain()
    assert downstream.burnt()["one more"] == downstream.burnt()["and another"] == 1


def test_only_failures_in_a_row_count(downstream: Downstream) -> None:
    """A success in between starts the count anew."""
    shop = downstream.shop
    downstream.handle(failures=3)
    for number in range(8):
        downstream.broken = number % 3 != 2
        shop.receive(f"m{number}")
        shop.drain()
    assert len(downstream.burnt()) == 6
    assert shop.inbox.admin.stats().due == 0


def test_a_message_that_keeps_failing_is_not_a_row_by_itself_for_ever(downstream: Downstream) -> None:
    """Its own budget ends; meanwhile the circuit lets it try once per pause."""
    shop = downstream.shop
    downstream.handle(failures=1)
    shop.receive("m0")
    for attempt in (1, 2, 3):
        shop.drain()
        assert downstream.burnt() == {"m0": attempt}
        shop.hurry()
        shop.drain()
        assert downstream.burnt() == {"m0": attempt}, "it was tried during the pause"
        downstream.pass_the_pause()
    shop.drain()
    assert shop.status("m0") == "dead"


def test_a_rejected_message_says_nothing_about_the_downstream(downstream: Downstream) -> None:
    """R14: the message is at fault, so nobody pauses."""
    shop = downstream.shop
    downstream.error = lambda: Reject("no such order")
    downstream.handle(failures=2)
    ids = receive(shop, 6)
    shop.drain()
    assert set(statuses(shop, ids).values()) == {"dead"}


def test_a_keyed_handler_pauses_in_order(downstream: Downstream) -> None:
    """R17, R23: what was given back is handled in order when the circuit closes."""
    shop = downstream.shop
    downstream.handle(failures=2, key="k")
    for key in "abc":
        for number in range(3):
            shop.receive(f"{key}{number}", data={"k": key})
    shop.drain()
    assert sum(downstream.burnt().values()) == 2
    downstream.broken = False
    downstream.calls.clear()
    downstream.pass_the_pause()
    shop.finish()
    for key in "abc":
        done = [message_id for message_id in downstream.calls if message_id[0] == key]
        assert list(dict.fromkeys(done)) == [f"{key}{number}" for number in range(3)]
    assert len(shop.effects()) == 9


def test_each_version_has_its_own_circuit(downstream: Downstream) -> None:
    """R20, R23: the handler of version 2 is broken; it pauses, and the one of version 1 does not."""
    shop = downstream.shop
    shop.handle(version=1, circuit=Circuit(failures=3, pause=PAUSE))
    downstream.handle(version=2, failures=3)
    for number in range(10):
        shop.receive(f"new {number}", version=2)
    shop.drain()
    shop.hurry()
    shop.drain()
    assert sum(downstream.burnt().values()) == 3
    for number in range(3):
        shop.receive(f"old {number}", version=1)
    shop.drain()
    assert shop.effects() == ["old 0", "old 1", "old 2"]


def test_a_circuit_with_several_lanes(downstream: Downstream) -> None:
    """One circuit for the whole process: what the lanes had in hand may fail, nothing that comes after."""
    shop = downstream.shop
    downstream.handle(failures=3, group=1)
    receive(shop, 30)
    shop.drain(concurrency=3)
    assert sum(downstream.burnt().values()) <= 3 + 2
    burnt = downstream.burnt()
    shop.drain(concurrency=3)
    assert downstream.burnt() == burnt


@pytest.mark.parametrize("wrong", [{"failures": 0}, {"failures": -1}, {"pause": timedelta(0)}])
def test_a_circuit_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Circuit"):
        Circuit(**wrong)


def test_connection_errors_pause_a_handler_that_names_no_circuit(shop: Shop) -> None:
    """D46: the budget of two days is not burnt by an outage; other errors, and `circuit=None`, pause nothing."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        raise ConnectionRefusedError if message.data["away"] else ValueError("wrong by itself")

    shop.handle(behaviour=behaviour)
    shop.handle("unprotected", behaviour=behaviour, circuit=None)
    receive(shop, 8, data={"away": False})
    shop.drain()
    assert len(shop.runs) == shop.count("attempt") == 8
    for number in range(8):
        shop.receive(f"away {number}", data={"away": True})
        shop.receive(f"unprotected {number}", "unprotected", data={"away": True})
    shop.drain()
    assert shop.count("attempt") == 8 + 5 + 8
    assert shop.inbox.admin.stats().due == 3
