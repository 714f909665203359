"""What the contract needs of Pulsar."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.error import HTTPError

import pulsar

from tests.servers import FaultProxy, PulsarServer
from tests.servers.pulsar import NAMESPACE
from tests.sources.brokers import dashed
from tests.waiting import wait_until


class PulsarBroker:
    """A topic on a private Pulsar; a `key` in the body is the partition key."""

    positions = True
    readers = 2

    def __init__(self, server: PulsarServer) -> None:
        self.server, self.topic = server, f"orders-{uuid.uuid4().hex[:8]}"
        self._client: Any = None
        self._producer: Any = None

    @property
    def proxy(self) -> FaultProxy:
        """The proxy that the broker advertises."""
        return self.server.proxy

    def url(self, *, proxied: bool = False) -> str:
        port = self.proxy.port if proxied else self.server.port
        return f"pulsar://127.0.0.1:{port}?topic={self.topic}&subscription=shop&nack_delay=1"

    def publish(self, body: bytes, *, id: str | None = None, type: str | None = None, **headers: str) -> None:  # noqa: A002
        names = {name: value for name, value in (("id", id), ("type", type)) if value is not None}
        try:
            key = json.loads(body).get("key")
        except ValueError:
            key = None
        self.producer.send(body, {**names, **dashed(headers)}, partition_key=key)

    @property
    def producer(self) -> Any:
        """Of the topic."""
        if self._producer is None:
            quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
            self._client = pulsar.Client(self.server.address, operation_timeout_seconds=20, logger=quiet)
            self._producer = self._client.create_producer(self.topic)
        return self._producer

    def send_batch(self, bodies: Sequence[bytes], properties: Mapping[str, str]) -> None:
        """Publish as one batch, or as one for each partition."""
        self.producer  # noqa: B018 - connects
        batching = self._client.create_producer(
            self.topic,
            batching_enabled=True,
            batching_max_messages=len(bodies),
            batching_max_publish_delay_ms=1000,
        )
        for body in bodies:
            batching.send_async(body, None, dict(properties))
        batching.flush()
        batching.close()

    def make_partitions(self, count: int) -> None:
        """Make the topic, in so many parts."""
        self.server.asked(f"persistent/{NAMESPACE}/{self.topic}/partitions", count)

    def unsettled(self) -> int:
        """What the subscription has not been told to forget; all there is, while nobody has subscribed."""
        for form in ("stats", "partitioned-stats"):
            try:
                found = self.server.asked(f"persistent/{NAMESPACE}/{self.topic}/{form}?getPreciseBacklog=true")
                break
            except HTTPError as error:
                if error.code != 404:
                    raise
        else:  # nobody has used the topic yet
            return 0
        subscription = found["subscriptions"].get("shop")
        return int(found["msgInCounter"] if subscription is None else subscription["msgBacklog"])

    def messages(self) -> list[tuple[str, str, bytes]]:
        """Id, type and body of everything in the topic, in order."""
        reader = self._client_of_its_own().create_reader(self.topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            one = reader.read_next(5000)
            found.append((one.properties()["id"], one.properties()["type"], bytes(one.data())))
        reader.close()
        return found

    def restart(self) -> None:
        self._leave()
        self.server.restart()
        wait_until(self._is_back)

    def another(self) -> PulsarBroker:
        return PulsarBroker(self.server)

    def close(self) -> None:
        self._leave()
        self.proxy.heal()

    def _client_of_its_own(self) -> Any:
        self.producer  # noqa: B018 - connects
        return self._client

    def _is_back(self) -> bool:
        try:
            self.unsettled()
        except OSError:
            return False
        return True

    def _leave(self) -> None:
        leaving, self._client, self._producer = self._client, None, None
        if leaving is not None:
            leaving.shutdown()
