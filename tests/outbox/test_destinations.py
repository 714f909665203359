"""Each destination is published to by itself: one that hangs, is away or is unknown is in no other's way (D22)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from onceward import Message, Retry, Settings
from onceward.brokers.protocol import Sink
from onceward.errors import StoreUnavailable
from onceward.testing.broker_suite.sinks import number_of, outgoing, send
from tests.contract.harness import Kind, Shop
from tests.order.conftest import DIAGONAL, everywhere
from tests.outbox.post import LATER, Post
from tests.waiting import wait_until, wait_until_async


class Hanging:
    """A destination that does not answer until the test says so."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = threading.Event()

    def sink(self, kind: Kind) -> Sink:
        """A sink of a kind that hangs."""
        return _AsyncHanging(self) if kind == "async" else _Hanging(self)


class _Hanging:
    def __init__(self, place: Hanging) -> None:
        self._place = place

    def publish(self, _message: Message) -> None:
        """Wait for an answer."""
        self._place.asked.set()
        self._place.answers.wait()


class _AsyncHanging:
    def __init__(self, place: Hanging) -> None:
        self._place = place

    async def publish(self, _message: Message) -> None:
        """Wait for an answer."""
        self._place.asked.set()
        await wait_until_async(self._answered, timeout=3600)

    async def _answered(self) -> bool:
        return self._place.answers.is_set()


@pytest.fixture(params=DIAGONAL)
def impatient(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A shop whose stop does not wait for what hangs."""
    store, _, kind = request.param.partition("-")
    settings = Settings(stop_timeout=timedelta(milliseconds=100))
    with Shop(request.getfixturevalue(f"{store}_url"), kind, settings=settings) as shop:
        yield shop


def test_three_of_ten_destinations_hang(impatient: Shop) -> None:
    """The seven others get everything, also what is sent later; a stop gives back what hangs, uncharged."""
    shop, hanging = impatient, [Hanging() for _ in range(3)]
    well = {f"well-{number}": Post() for number in range(7)}
    for number, place in enumerate(hanging):
        shop.inbox.add_sink(f"hangs-{number}", place.sink(shop.kind))
        send(shop, f"h{number}a", f"h{number}b", to=f"hangs-{number}", key="k")
    for name, post in well.items():
        shop.inbox.add_sink(name, post.sink(shop.kind))
        send(shop, "a", "b", to=name, key="k")
    with shop.running():
        wait_until(lambda: all(place.asked.is_set() for place in hanging), message="three calls that hang")
        wait_until(lambda: all(post.names == ["a", "b"] for post in well.values()), message="what was there before")
        for name in well:
            send(shop, "c", to=name, key="k")
        wait_until(lambda: all(post.names == ["a", "b", "c"] for post in well.values()), message="what came later")
    left = {name: status for name, status in outgoing(shop).items() if name[0] == "h"}
    assert left == {f"h{number}{letter}": "due" for number in range(3) for letter in "ab"}
    assert shop.count("attempt") == 0
    for place in hanging:
        place.answers.set()


@everywhere
def test_an_outage_opens_the_circuit_of_its_destination_and_its_end_wakes_the_rest(shop: Shop, post: Post) -> None:
    """Five of twelve are charged, then one a pause; once it is back, nobody waits for the end of a delay of an hour.

    What was told when to come again still comes then.
    """
    away, now = Post(), [1000.0]
    shop.inbox.add_sink("away", away.sink(shop.kind), retry=LATER)
    breaker = shop.inbox.context.registry.find("onceward.outbox", "away", 1)[0].breaker
    assert breaker is not None
    breaker.clock = lambda: now[0]
    names = [f"m{number}" for number in range(12)]
    away.trouble = {name: lambda: ConnectionError("away") for name in names}
    away.trouble["m2"] = lambda: Retry("busy", after=3600)
    send(shop, *names, to="away")
    send(shop, "a", "b")
    shop.drain()
    assert (sum(away.calls.values()), post.names) == (5, ["a", "b"])
    shop.drain()
    assert sum(away.calls.values()) == 5, "an open circuit let a message through"
    now[0] += 10
    shop.drain()
    assert sum(away.calls.values()) == 6
    away.trouble.clear()
    now[0] += 10
    shop.drain()
    assert sorted(away.names) == sorted(set(names) - {"m2"})
    assert outgoing(shop)["m2"] == "retrying"


def test_an_unknown_destination_waits_for_a_process_that_has_it(shop: Shop, post: Post) -> None:
    """It is not charged by a relay that has no sink for it; it holds up its own key to that place alone."""
    with shop.visitor() as sender:  # it has no sinks: what it names may be anywhere
        send(sender, "a", to="elsewhere", key="k")
    send(shop, "b", key="k")
    shop.drain()
    assert outgoing(shop) == {"a": "due", "b": "done"}
    assert shop.detail(number_of(shop, "a")).history == ()
    with shop.visitor() as other:
        elsewhere = Post()
        other.inbox.add_sink("elsewhere", elsewhere.sink(shop.kind))
        other.drain()
        assert elsewhere.names == ["a"]
    assert post.names == ["b"]


def test_the_database_of_a_destination_is_not_ours(shop: Shop, post: Post) -> None:
    """D23: another inbox that is away is charged like any destination, and its circuit opens."""
    post.trouble = {name: lambda: StoreUnavailable("the other database is away") for name in "abcdefg"}
    send(shop, *"abcdefg")
    shop.drain()
    assert sum(post.calls.values()) == 5
    assert shop.detail(number_of(shop, "a")).attempts == 1
