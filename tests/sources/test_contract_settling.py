"""What every broker's source must keep about deliveries: each is settled once, where it came from, or comes again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from onceward import Message, StoreUnavailable
from onceward.sources.protocol import Arrival, BrokerUnavailable, Source, open_source
from tests.contract.harness import Shop
from tests.sources.brokers import Broker
from tests.sources.conftest import reading, taken
from tests.sources.test_contract import PAID, names, publish, settled
from tests.waiting import TIMEOUT, wait_until


async def taken_again(source: Source, count: int) -> list[Arrival]:
    """As `taken`, connecting again where the source says so, as the loop before it does."""
    found: dict[Any, Arrival] = {}
    async with asyncio.timeout(TIMEOUT):
        while len(found) < count:
            try:
                found |= {arrival.id: arrival for arrival in await source.next(count - len(found), 1.0)}
            except BrokerUnavailable:
                await source.close()
                await source.open()
    return list(found.values())


def ids(arrivals: Sequence[Arrival]) -> list[str | None]:
    return [arrival.id for arrival in arrivals]


def test_what_is_released_comes_again(broker: Broker) -> None:
    publish(broker, *names(4))

    async def read() -> None:
        source = open_source(broker.url())
        await source.open()
        await source.release(await taken(source, 4))
        again = await taken_again(source, 4)
        assert sorted(map(str, ids(again))) == names(4)
        await source.accept(again)
        await source.close()

    asyncio.run(read())
    settled(broker)


def test_what_a_reader_leaves_unsettled_comes_to_the_next(broker: Broker) -> None:
    """With the ids it had, and every position as before."""
    publish(broker, *names(4))

    async def read() -> None:
        first, second = open_source(broker.url()), open_source(broker.url())
        await first.open()
        left = await taken(first, 4)
        await first.close()
        await second.open()
        found = await taken_again(second, 4)
        assert {arrival.id: arrival.position for arrival in left} == {one.id: one.position for one in found}
        await second.accept(found)
        await second.close()

    asyncio.run(read())
    settled(broker)


@pytest.mark.needs("proxy")
def test_what_a_reader_had_whose_connection_is_cut_comes_to_the_next(broker: Broker) -> None:
    publish(broker, *names(4))

    async def read() -> None:
        dead, living = open_source(broker.url(proxied=True)), open_source(broker.url())
        await dead.open()
        assert sorted(map(str, ids(await taken(dead, 4)))) == names(4)
        broker.proxy.cut()
        await living.open()
        found = await taken_again(living, 4)
        await living.accept(found)
        await living.close()
        await dead.close()

    asyncio.run(read())
    settled(broker)


def test_a_delivery_of_a_lost_connection_settles_itself_or_nothing(broker: Broker) -> None:
    """Never another message, though its handle may name one on the next connection (HZ-14)."""
    publish(broker, *names(4))

    async def read() -> int:
        source = open_source(broker.url())
        await source.open()
        old = await taken(source, 4)
        await source.close()
        await source.open()
        again = {arrival.id: arrival for arrival in await taken_again(source, 4)}
        accepted = 2
        try:
            await source.accept(old[:2])
        except BrokerUnavailable:
            accepted = 0
        await source.accept([again["m-002"], again["m-003"]])
        await source.close()
        return 2 - accepted

    async def rest(count: int) -> list[str | None]:
        source = open_source(broker.url())
        await source.open()
        found = await taken_again(source, count)
        await source.close()
        return ids(found)

    left = asyncio.run(read())
    wait_until(lambda: broker.unsettled() == left)
    assert sorted(map(str, asyncio.run(rest(left)))) == names(4)[:left]


@pytest.mark.needs("proxy")
def test_a_connection_lost_with_a_committed_batch_in_hand(
    shop: Shop, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed, not settled: it comes again, is known, and is settled then."""
    shop.inbox.add_source(broker.url(proxied=True), source="broker", batch=5)
    (intake,) = shop.inbox.ingress.intakes
    accept = intake.source.accept
    cuts: list[list[str | None]] = []

    async def cut_first(arrivals: Sequence[Arrival]) -> None:
        if not cuts:
            cuts.append(ids(arrivals))
            broker.proxy.cut()
            await asyncio.sleep(0.1)  # a while without a connection; not every client tells that it has noticed
            broker.proxy.heal()
        await accept(arrivals)

    monkeypatch.setattr(intake.source, "accept", cut_first)
    publish(broker, *names(12))
    with reading(shop):
        settled(broker)
        wait_until(lambda: len(shop.effects()) == 12)
    assert Counter(shop.effects()) == Counter(names(12))
    assert cuts


@pytest.mark.needs("proxy")
def test_a_connection_that_stalls_goes_on(shop: Shop, broker: Broker) -> None:
    shop.inbox.add_source(broker.url(proxied=True), source="broker")
    with reading(shop):
        publish(broker, "m-1")
        wait_until(lambda: shop.effects() == ["m-1"])
        broker.proxy.freeze()
        publish(broker, "m-2")
        time.sleep(0.3)  # a connection that stalls has no sign but time
        broker.proxy.thaw()
        wait_until(lambda: shop.effects() == ["m-1", "m-2"])
        settled(broker)


