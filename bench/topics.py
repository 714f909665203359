"""Where the brokers' messages are: a topic, a queue and a stream, each on a private server, filled before a race.

`unsettled` is asked when a race is over: a broker that would deliver anything again was not acknowledged.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import pika
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.figures import expect
from tests.servers import KafkaServer, RabbitServer, RedisServer
from tests.servers.private import PrivateServer
from tests.waiting import wait_until

PARTITIONS = 8
"""As many as the textbook has processes at most."""
PREFETCH = 1_000
GROUP = "shop"


class Topic(Protocol):
    """A place that was filled with deliveries."""

    @property
    def url(self) -> str:
        """Where an inbox finds it."""

    def publish(self, deliveries: list[dict[str, Any]]) -> None:
        """Put them all there, confirmed."""

    def unsettled(self) -> int:
        """How many are not acknowledged."""

    def close(self) -> None:
        """Remove it."""


class KafkaTopic:
    """A topic with partitions for every process."""

    def __init__(self, server: KafkaServer) -> None:
        self._name = f"orders-{uuid.uuid4().hex[:8]}"
        self._settings: dict[str, Any] = {"bootstrap.servers": f"{server.host}:{server.port}", "log_level": 2}
        self.url = f"kafka://{server.host}:{server.port}?topic={self._name}&group={GROUP}"
        self._admin = AdminClient(self._settings)
        self._admin.create_topics([NewTopic(self._name, PARTITIONS, 1)])[self._name].result(30)

    def publish(self, deliveries: list[dict[str, Any]]) -> None:
        problems: list[Any] = []
        producer = Producer({**self._settings, "linger.ms": 20, "queue.buffering.max.messages": len(deliveries) + 1})
        for place, message in enumerate(deliveries):
            producer.produce(
                self._name,
                body_of(message),
                partition=place % PARTITIONS,
                headers={"id": message["id"], "type": message["type"]},
                on_delivery=lambda error, _: problems.append(error) if error else None,
            )
            producer.poll(0)
        expect("kafka: left to publish", producer.flush(60), 0)
        expect("kafka: problems", problems, [])

    def unsettled(self) -> int:
        consumer = Consumer({**self._settings, "group.id": GROUP, "enable.auto.commit": False})
        try:
            found = consumer.committed([TopicPartition(self._name, number) for number in range(PARTITIONS)], timeout=10)
            return sum(consumer.get_watermark_offsets(one, timeout=10)[1] - max(0, one.offset) for one in found)
        finally:
            consumer.close()

    def close(self) -> None:
        self._admin.delete_topics([self._name])[self._name].result(30)


class RabbitTopic:
    """A quorum queue."""

    def __init__(self, server: RabbitServer) -> None:
        self._server, self._name = server, f"orders-{uuid.uuid4().hex[:8]}"
        self.url = f"{server.address}?queue={self._name}&prefetch={PREFETCH}"
        self._do(lambda channel: channel.queue_declare(self._name, durable=True, arguments={"x-queue-type": "quorum"}))

    def publish(self, deliveries: list[dict[str, Any]]) -> None:
        def all_of_them(channel: Any) -> None:
            for message in deliveries:
                properties = pika.BasicProperties(
                    message_id=message["id"], type=message["type"], delivery_mode=pika.DeliveryMode.Persistent
                )
                channel.basic_publish("", self._name, body_of(message), properties)

        self._do(all_of_them)
        # Confirmed one by one they would take longer than the race; the queue is asked instead.
        wait_until(lambda: self.unsettled() == len(deliveries), timeout=120, message="every publication")

    def unsettled(self) -> int:
        return self._server.unsettled(self._name)

    def close(self) -> None:
        self._do(lambda channel: channel.queue_delete(self._name))

    def _do(self, act: Callable[[Any], object]) -> None:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self._server.port, heartbeat=0))
        act(connection.channel())
        connection.close()


class RedisTopic:
    """A stream, on a server that writes to its disk before it confirms."""

    def __init__(self, server: RedisServer) -> None:
        self._name = f"orders-{uuid.uuid4().hex[:8]}"
        self.url = f"{server.address}?stream={self._name}&group={GROUP}"
        self._client: Any = redis.Redis.from_url(server.address)

    def publish(self, deliveries: list[dict[str, Any]]) -> None:
        for first in range(0, len(deliveries), PREFETCH):
            with self._client.pipeline(transaction=False) as pipe:
                for message in deliveries[first : first + PREFETCH]:
                    pipe.xadd(self._name, {"body": body_of(message), "id": message["id"], "type": message["type"]})
                pipe.execute()
        expect("redis: published", self._client.xlen(self._name), len(deliveries))

    def unsettled(self) -> int:
        (group,) = self._client.xinfo_groups(self._name)
        return int(group["pending"]) + int(group["lag"])

    def close(self) -> None:
        self._client.delete(self._name)
        self._client.close()


PLACES: dict[str, tuple[Callable[[], PrivateServer], Callable[[Any], Topic]]] = {
    "kafka": (KafkaServer, KafkaTopic),
    "rabbitmq": (RabbitServer, RabbitTopic),
    "redis": (RedisServer, RedisTopic),
}


def body_of(message: dict[str, Any]) -> bytes:
    """What is on the wire."""
    return json.dumps(message["data"]).encode()
