"""What only these brokers have as a destination: keys, groups, and what SQS cannot carry as it is."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from onceward import Reject
from onceward.brokers.protocol import open_sink
from onceward.message import Message
from onceward.testing.sink_contract import _message
from tests.contract.harness import QUICK, Shop
from tests.sinks.outlets import Outlet
from tests.sinks.streams import KafkaOutlet, PubsubOutlet, SqsOutlet
from tests.sources.conftest import reading
from tests.sources.kafka_broker import KafkaBroker
from tests.sources.pubsub_broker import PubsubBroker
from tests.sources.sqs_broker import SqsBroker
from tests.waiting import wait_until


def message(**changes: Any) -> Message:
    made = _message()
    return Message(**{name: changes.get(name, getattr(made, name)) for name in Message._fields})


def test_the_key_goes_along(
    shop: Shop, kafka_broker: KafkaBroker, sqs_broker: SqsBroker, pubsub_broker: PubsubBroker
) -> None:
    """As the record's key, the group of a FIFO queue, the ordering key."""
    keys = {"kafka": "kafka-key", "sqs": "sqs-group-id", "pubsub": "pubsub-ordering-key"}
    outlets: dict[str, Outlet] = {
        "kafka": KafkaOutlet(kafka_broker),
        "sqs": SqsOutlet(sqs_broker),
        "pubsub": PubsubOutlet(pubsub_broker),
    }
    for name, outlet in outlets.items():
        with closing(open_sink(outlet.url())) as sink:
            sink.publish(message(key=f"customer {name}"))
        shop.inbox.add_source(outlet.broker.url(), source=name)
    shop.handle("contract.sent")
    with reading(shop):
        wait_until(lambda: len(shop.effects()) == 3)
    for name, header in keys.items():
        (row,) = shop.inbox.admin.messages(source=name)
        found = shop.detail(row.seq).headers[header]
        # A group of SQS has no spaces.
        assert found == f"customer {name}" or (name == "sqs" and len(found) == 64)


ODD = {f"header-{number}": str(number) for number in range(12)}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"\xff\x00", {}),
        (b"", {}),
        (b"\x01 a control character", {}),
        (b"{}", ODD),
        (b"{}", {"empty": "", "an odd name!": "x", "control": "\x01"}),
    ],
    ids=["bytes", "nothing", "control", "many", "odd"],
)
def test_what_sqs_cannot_carry_as_it_is_arrives_all_the_same(
    sqlite_url: str, sqs_broker: SqsBroker, body: bytes, headers: dict[str, str]
) -> None:
    sent = message(body=body, headers=headers, id="ä 1")
    with closing(open_sink(SqsOutlet(sqs_broker).url())) as sink:
        sink.publish(sent)
    with Shop(sqlite_url, "def", settings=QUICK) as other:
        other.handle("contract.sent", raw=True)
        other.inbox.add_source(sqs_broker.url(), source="shop")
        with reading(other):
            wait_until(lambda: len(other.effects()) == 1)
        detail = other.detail(other.inbox.admin.messages(source="shop")[0].seq)
    assert (detail.body, detail.id) == (body, "%C3%A4 1")
    assert {name: detail.headers[name] for name in headers} == headers


def test_what_is_too_large_is_dead(sqs_broker: SqsBroker, kafka_broker: KafkaBroker) -> None:
    large = message(body=b"x" * 2_000_000)
    for outlet in (SqsOutlet(sqs_broker), KafkaOutlet(kafka_broker)):
        with closing(open_sink(outlet.url())) as sink, pytest.raises(Reject, match="then redrive"):
            sink.publish(large)
