"""What a confirmation is worth at each broker: the options that it rests on, seen at the broker's side."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import Any

import pytest

from onceward.brokers.kafka import sink as kafka
from onceward.brokers.mqtt import MqttSink
from onceward.brokers.protocol import open_sink
from onceward.testing.sink_contract import _message
from tests.sinks.outlets import NatsOutlet, Outlet, RabbitOutlet
from tests.sinks.streams import SqsOutlet
from tests.sources.brokers import RabbitBroker


@pytest.mark.parametrize("name", ["nats", "sqs"])
def test_a_copy_is_dropped_by_a_broker_that_knows_its_id(name: str, request: pytest.FixtureRequest) -> None:
    """A stream of JetStream and a FIFO queue, each by the id that it asks for."""
    outlets: dict[str, Any] = {"nats": NatsOutlet, "sqs": SqsOutlet}
    outlet: Outlet = outlets[name](request.getfixturevalue(f"{name}_broker"))
    message = _message()
    with closing(open_sink(outlet.url())) as sink:
        sink.publish(message)
        sink.publish(message)
    assert [found for found, _, _ in outlet.received()] == [message.id]


def test_rabbitmq_writes_messages_to_its_disk(rabbit_broker: RabbitBroker) -> None:
    """Also in a classic queue, which keeps only those that ask for it."""
    with closing(open_sink(RabbitOutlet(rabbit_broker).url())) as sink:
        sink.publish(_message())
    _, properties, _ = rabbit_broker.channel.basic_get(rabbit_broker.queue, auto_ack=True)
    assert properties.delivery_mode == 2


def test_what_rabbitmq_refuses_is_not_confirmed(rabbit_broker: RabbitBroker) -> None:
    """A queue that is full and takes no more: the refusal comes in place of the confirmation, and never without one."""
    full = f"full-{uuid.uuid4().hex[:8]}"
    rabbit_broker.channel.queue_declare(full, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    url = f"{RabbitOutlet(rabbit_broker).url().partition('?')[0]}?routing_key={full}"
    with closing(open_sink(url)) as sink:
        sink.publish(_message())
        with pytest.raises(ConnectionError, match="did not confirm"):
            sink.publish(_message())
    rabbit_broker.channel.queue_delete(full)


def test_no_answer_is_no_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of Kafka that says nothing at all, not even that it has given up."""
    with closing(open_sink("kafka://127.0.0.1:1?topic=orders")) as sink:
        monkeypatch.setattr(kafka, "CONFIRM_SECONDS", 0.05)
        with pytest.raises(ConnectionError, match="no answer"):
            sink.publish(_message())


@pytest.mark.parametrize("answer", ["Unspecified error", "Not authorized", "Quota exceeded"])
def test_whatever_mqtt_answers_but_success_is_no_confirmation(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Publisher:
        def publish(self, *_: object) -> str:
            return answer

        def close(self) -> None:
            """Nothing to close."""

    with closing(MqttSink("mqtt://localhost?topic=orders")) as sink:
        monkeypatch.setattr(sink._connection, "get", Publisher)
        with pytest.raises(ConnectionError, match=f"refused: {answer}"):
            sink.publish(_message())
