"""Events of Debezium's outbox event router, in every form that its converters give them, and through a real Kafka."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceward import ConfigurationError, Message
from onceward.brokers.envelope import Envelope
from onceward.brokers.protocol import Arrival
from onceward.domain.identity import REASON, UNIDENTIFIED
from onceward.testing.broker_suite.reading import settled
from tests.contract.harness import Shop
from tests.sources.conftest import reading
from tests.sources.kafka_broker import KafkaBroker
from tests.waiting import wait_until

EVENT = "4d47e190-0402-4048-bc2c-89dd54343cdc"
TOPIC = "outbox.event.order"
ORDER = '{"id": 1, "total": 63.970000000000000001, "lines": [2, 10]}'
OUTBOX = Envelope("orders", convention="debezium-outbox")
STRING = {"type": "string", "optional": False}


def wrapped(value: Any) -> str:
    """As the JSON converter writes it with its schemas enabled."""
    return json.dumps({"schema": STRING, "payload": value})


def arrival(body: str | bytes = ORDER, **headers: str) -> Arrival:
    """A record of a topic of the router's."""
    body = body.encode() if isinstance(body, str) else body
    return Arrival(body, {"kafka-topic": TOPIC, "kafka-key": "1", "id": EVENT} | headers, handle=None, position="p")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(ORDER, id="string converter, or expanded JSON"),
        pytest.param(json.dumps(ORDER), id="JSON converter"),
        pytest.param(wrapped(ORDER), id="JSON converter with schemas"),
    ],
)
@pytest.mark.parametrize("form", [str, json.dumps, wrapped])
def test_an_event_is_as_the_application_wrote_it(body: str, form: Any) -> None:
    """Whatever the connector's converters put around body, key and headers: the same message, byte for byte."""
    headers = {"id": form(EVENT), "kafka-key": form("1"), "eventType": form("OrderCreated")}
    found = OUTBOX.message(arrival(body, **headers))
    assert (found["id"], found["type"], found["body"]) == (EVENT, "OrderCreated", ORDER.encode())
    assert (found["headers"] or {})["kafka-key"] == "1"


def test_an_expanded_payload_with_its_schema_is_the_payload() -> None:
    body = json.dumps({"schema": {"type": "struct", "fields": []}, "payload": {"b": 1, "a": 2}})
    assert OUTBOX.message(arrival(body))["body"] == b'{"a":2,"b":1}'


@pytest.mark.parametrize(
    "body", ['{"schema": 1, "payload": 2}', '"plain"', "12", "", "no json", b"\x00\x01avro", "[1]"]
)
def test_what_is_not_wrapped_is_left_alone(body: str | bytes) -> None:
    """Also a body of the application's own that only looks as if it were."""
    given = arrival(body)
    assert OUTBOX.message(given)["body"] == given.body


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"eventType": "OrderCreated", "type": "other"}, "OrderCreated"),
        ({"type": "OrderCreated"}, "OrderCreated"),
        ({}, TOPIC),
    ],
)
def test_the_type_is_a_header_or_the_topic(headers: dict[str, str], kind: str) -> None:
    assert OUTBOX.message(arrival(**headers))["type"] == kind


def test_where_the_user_says_comes_first() -> None:
    named = Envelope("orders", id="id", type="=order.created", convention="debezium-outbox").message(arrival())
    assert (named["id"], named["type"]) == ("1", "order.created")


def test_an_event_without_an_id_is_kept_for_an_operator() -> None:
    """It did not go through the router: a position is no id, since a connector publishes again after a restart."""
    found = OUTBOX.message(Arrival(ORDER.encode(), {"kafka-topic": TOPIC}, handle=None, position="p"))
    assert found["type"] == UNIDENTIFIED
    assert "no id" in (found["headers"] or {})[REASON]


def test_an_unknown_envelope_is_refused(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match=r"envelope='debezium' must be .*debezium-outbox"):
        shop.inbox.add_source("kafka://localhost?topic=t", source="orders", envelope="debezium")


def test_a_connector_that_starts_again_doubles_nothing(shop: Shop, kafka_broker: KafkaBroker) -> None:
    """It publishes what it is not sure of once more, at other offsets; each aggregate keeps its order."""
    seen: list[tuple[str | None, int]] = []

    @shop.inbox.on("OrderChanged", key="header:kafka-key")
    def change(message: Message, tx: Any) -> None:
        del tx
        seen.append((message.key, message.data["number"]))

    def publish(number: int) -> None:
        body = json.dumps(json.dumps({"number": number})).encode()
        headers = {"id": f"{EVENT[:-2]}{number:02}", "eventType": "OrderChanged"}
        kafka_broker.produce(body, key=json.dumps(f"order-{number % 2}"), headers=headers, partition=number % 2)

    shop.inbox.add_source(kafka_broker.url(), source="orders", envelope="debezium-outbox")
    for number in (*range(10), *range(4, 12)):
        publish(number)
    with reading(shop):
        settled(kafka_broker)
        wait_until(lambda: len(seen) >= 12)
    assert [number for key, number in seen if key == "order-0"] == list(range(0, 12, 2))
    assert [number for key, number in seen if key == "order-1"] == list(range(1, 12, 2))
    assert shop.inbox.admin.stats().duplicates == 6
