"""What a source must be: it hands over deliveries and settles each of them once. `open_source` finds it by URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, runtime_checkable

from onceward.domain.address import opened


class BrokerUnavailable(Exception):
    """The broker cannot be reached or has forgotten us: close, wait, open again."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One delivery of a broker, not yet understood."""

    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    handle: Any
    """What the broker wants back when the delivery is settled. Never an identity: it may change with each delivery."""
    position: str
    """Its place in the broker, the same for every delivery of it: an identity only where the user says so. In a broker
    without places, a digest of everything it carries."""
    id: str | None = None
    """What the producer called it, where the transport has a place for that."""
    type: str | None = None
    place: int | None = None
    """Where it comes inside its key; None where that is the order of arrival."""


class Source(Protocol):
    """A queue, stream or topic of a broker.

    Obligations: after `open`, everything that was delivered before and not accepted comes again, at the latest after
    `redelivery`. `accept` is called only when a delivery is committed, `release` when it is not; each delivery gets one
    of them, unless the connection is lost. Every trouble with the broker is a `BrokerUnavailable`.
    """

    name: str
    """For the log: where it reads, without credentials."""
    redelivery: timedelta
    """How late the broker may deliver again what it has delivered."""
    positions: bool
    """Whether each message has a place in the broker that no other message has."""

    async def open(self) -> None:
        """Connect, and make what is needed for reading."""

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        """At most `limit` deliveries in the broker's order; nothing when none came for this long."""

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        """They are committed: the broker may forget them."""

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        """They are not: the broker shall deliver them again."""

    async def close(self) -> None:
        """Disconnect; fine when not connected."""


class Shares(NamedTuple):
    """In how many parts a source is, and how many readers share them now."""

    parts: int
    readers: int


@runtime_checkable
class Shared(Protocol):
    """A source in parts, each of which has one reader at a time: more readers than parts are idle."""

    def shares(self) -> Shares:
        """Asked without reading, beside those who read; blocks, and raises `BrokerUnavailable`."""


_KINDS = {
    "redis": "redis:RedisStream",
    "rediss": "redis:RedisStream",
    "nats": "nats:NatsStream",
    "tls": "nats:NatsStream",
    "amqp": "rabbitmq:RabbitQueue",
    "amqps": "rabbitmq:RabbitQueue",
    "mqtt": "mqtt:MqttTopic",
    "mqtts": "mqtt:MqttTopic",
    "kafka": "kafka:KafkaTopic",
    "kafkas": "kafka:KafkaTopic",
    "sqs": "sqs:SqsQueue",
    "pubsub": "pubsub:PubsubSubscription",
}


def open_source(url: str) -> Source:
    """The source behind a URL."""
    source: Source = opened(url, _KINDS, "onceward.sources", "no source for")
    return source
