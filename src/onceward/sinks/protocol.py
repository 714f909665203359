"""What a sink must be: something that publishes a message and returns when the other side has it.

`open_sink` finds a broker's by URL.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from onceward.errors import ConfigurationError
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


def open_sink(url: str) -> Closable:
    """The sink behind a broker's URL."""
    scheme = url.partition(":")[0]
    if scheme in ("redis", "rediss"):
        from onceward.sinks.redis import RedisSink  # noqa: PLC0415 - clients load on demand

        return RedisSink(url)
    if scheme in ("nats", "tls"):
        from onceward.sinks.nats import NatsSink  # noqa: PLC0415 - clients load on demand

        return NatsSink(url)
    if scheme in ("amqp", "amqps"):
        from onceward.sinks.rabbitmq import RabbitSink  # noqa: PLC0415 - clients load on demand

        return RabbitSink(url)
    if scheme in ("mqtt", "mqtts"):
        from onceward.sinks.mqtt import MqttSink  # noqa: PLC0415 - clients load on demand

        return MqttSink(url)
    raise ConfigurationError(
        f"no sink for {scheme!r} URLs; use redis://host/0?stream=NAME, nats://host?subject=NAME, amqp://host/vhost,"
        " mqtt://host?topic=NAME, or an HttpSink, InboxSink or object of your own"
    )