def test_one_batch_at_a_time_while_the_store_is_slow(
    shop: Shop, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back-pressure: nothing more is handed over, and nothing is settled, until the batch in hand is committed."""
    real, sizes, slow = shop.inbox.receive_many, [], threading.Event()

    def receive_many(messages: Any) -> Any:
        sizes.append(len(messages))
        slow.wait(30)
        return real(messages)

    monkeypatch.setattr(shop.inbox, "receive_many", receive_many)
    shop.inbox.add_source(broker.url(), source="broker", batch=5)
    publish(broker, *names(70))
    with reading(shop):
        wait_until(lambda: sizes)
        time.sleep(0.3)  # that nothing more comes has no other sign
        assert (len(sizes), sizes[0] <= 5, broker.unsettled()) == (1, True, 70)
        slow.set()
        settled(broker)
        wait_until(lambda: len(shop.effects()) == 70)


def test_a_stop_in_the_middle_settles_what_is_stored_and_nothing_else(shop: Shop, broker: Broker) -> None:
    shop.inbox.add_source(broker.url(), source="broker", batch=3)
    publish(broker, *names(60))
    with reading(shop):
        wait_until(lambda: len(shop.effects()) >= 6)
    stored = sum(bool(shop.inbox.admin.find("broker", one)) for one in names(60))
    wait_until(lambda: broker.unsettled() == 60 - stored)
    with reading(shop):
        settled(broker)
        wait_until(lambda: len(shop.effects()) == 60)
    assert max(Counter(shop.effects()).values()) == 1


def test_an_inline_source_that_stops_half_way_settles_what_it_has_handled(
    shop: Shop, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one batch: the database goes away in the middle of it, and then the stop comes."""
    real, away = shop.inbox.process, threading.Event()
    handled: list[str] = []

    def process(**message: Any) -> Any:
        if len(handled) == 2:
            away.set()
            raise StoreUnavailable("on purpose")
        handled.append(message["id"])
        return real(**message)

    publish(broker, *names(6), key="k")  # some brokers keep an order within a key alone
    shop.inbox.add_source(broker.url(), source="broker", inline=True)
    with monkeypatch.context() as patched, reading(shop):
        patched.setattr(shop.inbox, "process", process)
        wait_until(away.is_set)
    wait_until(lambda: broker.unsettled() <= 4)
    assert (broker.unsettled(), handled, shop.effects()) == (4, names(2), names(2))
    with reading(shop):
        settled(broker)
    assert shop.effects() == names(6)


def test_a_handler_that_fails_is_not_the_brokers_matter(shop: Shop, broker: Broker) -> None:
    """A poison message is settled like any other, retried from our own table, and blocks nobody (HZ-56)."""
    failures: list[str] = []

    def fail(message: Message, tx: Any) -> None:
        del tx
        failures.append(message.id)
        raise RuntimeError("always")

    shop.inbox.on("poison")(fail)
    shop.inbox.add_source(broker.url(), source="broker")
    broker.publish(b"{}", id="bad", type="poison")
    publish(broker, *names(5))
    with reading(shop):
        settled(broker)
        wait_until(lambda: failures and len(shop.effects()) == 5)
    assert broker.unsettled() == 0
    (seq,) = shop.inbox.admin.find("broker", "bad")
    assert shop.story(seq).status in ("retrying", "due")
    shop.inbox.admin.discard(seq, reason="test")


def test_bodies_arrive_byte_for_byte(shop: Shop, broker: Broker) -> None:
    """Nothing, every byte there is, and half a megabyte."""
    bodies = {"empty": b"", "bytes": bytes(range(256)), "large": b'{"text": "' + b"x" * 500_000 + b'"}'}
    shop.handle("raw", raw=True)
    shop.inbox.add_source(broker.url(), source="broker")
    for name, body in bodies.items():
        broker.publish(body, id=name, type="raw")
    with reading(shop):
        settled(broker)
        wait_until(lambda: len(shop.effects()) == 3)
    assert {name: shop.story(shop.inbox.admin.find("broker", name)[0]).body for name in bodies} == bodies


def test_headers_come_along(shop: Shop, broker: Broker) -> None:
    """Correlation and trace of the sender, which the outbox passes on."""
    shop.inbox.add_source(broker.url(), source="broker")
    broker.publish(b"{}", id="m-1", type=PAID, correlation_id="c-1", traceparent="00-" + "a" * 32, X_Note="a b=c; d")
    with reading(shop):
        settled(broker)
    headers = shop.story(shop.inbox.admin.find("broker", "m-1")[0]).headers
    assert {name: headers[name] for name in ("correlation-id", "traceparent", "x-note")} == {
        "correlation-id": "c-1",
        "traceparent": "00-" + "a" * 32,
        "x-note": "a b=c; d",
    }


def test_the_same_id_of_two_sources_is_two_messages(shop: Shop, broker: Broker) -> None:
    """Read side by side, each with its own connection (HZ-13)."""
    other, seen = broker.another(), []

    def keep(message: Message, tx: Any) -> None:
        del tx
        seen.append((message.source, message.id))

    shop.inbox.on("kept")(keep)
    try:
        shop.inbox.add_source(broker.url(), source="one")
        shop.inbox.add_source(other.url(), source="two")
        for name in names(5):
            broker.publish(b"{}", id=name, type="kept")
            other.publish(b"{}", id=name, type="kept")
        with reading(shop):
            settled(broker)
            settled(other)
            wait_until(lambda: len(seen) == 10)
    finally:
        other.close()
    assert Counter(seen) == Counter((source, name) for source in ("one", "two") for name in names(5))


def test_an_inline_message_waits_with_its_handler(shop: Shop, broker: Broker) -> None:
    """Handled in the broker's order, one by one, and settled when it is committed."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(message: Message, tx: Any) -> None:
        del message, tx
        begun.set()
        go_on.wait(30)

    shop.inbox.on("slow")(slow)
    shop.inbox.add_source(broker.url(), source="broker", inline=True)
    broker.publish(b'{"key": "k"}', id="s-1", type="slow")
    publish(broker, *names(3), key="k")  # some brokers keep an order within a key alone
    with reading(shop):
        wait_until(begun.is_set)
        assert (broker.unsettled(), shop.effects()) == (4, [])
        go_on.set()
        settled(broker)
    assert shop.effects() == names(3)
