"""What only RabbitMQ has: tags that belong to a channel, queues that are made or deleted, headers of every kind."""

from __future__ import annotations

import asyncio
import gc

import pytest

from onceward import ConfigurationError
from onceward.brokers.protocol import Arrival, BrokerUnavailable, open_source
from onceward.brokers.rabbitmq import RabbitQueue
from onceward.testing.broker_suite.reading import names, publish, settled, taken
from onceward.testing.process import apart
from tests.contract.harness import Shop
from tests.sources.brokers import RabbitBroker
from tests.sources.conftest import reading
from tests.waiting import wait_until


def test_a_tag_of_a_lost_channel_acknowledges_nothing_on_the_next(rabbit_broker: RabbitBroker) -> None:
    """Tags restart at 1 with each channel: the old ones name other messages there (HZ-14)."""
    publish(rabbit_broker, *names(4))

    async def read() -> list[Arrival]:
        source = RabbitQueue(rabbit_broker.url())
        await source.open()
        old = await taken(source, 4)
        await source.close()
        publish(rabbit_broker, "newer")
        await source.open()
        again = await taken(source, 5)
        with pytest.raises(BrokerUnavailable):
            await source.ack(old[:2])
        with pytest.raises(BrokerUnavailable):
            await source.nack(old[2:])
        await source.ack(again[2:])
        await source.close()
        return [*old, *again]

    arrivals = asyncio.run(read())
    assert [arrival.id for arrival in arrivals] == [*names(4) * 2, "newer"]  # what comes again comes first, in order
    wait_until(lambda: rabbit_broker.unsettled() == 2)


def test_an_acknowledgement_of_many_covers_nothing_that_is_in_hand(rabbit_broker: RabbitBroker) -> None:
    """Whatever is settled first, and however; one frame is for all up to the last, and for nothing else."""
    publish(rabbit_broker, *names(9))

    async def read() -> None:
        source = RabbitQueue(rabbit_broker.url())
        await source.open()
        held = await taken(source, 9)
        for first, last, left in ((2, 4, 7), (6, 7, 6), (0, 2, 4), (4, 6, 2)):
            await source.ack(held[first:last])
            await asyncio.to_thread(wait_until, lambda left=left: rabbit_broker.unsettled() == left)
        await source.nack(held[7:8])
        await source.ack(held[8:])
        (again,) = await taken(source, 1)
        assert again.id == held[7].id
        assert await asyncio.to_thread(rabbit_broker.unsettled) == 1
        await source.ack([again])
        await source.close()

    asyncio.run(read())
    settled(rabbit_broker)


def test_no_more_is_in_hand_than_prefetch(rabbit_broker: RabbitBroker) -> None:
    """Whoever comes second gets the rest, also while the first takes its time."""
    publish(rabbit_broker, *names(20))

    async def read() -> tuple[list[Arrival], list[Arrival]]:
        slow = RabbitQueue(rabbit_broker.url().replace("prefetch=50", "prefetch=5"))
        quick = RabbitQueue(rabbit_broker.url())
        await slow.open()
        held = await taken(slow, 5)
        await quick.open()
        rest = await taken(quick, 15)
        assert await slow.next(5, 0.1) == []
        await quick.ack(rest)
        await quick.close()
        await slow.close()
        return held, rest

    held, rest = asyncio.run(read())
    assert [arrival.id for arrival in (*held, *rest)] == names(20)
    wait_until(lambda: rabbit_broker.unsettled() == 5)


def test_a_queue_that_is_not_there_is_made_and_made_again(shop: Shop, rabbit_broker: RabbitBroker) -> None:
    """As a quorum queue; also when it is deleted while it is read."""
    rabbit_broker.delete_queue()
    shop.inbox.add_source(rabbit_broker.url(), source="broker")
    with reading(shop):
        for name in ("m-1", "m-2"):
            wait_until(rabbit_broker.has_queue)
            publish(rabbit_broker, name)
            wait_until(lambda name=name: name in shop.effects())  # type: ignore[misc]
            settled(rabbit_broker)
            rabbit_broker.delete_queue()
        wait_until(rabbit_broker.has_queue)
    rabbit_broker.make_queue()  # refused if it were of another kind


def test_headers_of_every_kind_and_the_routing_key(shop: Shop, rabbit_broker: RabbitBroker) -> None:
    shop.handle(rabbit_broker.queue)
    shop.inbox.add_source(rabbit_broker.url(), source="broker", type="header:rabbitmq-routing-key")
    rabbit_broker.publish(b"\x00\xff", id="m-1", number=7, flag=True, raw=b"\xff", nested={"a": [1]}, nothing=None)
    with reading(shop):
        settled(rabbit_broker)
    detail = shop.detail(shop.inbox.admin.find("broker", "m-1")[0])
    assert (detail.type, detail.body) == (rabbit_broker.queue, b"\x00\xff")
    assert dict(detail.headers) == {
        "number": "7",
        "flag": "True",
        "raw": "\\xff",
        "nested": "{'a': [1]}",
        "rabbitmq-routing-key": rabbit_broker.queue,
        "rabbitmq-exchange": "",
    }


@pytest.mark.parametrize(
    "query", ["", "queue=", "queue=x&prefetch=0", "queue=x&prefetch=70000", "queue=x&prefetch=1.5"]
)
def test_a_wrong_address_says_what_is_right(query: str) -> None:
    with pytest.raises(ConfigurationError, match=r"queue=NAME|prefetch"):
        open_source(f"amqp://:canary@localhost/?{query}")


def test_a_wrong_password_is_waited_for_and_not_shown(rabbit_broker: RabbitBroker) -> None:
    source = RabbitQueue(rabbit_broker.url().replace("amqp://", "amqp://me:canary@"))

    async def connect() -> None:
        try:
            await source.open()
        finally:
            await source.close()

    with pytest.raises(BrokerUnavailable) as caught:
        asyncio.run(connect())
    assert "canary" not in f"{source.name} {caught.value}"


def test_a_connection_that_was_refused_is_closed(rabbit_broker: RabbitBroker) -> None:
    """Otherwise it tries to when it is collected, with a coroutine that nobody awaits where no loop runs."""
    source = RabbitQueue(rabbit_broker.url().replace("amqp://", "amqp://me:canary@"))

    def refused() -> None:
        loop = asyncio.new_event_loop()
        with pytest.raises(BrokerUnavailable) as error:
            loop.run_until_complete(source.open())
        del error  # which held the connection until now
        gc.collect()  # while its loop is open, and does not run
        loop.close()

    apart(refused)
