"""What only Pulsar has: batches in partitions, keys that readers share, and what is given back with a delay."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import closing
from typing import Any

from onceward import Message
from onceward.brokers.protocol import open_sink, open_source
from onceward.testing.broker_suite.reading import PAID, names, publish, settled, taken
from onceward.testing.sink_contract import _message
from tests.contract.harness import QUICK, Shop
from tests.sources.conftest import reading
from tests.sources.pulsar_broker import PulsarBroker
from tests.waiting import wait_until


def test_every_message_of_a_batch_in_a_partition_has_a_place_of_its_own(
    shop: Shop, pulsar_broker: PulsarBroker
) -> None:
    """Ledger, entry, partition and place in the batch, the same for every delivery (R06)."""
    pulsar_broker.make_partitions(3)
    pulsar_broker.send_batch([b"{}"] * 30, {"type": PAID})

    async def left() -> set[str]:
        source = open_source(pulsar_broker.url())
        await source.open()
        found = await taken(source, 30)
        await source.close()
        return {arrival.position for arrival in found}

    places = asyncio.run(left())
    assert len(places) == 30
    shop.inbox.add_source(pulsar_broker.url(), source="broker", id="position")
    with reading(shop):
        wait_until(lambda: len(shop.effects()) == 30)
        settled(pulsar_broker)
    assert set(shop.effects()) == places


def test_readers_that_come_and_go_keep_the_order_of_keys(shop: Shop, pulsar_broker: PulsarBroker) -> None:
    """A key belongs to one reader at a time; what that had in hand comes to the next in order."""
    seen: list[tuple[str, int]] = []

    def keep(message: Message, tx: Any) -> None:
        del tx
        seen.append((message.key or "", message.data["number"]))

    shops = [shop, *(shop.another(settings=QUICK) for _ in range(2))]
    for one in shops:
        one.inbox.on("numbered", key="header:pulsar-key")(keep)
        one.inbox.add_source(f"{pulsar_broker.url()}&prefetch=5", source="broker", batch=4)

    def produce(first: int) -> None:
        for number in range(first, first + 60):
            body = json.dumps({"number": number, "key": f"k{number % 5}"}).encode()
            pulsar_broker.publish(body, id=f"n-{number}", type="numbered")

    produce(0)
    with reading(shops[0]):
        wait_until(lambda: seen)
        with reading(shops[1]):
            produce(60)
            with reading(shops[2]):
                produce(120)
                settled(pulsar_broker)
            produce(180)
        settled(pulsar_broker)
        wait_until(lambda: len(seen) == 240)
    for number in range(5):
        assert [n for key, n in seen if key == f"k{number}"] == list(range(number, 240, 5))


def test_what_is_given_back_comes_after_its_delay(pulsar_broker: PulsarBroker) -> None:
    publish(pulsar_broker, *names(2))

    async def read() -> float:
        source = open_source(pulsar_broker.url())
        await source.open()
        await source.nack(await taken(source, 2))
        begun = time.monotonic()
        await source.ack(await taken(source, 2))
        await source.close()
        return time.monotonic() - begun

    assert asyncio.run(read()) >= 0.9  # of nack_delay=1; later is the machine's matter
    settled(pulsar_broker)


def test_the_key_goes_along(shop: Shop, pulsar_broker: PulsarBroker) -> None:
    made = _message()
    changed: Any = {name: "customer 7" if name == "key" else getattr(made, name) for name in Message._fields}
    keyed = Message(**changed)
    with closing(open_sink(pulsar_broker.url().partition("?")[0] + f"?topic={pulsar_broker.topic}")) as sink:
        sink.publish(keyed)
    shop.inbox.add_source(pulsar_broker.url(), source="broker")
    shop.handle("contract.sent", key="header:pulsar-key")
    with reading(shop):
        wait_until(lambda: len(shop.effects()) == 1)
    (row,) = shop.inbox.admin.messages(source="broker")
    assert row.key == "customer 7"
