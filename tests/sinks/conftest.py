"""Fixtures: the other side of each broker, and a shop that sends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.harness import Shop
from tests.servers import KafkaMock, KafkaServer
from tests.servers.foreign import ForeignServer
from tests.sinks.outlets import MqttOutlet, NatsOutlet, RabbitOutlet, RedisOutlet
from tests.sinks.streams import KafkaOutlet, PubsubOutlet, PulsarOutlet, SqsOutlet
from tests.sources.conftest import (
    mqtt_broker,
    nats_broker,
    pubsub_broker,
    pulsar_broker,
    rabbit_broker,
    redis_broker,
    sqs_broker,
)
from tests.sources.kafka_broker import KafkaBroker, KafkaMockBroker

__all__ = [
    "mqtt_broker",
    "nats_broker",
    "pubsub_broker",
    "pulsar_broker",
    "rabbit_broker",
    "redis_broker",
    "sqs_broker",
]

OUTLETS = {
    "redis": RedisOutlet,
    "nats": NatsOutlet,
    "rabbit": RabbitOutlet,
    "mqtt": MqttOutlet,
    "kafka": KafkaOutlet,
    "kafkamock": KafkaOutlet,
    "sqs": SqsOutlet,
    "pubsub": PubsubOutlet,
    "pulsar": PulsarOutlet,
}


@pytest.fixture
def kafka_broker(kafka_server: KafkaServer | ForeignServer) -> Iterator[KafkaBroker]:
    """A topic with one partition: there is an order of everything in it."""
    broker = KafkaBroker(kafka_server, partitions=1)
    yield broker
    broker.close()


@pytest.fixture
def kafkamock_broker(kafka_mock: KafkaMock) -> Iterator[KafkaMockBroker]:
    """The same, of librdkafka's."""
    broker = KafkaMockBroker(kafka_mock, partitions=1)
    yield broker
    broker.close()


@pytest.fixture
def shop(sqlite_url: str) -> Iterator[Shop]:
    """A shop that sends; a sink knows nothing of the store before it."""
    with Shop(sqlite_url, "def") as shop:
        yield shop
