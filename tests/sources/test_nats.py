"""What only NATS JetStream has: its own ids and subjects, and redelivery after a wait."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from onceward import ConfigurationError
from onceward.brokers.nats import NatsStream
from onceward.brokers.protocol import open_source
from onceward.testing.broker_suite.reading import names, publish, settled
from tests.contract.harness import Shop
from tests.sources.brokers import NatsBroker
from tests.sources.conftest import reading
from tests.waiting import wait_until


def test_its_own_message_id_is_the_id_and_the_subject_may_be_the_type(shop: Shop, nats_broker: NatsBroker) -> None:
    shop.handle(nats_broker.subject)
    shop.inbox.add_source(nats_broker.url(), source="broker", type="header:nats-subject")
    nats_broker.publish(b"{}", nats_msg_id="m-1")
    with reading(shop):
        settled(nats_broker)
        wait_until(lambda: shop.effects() == ["m-1"])


def test_what_a_dead_reader_was_given_comes_again(shop: Shop, nats_broker: NatsBroker) -> None:
    publish(nats_broker, *names(10))

    async def die() -> int:
        dead = NatsStream(nats_broker.url())
        await dead.open()
        given = await dead.next(100, 2.0)
        await dead.close()
        return len(given)

    assert asyncio.run(die()) == 10
    shop.inbox.add_source(nats_broker.url(), source="broker", batch=4)
    with reading(shop):
        settled(nats_broker)
        wait_until(lambda: Counter(shop.effects()) == Counter(names(10)))


def test_a_stream_that_is_not_there_yet_is_waited_for(shop: Shop, nats_broker: NatsBroker) -> None:
    shop.inbox.add_source(nats_broker.url(), source="broker")
    nats_broker.delete_stream()
    with reading(shop):
        nats_broker.make_stream()
        publish(nats_broker, "m-1")
        wait_until(lambda: shop.effects() == ["m-1"])
        nats_broker.delete_stream()  # and again, while it is read
        nats_broker.make_stream()
        publish(nats_broker, "m-2")
        wait_until(lambda: shop.effects() == ["m-1", "m-2"])


def test_a_batch_is_never_larger_than_was_asked_for(nats_broker: NatsBroker) -> None:
    publish(nats_broker, *names(25))

    async def read() -> list[int]:
        source = NatsStream(nats_broker.url())
        await source.open()
        sizes = []
        while batch := await source.next(10, 0.5):
            sizes.append(len(batch))
            await source.ack(batch)
        await source.close()
        return sizes

    sizes = asyncio.run(read())
    assert (sum(sizes), max(sizes) <= 10) == (25, True)


@pytest.mark.parametrize("query", ["", "stream=", "stream=x&ack_wait=0", "stream=x&ack_wait=y", "stream=x&streem=y"])
def test_a_wrong_address_says_what_is_right(query: str) -> None:
    with pytest.raises(ConfigurationError, match=r"stream=NAME|ack_wait"):
        open_source(f"nats://:canary@localhost?{query}")


def test_credentials_are_not_in_the_name() -> None:
    assert "canary" not in NatsStream("nats://me:canary@localhost?stream=x").name
