"""CloudEvents' own SDK and we read each other: every binding that it has, both modes, and through a real Kafka."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.bindings import amqp, http, kafka, rabbitmq
from cloudevents.core.v1.event import CloudEvent
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onceward import Message
from onceward.brokers.envelope import Envelope
from onceward.brokers.protocol import Arrival
from onceward.domain.headers import text_of
from onceward.domain.identity import UNIDENTIFIED
from onceward.testing.broker_suite.reading import settled
from tests.contract.harness import Shop
from tests.sources.conftest import reading
from tests.sources.kafka_broker import KafkaBroker
from tests.waiting import wait_until

JSON = "application/json"
# What all bindings can carry, HTTP also: there other letters are percent-encoded, as its specification says.
PLAIN = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters='"%'), min_size=1, max_size=30)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
DATA = st.dictionaries(TEXT, st.integers() | TEXT | st.none(), max_size=3)


def event_of(source: str, event_id: str, data: Any, kind: str = JSON) -> CloudEvent:
    """An event as its producer makes it."""
    names = {"source": source, "id": event_id, "type": "order.billed", "datacontenttype": kind}
    return CloudEvent(attributes=names, data=data)


def as_arrival(body: bytes, headers: dict[str, Any], content_type: str | None = None) -> Arrival:
    """As our sources hand it over."""
    found = {name: text_of(value) for name, value in headers.items()}
    return Arrival(body, found if content_type is None else found | {"content-type": content_type}, None, "p")


def arrivals(event: CloudEvent) -> dict[str, Arrival]:
    """The event in every form that the SDK can give it."""
    found = {}
    for mode in ("binary", "structured"):
        of_kafka = getattr(kafka, f"to_{mode}_event")(event)
        found[f"Kafka, {mode}"] = as_arrival(of_kafka.value, of_kafka.headers)
        of_rabbitmq = getattr(rabbitmq, f"to_{mode}_event")(event)
        found[f"RabbitMQ, {mode}"] = as_arrival(of_rabbitmq.body, of_rabbitmq.headers, of_rabbitmq.content_type)
        of_http = getattr(http, f"to_{mode}_event")(event)
        found[f"HTTP, {mode}"] = as_arrival(of_http.body, of_http.headers)
        of_amqp = getattr(amqp, f"to_{mode}_event")(event)
        headers = of_amqp.application_properties
        found[f"AMQP, {mode}"] = as_arrival(of_amqp.application_data, headers, of_amqp.properties["content-type"])
    return found


@settings(deadline=None)
@given(PLAIN, PLAIN, DATA)
@example("/shop", "evt_1", {"order_id": 7})
def test_an_event_is_one_message_in_every_form(source: str, event_id: str, data: Any) -> None:
    """The same id, type and data; not the same bytes, for the SDK writes JSON otherwise in each mode."""
    for form, arrival in arrivals(event_of(source, event_id, data)).items():
        found = Envelope("broker").message(arrival)
        assert (found["id"], found["type"]) == (f"{len(source)}:{source}:{event_id}", "order.billed"), form
        assert json.loads(found["body"] or b"") == data, form


@settings(deadline=None)
@given(st.binary(max_size=50))
def test_bytes_are_the_same_bytes_in_every_form(data: bytes) -> None:
    """In structured mode they travel as base64."""
    for form, arrival in arrivals(event_of("/shop", "1", data, "application/octet-stream")).items():
        assert Envelope("broker").message(arrival)["body"] == data, form


@pytest.mark.parametrize("wrong", [5, "no base64!", None])
def test_bytes_that_are_not_base64_are_kept_for_an_operator(wrong: object) -> None:
    event = {"specversion": "1.0", "source": "/shop", "id": "1", "type": "t", "data_base64": wrong}
    arrival = as_arrival(json.dumps(event).encode(), {"content-type": "application/cloudevents+json"})
    assert Envelope("broker").message(arrival)["type"] == UNIDENTIFIED


def test_both_ways_through_kafka(shop: Shop, kafka_broker: KafkaBroker) -> None:
    """Its events become messages; what a handler sends is an event, once, under the id that it keeps on a retry.

    An event that comes again in the other mode has other bytes: it is not run, and kept for an operator.
    """
    inbox, partner = shop.inbox, kafka_broker.another()
    attempts: list[int] = []

    @inbox.on("order.billed")
    def confirm(message: Message, tx: Any) -> None:
        del tx
        names = {"source": "/shop", "id": message.idempotency_key("confirmed"), "type": "order.confirmed"}
        record = kafka.to_binary_event(CloudEvent(attributes=names, data=message.data))
        headers = {name: value.decode() for name, value in record.headers.items()}
        message.send("order.confirmed", body=record.value, headers=headers, to="partner")
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise ConnectionError("try again")

    inbox.add_source(kafka_broker.url(), source="orders")
    inbox.add_sink("partner", partner.url().partition("&group")[0])
    event = event_of("/orders", "evt_1", {"order_id": 7})
    for record in (kafka.to_binary_event(event), kafka.to_structured_event(event)):
        kafka_broker.produce(record.value, headers=dict(record.headers))
    with reading(shop):
        settled(kafka_broker)
        wait_until(lambda: len(partner.raw_records()) == 1)
    ((headers, value),) = partner.raw_records()
    sent = kafka.from_kafka_event(kafka.KafkaMessage(headers=headers, key=None, value=value))
    assert (sent.get_source(), sent.get_type(), sent.get_data()) == ("/shop", "order.confirmed", {"order_id": 7})
    assert attempts == [1, 2]
    assert inbox.admin.stats().quarantined == 1
