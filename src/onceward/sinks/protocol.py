"""What a sink must be: something that publishes a message and returns when the other side has it.

`open_sink` finds a broker's by URL.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from onceward.domain.address import opened
from onceward.message import Message


class Sink(Protocol):
    """A destination of outgoing messages.

    Obligations: return only when the other side has confirmed; publish under `message.id`, which is the same on every
    attempt; raise `Reject` for what can never be published, `Retry(after=...)` where the other side named a time, and
    anything else for what may work later. May be called from several threads. May be `async def`.
    """

    def publish(self, message: Message) -> Awaitable[None] | None:
        """Publish one message."""


class Closable(Sink, Protocol):
    """A sink that holds connections."""

    def close(self) -> None:
        """Disconnect; fine when not connected."""


_KINDS = {
    "redis": "redis:RedisSink",
    "rediss": "redis:RedisSink",
    "nats": "nats:NatsSink",
    "tls": "nats:NatsSink",
    "amqp": "rabbitmq:RabbitSink",
    "amqps": "rabbitmq:RabbitSink",
    "mqtt": "mqtt:MqttSink",
    "mqtts": "mqtt:MqttSink",
    "kafka": "kafka:KafkaSink",
    "kafkas": "kafka:KafkaSink",
    "sqs": "sqs:SqsSink",
    "pubsub": "pubsub:PubsubSink",
}


def open_sink(url: str) -> Closable:
    """The sink behind a broker's URL."""
    sink: Closable = opened(url, _KINDS, "onceward.sinks", "no sink for")
    return sink
