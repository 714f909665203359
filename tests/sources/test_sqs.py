"""What only SQS has: receipt handles, two kinds of queue and of ids, and bodies that must be text."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from onceward import ConfigurationError
from onceward.brokers.protocol import Arrival, BrokerUnavailable, open_source
from onceward.brokers.sqs import SqsQueue
from onceward.testing.broker_suite.reading import PAID, names, publish, settled, taken
from tests.contract.harness import Shop
from tests.sources.conftest import reading
from tests.sources.sqs_broker import REGION, SqsBroker
from tests.waiting import wait_until


def test_a_deletion_that_fails_in_part_is_trouble_with_the_broker(sqs_broker: SqsBroker) -> None:
    """What was deleted stays so; the rest comes again, and is known."""
    publish(sqs_broker, *names(2))

    async def fail() -> None:
        source = SqsQueue(sqs_broker.url())
        await source.open()
        given = await taken(source, 2)
        wrong = Arrival(b"", {}, handle="no such handle", position="")
        with pytest.raises(BrokerUnavailable, match="1 deliveries could not be settled"):
            await source.ack([given[0], wrong])
        await source.close()

    asyncio.run(fail())
    assert sqs_broker.unsettled() == 1


def test_a_standard_queue_and_its_own_ids(shop: Shop, sqs_broker: SqsBroker) -> None:
    """Its message id is the place, and an id only where asked for: a producer that sends twice gets two of them."""
    name = f"plain-{uuid.uuid4().hex[:8]}"
    queue = sqs_broker.client.create_queue(QueueName=name)["QueueUrl"]
    shop.inbox.add_source(sqs_broker.url(queue=name), source="broker", id="position", type=f"={PAID}")
    for _ in range(2):
        sqs_broker.send("{}", {}, QueueUrl=queue)
    with reading(shop):
        wait_until(lambda: sqs_broker.unsettled(queue) == 0)
        wait_until(lambda: len(shop.effects()) == 2)
    assert all(effect.startswith(f"sqs:{name}/") for effect in shop.effects())


def test_the_dedupe_id_of_a_fifo_queue_is_an_id_where_asked_for(shop: Shop, sqs_broker: SqsBroker) -> None:
    """The queue forgets it after five minutes; the ledger does not."""
    shop.inbox.add_source(sqs_broker.url(), source="broker", id="header:sqs-deduplication-id", type=f"={PAID}")
    sqs_broker.send("{}", {}, MessageGroupId="g", MessageDeduplicationId="d-1")
    with reading(shop):
        settled(sqs_broker)
        wait_until(lambda: shop.effects() == ["d-1"])
    assert shop.detail(shop.inbox.admin.find("broker", "d-1")[0]).headers["sqs-group-id"] == "g"


def test_bodies_that_are_bytes(shop: Shop, sqs_broker: SqsBroker) -> None:
    shop.handle("raw", raw=True)
    shop.inbox.add_source(sqs_broker.url(), source="broker")
    sqs_broker.publish(b"\xff\x00", id="m-1", type="raw")
    attributes: dict[str, Any] = {"id": "m-2", "type": "raw", "onceward-base64": "true"}
    sqs_broker.send("not base64!", attributes, MessageGroupId="g", MessageDeduplicationId="d")
    with reading(shop):
        settled(sqs_broker)
    details = [shop.detail(shop.inbox.admin.find("broker", one)[0]) for one in ("m-1", "m-2")]
    assert [detail.body for detail in details] == [b"\xff\x00", b"not base64!"]


def test_a_queue_that_is_not_there_yet_is_waited_for(shop: Shop, sqs_broker: SqsBroker) -> None:
    sqs_broker.client.delete_queue(QueueUrl=sqs_broker.queue_url)
    shop.inbox.add_source(sqs_broker.url(), source="broker")
    with reading(shop):
        sqs_broker.make_queue()
        publish(sqs_broker, "m-1")
        wait_until(lambda: shop.effects() == ["m-1"])


@pytest.mark.parametrize(
    "url",
    [
        f"sqs://{REGION}",
        "sqs:///orders",
        f"sqs://{REGION}/orders?visibility=0",
        f"sqs://{REGION}/orders?visibility=50000",
        f"sqs://{REGION}/orders?visible=3",
    ],
)
def test_a_wrong_address_says_what_is_right(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sqs://REGION/QUEUE|visibility"):
        open_source(url)
