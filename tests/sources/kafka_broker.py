"""What the contract needs of Kafka."""

from __future__ import annotations

import time
import uuid
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from confluent_kafka.cimpl import NewTopic

from tests.servers import FaultProxy, KafkaMock, KafkaServer
from tests.servers.foreign import ForeignServer
from tests.sources.brokers import dashed
from tests.waiting import wait_until

PARTITIONS = 3


class KafkaBroker:
    """A topic on a private Kafka, or on the user's."""

    positions = True
    readers = 2

    def __init__(self, server: KafkaServer | KafkaMock | ForeignServer, partitions: int = PARTITIONS) -> None:
        self.server = server
        self.topic, self.group = f"orders-{uuid.uuid4().hex[:8]}", f"shop-{uuid.uuid4().hex[:8]}"
        self._settings: dict[str, Any] = {
            "bootstrap.servers": f"{server.host}:{server.port}",
            "log_level": 2,
            "error_cb": lambda _: None,
            "reconnect.backoff.max.ms": 200,
        }
        self._admin = AdminClient(self._settings)
        self._producer = Producer({**self._settings, "linger.ms": 0})
        self._look = Consumer({**self._settings, "group.id": self.group, "enable.auto.commit": False})
        self.make_topic(partitions)

    @property
    def proxy(self) -> FaultProxy:
        """The proxy that a broker of ours advertises; clients of any other would go round it."""
        if not isinstance(self.server, KafkaServer):
            raise TypeError(f"there is no proxy before {self.server.name}: mark the case with needs('proxy')")
        return self.server.proxy

    def make_topic(self, partitions: int = PARTITIONS) -> None:
        if isinstance(self.server, KafkaMock):
            self.server.make_topic(self.topic, partitions)
        else:
            self._admin.create_topics([NewTopic(self.topic, partitions, 1)])[self.topic].result(30)
        self._partitions = [TopicPartition(self.topic, number) for number in range(partitions)]
        # The first to ask for the offsets makes the topic where Kafka keeps them.
        wait_until(lambda: self._committed() is not None)

    def delete_topic(self) -> None:
        self._admin.delete_topics([self.topic])[self.topic].result(30)
        wait_until(lambda: self.topic not in self._admin.list_topics(timeout=10).topics)

    def url(self, *, proxied: bool = False) -> str:
        where = f"127.0.0.1:{self.proxy.port}" if proxied else f"{self.server.host}:{self.server.port}"
        return f"kafka://{where}?topic={self.topic}&group={self.group}&session=2"

    def publish(self, body: bytes | None, *, id: str | None = None, type: str | None = None, **headers: str) -> None:  # noqa: A002
        names = {name: value for name, value in (("id", id), ("type", type)) if value is not None}
        self.produce(body, headers={**names, **dashed(headers)})

    def produce(self, body: bytes | None, **options: Any) -> None:
        """Publish, and wait for the confirmation; in one partition unless told otherwise, as records of a key are."""
        problems: list[Any] = []
        options.setdefault("partition", 0)
        self._producer.produce(self.topic, body, on_delivery=lambda error, _: problems.append(error), **options)
        assert self._producer.flush(30) == 0
        assert problems == [None]

    def transaction(self, name: str) -> Producer:
        """A producer in the middle of a transaction of that name."""
        producer = Producer({**self._settings, "transactional.id": name})
        producer.init_transactions(30)
        producer.begin_transaction()
        return producer

    def make_user(self, name: str, password: str) -> None:
        """One who proves the password with SCRAM."""
        told = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wish = UserScramCredentialUpsertion(name, told, password.encode())
        self._admin.alter_user_scram_credentials([wish])[name].result(30)

    def records(self) -> list[tuple[str, str, bytes]]:
        """Id, type and body of everything in the topic, in order within each partition."""
        return [(headers["id"].decode(), headers["type"].decode(), body) for headers, body in self.raw_records()]

    def raw_records(self) -> list[tuple[dict[str, bytes], bytes]]:
        """Headers and body of everything in the topic, in order within each partition."""
        reader = Consumer({**self._settings, "group.id": uuid.uuid4().hex, "enable.auto.commit": False})
        ends = {one.partition: reader.get_watermark_offsets(one, timeout=10) for one in self._partitions}
        reader.assign([TopicPartition(self.topic, number, low) for number, (low, _) in ends.items()])
        wanted = sum(high - low for low, high in ends.values())
        found: list[tuple[dict[str, bytes], bytes]] = []
        while len(found) < wanted:
            for record in reader.consume(wanted - len(found), 1.0):
                headers: Any = dict(record.headers() or ())
                found.append((headers, record.value() or b""))
        reader.close()
        return found

    def unsettled(self) -> int:
        time.sleep(0.1)  # paces those who ask again and again: a look costs more than the wait. It decides nothing
        committed = self._committed()
        assert committed is not None
        return sum(self._look.get_watermark_offsets(one, timeout=10)[1] - max(0, one.offset) for one in committed)

    def _committed(self) -> list[Any] | None:
        try:
            found: list[Any] = self._look.committed(self._partitions, timeout=10)
        except KafkaException:
            return None
        return found

    def another(self) -> KafkaBroker:
        return type(self)(self.server)

    def restart(self) -> None:
        self.server.restart()

    def close(self) -> None:
        if isinstance(self.server, KafkaServer):
            self.proxy.heal()
        if isinstance(self.server, ForeignServer):
            self.delete_topic()
        self._look.close()


class KafkaMockBroker(KafkaBroker):
    """A topic that librdkafka plays; the record of the contracts tells it from Kafka."""
