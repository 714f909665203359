"""Kafka, SQS, Pub/Sub and Pulsar, seen from behind."""

from __future__ import annotations

import asyncio
import uuid

from onceward.brokers.protocol import open_source
from tests.sinks.outlets import Arrived
from tests.sources.kafka_broker import KafkaBroker
from tests.sources.pubsub_broker import PROJECT, PubsubBroker
from tests.sources.pulsar_broker import PulsarBroker
from tests.sources.sqs_broker import REGION, SqsBroker


class KafkaOutlet:
    """A topic."""

    repeats = True

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker

    def url(self, *, proxied: bool = False) -> str:
        return f"{self.broker.url(proxied=proxied).partition('?')[0]}?topic={self.broker.topic}"

    def nowhere(self) -> str:
        return f"{self.broker.url().partition('?')[0]}?topic=nowhere-{uuid.uuid4().hex}"

    def received(self) -> Arrived:
        return self.broker.records()

    def close(self) -> None:
        """Nothing of its own."""


class SqsOutlet:
    """A FIFO queue."""

    repeats = False

    def __init__(self, broker: SqsBroker) -> None:
        self.broker = broker
        self._received: Arrived = []

    def url(self, *, proxied: bool = False, queue: str = "") -> str:
        endpoint = self.broker.endpoint(proxied=proxied)
        return f"sqs://{REGION}/{queue or self.broker.queue}?endpoint={endpoint}"

    def nowhere(self) -> str:
        return self.url(queue=f"nowhere-{uuid.uuid4().hex}")

    def received(self) -> Arrived:
        self._received += asyncio.run(_rest(self.broker))
        return self._received

    def close(self) -> None:
        """Nothing of its own."""


class PubsubOutlet:
    """A topic with a subscription."""

    repeats = False

    def __init__(self, broker: PubsubBroker) -> None:
        self.broker = broker
        self._received: Arrived = []

    def url(self, *, proxied: bool = False, topic: str = "") -> str:
        name = topic or self.broker.topic.rpartition("/")[2]
        return f"pubsub://{PROJECT}/{name}?endpoint={self.broker.endpoint(proxied=proxied)}"

    def nowhere(self) -> str:
        return self.url(topic=f"nowhere-{uuid.uuid4().hex}")

    def received(self) -> Arrived:
        self._received += asyncio.run(_rest(self.broker))
        return self._received

    def close(self) -> None:
        """Nothing of its own."""


class PulsarOutlet:
    """A topic whose broker knows what comes twice from one producer."""

    repeats = True

    def __init__(self, broker: PulsarBroker) -> None:
        self.broker = broker

    def url(self, *, proxied: bool = False) -> str:
        return f"{self.broker.url(proxied=proxied).partition('?')[0]}?topic={self.broker.topic}"

    def nowhere(self) -> str:
        return f"{self.broker.url().partition('?')[0]}?topic=persistent://public/nowhere/{uuid.uuid4().hex}"

    def received(self) -> Arrived:
        return self.broker.messages()

    def close(self) -> None:
        """Nothing of its own."""


async def _rest(broker: SqsBroker | PubsubBroker) -> Arrived:
    """What is still in a queue, taken out of it."""
    source = open_source(broker.url())
    await source.open()
    found: Arrived = []
    while broker.unsettled():
        batch = await source.next(100, 1.0)
        found += [(one.id or "", one.type or "", one.body) for one in batch]
        await source.ack(batch)
    await source.close()
    return found
