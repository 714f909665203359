"""Our brokers as the shipped suite needs them: publish, look, kill, cut."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

import pika
import redis
from nats.js.errors import NotFoundError
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from onceward.brokers.connection import LoopThread
from onceward.brokers.nats import connected
from onceward.testing import broker_suite
from tests.servers import FaultProxy, KafkaMock, MosquittoServer, NatsServer, RabbitServer, RedisServer
from tests.servers.foreign import ForeignServer
from tests.servers.private import PrivateServer
from tests.waiting import wait_until


class Broker(broker_suite.Broker, Protocol):
    """What the contract needs of a broker, and which server it is, for the record."""

    @property
    def server(self) -> PrivateServer | KafkaMock | ForeignServer:
        """Where it is."""


class RedisBroker:
    """A stream on a private Redis."""

    positions = True
    readers = 2

    def __init__(self, server: RedisServer | ForeignServer) -> None:
        self.server, self.stream = server, f"orders-{uuid.uuid4().hex[:8]}"
        self.client: Any = redis.Redis.from_url(server.address)
        self.proxy = FaultProxy(server.host, server.port).start()

    def url(self, *, proxied: bool = False) -> str:
        return f"{_address(self, proxied)}?stream={self.stream}&group=shop&claim_after=1"

    def publish(self, body: bytes, *, id: str | None = None, type: str | None = None, **headers: str) -> None:  # noqa: A002
        names = {name: value for name, value in (("id", id), ("type", type)) if value is not None}
        self.client.xadd(self.stream, {"body": body, **names, **dashed(headers)})

    def publish_fields(self, fields: Mapping[str, str]) -> None:
        self.client.xadd(self.stream, dict(fields))

    def unsettled(self) -> int:
        groups = self.client.xinfo_groups(self.stream) if self.client.exists(self.stream) else []
        if not groups:
            return int(self.client.xlen(self.stream))
        (group,) = groups
        unread = len(self.client.xrange(self.stream, f"({group['last-delivered-id'].decode()}", "+"))
        return int(group["pending"]) + unread

    def consumers(self) -> int:
        return int(self.client.xinfo_groups(self.stream)[0]["consumers"])

    def trim(self) -> None:
        self.client.xtrim(self.stream, maxlen=0)

    def forget_everything(self) -> None:
        """As a Redis that came back without its data."""
        self.client.delete(self.stream)

    def restart(self) -> None:
        self.server.restart()

    def another(self) -> RedisBroker:
        return RedisBroker(self.server)

    def close(self) -> None:
        self.client.delete(self.stream)
        self.client.close()
        self.proxy.close()


class NatsBroker:
    """A stream on a private NATS server."""

    positions = True
    readers = 2

    def __init__(self, server: NatsServer | ForeignServer) -> None:
        self.server, self._stream = server, f"orders-{uuid.uuid4().hex[:8]}"
        self.subject = f"{self._stream}.paid"
        self.proxy = FaultProxy(server.host, server.port).start()
        self._thread = LoopThread("producer")
        self._connection: Any = None
        self.make_stream()

    def url(self, *, proxied: bool = False) -> str:
        return f"{_address(self, proxied)}?stream={self._stream}&durable=shop&ack_wait=1"

    def publish(self, body: bytes, *, id: str | None = None, type: str | None = None, **headers: str) -> None:  # noqa: A002
        # Not Nats-Msg-Id: the server itself would drop what is sent twice soon after.
        names = {name: value for name, value in (("id", id), ("type", type)) if value is not None}
        self._do(lambda stream: stream.publish(self.subject, body, headers={**names, **dashed(headers)}))

    def unsettled(self) -> int:
        async def count(stream: Any) -> int:
            try:
                consumer = await stream.consumer_info(self._stream, "shop")
            except NotFoundError:
                return int((await stream.stream_info(self._stream)).state.messages)
            return int(consumer.num_pending + consumer.num_ack_pending)

        return int(self._do(count))

    def messages(self) -> list[Any]:
        """Everything in the stream, in order."""

        async def read(stream: Any) -> list[Any]:
            state = (await stream.stream_info(self._stream)).state
            if not state.messages:
                return []
            return [await stream.get_msg(self._stream, place) for place in range(state.first_seq, state.last_seq + 1)]

        found: list[Any] = self._do(read)
        return found

    def make_stream(self) -> None:
        self._do(lambda stream: stream.add_stream(name=self._stream, subjects=[f"{self._stream}.>"]))

    def delete_stream(self) -> None:
        self._do(lambda stream: stream.delete_stream(self._stream))

    def restart(self) -> None:
        self._leave()
        self.server.restart()

    def another(self) -> NatsBroker:
        return NatsBroker(self.server)

    def close(self) -> None:
        self.delete_stream()
        self._leave()
        self._thread.close()
        self.proxy.close()

    def _do(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        async def done() -> Any:
            if self._connection is None:
                self._connection = await connected(self.server.address)
            return await work(self._connection.jetstream())

        return self._thread.run(done())

    def _leave(self) -> None:
        leaving, self._connection = self._connection, None
        if leaving is not None:
            self._thread.run(leaving.close())


class RabbitBroker:
    """A quorum queue on a private RabbitMQ."""

    positions = False
    readers = 2

    def __init__(self, server: RabbitServer) -> None:
        self.server, self.queue = server, f"orders-{uuid.uuid4().hex[:8]}"
        self.proxy = FaultProxy(server.host, server.port).start()
        self._connection: Any = None
        self._channel: Any = None
        self.make_queue()

    def url(self, *, proxied: bool = False) -> str:
        return f"{_address(self, proxied)}?queue={self.queue}&prefetch=50"

    def publish(self, body: bytes, *, id: str | None = None, type: str | None = None, **headers: Any) -> None:  # noqa: A002
        properties = pika.BasicProperties(
            message_id=id,
            type=type,
            content_type=headers.pop("content_type", None),
            headers=dashed(headers),
            delivery_mode=pika.DeliveryMode.Persistent,
        )
        # A quorum queue that was made a moment ago may say no, until it has a leader.
        wait_until(lambda: self._confirmed(body, properties), message=f"{self.queue} to take a message")

    def _confirmed(self, body: bytes, properties: pika.BasicProperties) -> bool:
        try:
            self.channel.basic_publish("", self.queue, body, properties, mandatory=True)
        except pika.exceptions.NackError:
            return False
        return True

    def unsettled(self) -> int:
        return self.server.unsettled(self.queue)

    def make_queue(self) -> None:
        self.channel.queue_declare(self.queue, durable=True, arguments={"x-queue-type": "quorum"})

    def delete_queue(self) -> None:
        self.channel.queue_delete(self.queue)

    def has_queue(self) -> bool:
        try:
            self.channel.queue_declare(self.queue, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            self._leave()
            return False
        return True

    @property
    def channel(self) -> Any:
        """Another client than the one that is tested."""
        if self._connection is None:
            parameters = pika.ConnectionParameters("127.0.0.1", self.server.port, heartbeat=0)
            self._connection = pika.BlockingConnection(parameters)
            self._channel = self._connection.channel()
            self._channel.confirm_delivery()
        return self._channel

    def restart(self) -> None:
        self._leave()
        self.server.restart()
        self.unsettled()  # answers when the queue is there again

    def another(self) -> RabbitBroker:
        return RabbitBroker(self.server)

    def close(self) -> None:
        self.delete_queue()
        self._leave()
        self.proxy.close()

    def _leave(self) -> None:
        leaving, self._connection = self._connection, None
        if leaving is not None:
            leaving.close()


class MqttBroker:
    """A topic, and a session that keeps its messages, on a private Mosquitto."""

    positions = False
    readers = 1

    def __init__(self, server: MosquittoServer) -> None:
        number = uuid.uuid4().hex[:8]
        self.server, self.topic, self.client = server, f"orders/{number}", f"shop-{number}"
        self.proxy = FaultProxy(server.host, server.port).start()
        self._producer: Any = None
        self.make_session()

    def url(self, *, proxied: bool = False) -> str:
        return f"{_address(self, proxied)}?topic={self.topic}/%23&client={self.client}&prefetch=50"

    def publish(self, body: bytes, *, id: str | None = None, type: str | None = None, **headers: str) -> None:  # noqa: A002
        self.publish_to(f"{self.topic}/paid", body, id=id, type=type, **headers)

    def publish_to(self, topic: str, body: bytes, **headers: str | None) -> None:
        retain, qos = bool(headers.pop("retain", None)), int(headers.pop("qos", None) or 1)
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if content_type := headers.pop("content_type", None):
            properties.ContentType = content_type
        properties.UserProperty = [(name, value) for name, value in dashed(headers).items() if value is not None]
        if self._producer is None:
            self._producer = self.connected(f"{self.client}-producer", clean=True)
        self._producer.publish(topic, body, qos, retain, properties).wait_for_publish(10)

    def unsettled(self) -> int:
        return self.server.unsettled(self.client)

    def make_session(self) -> None:
        """MQTT keeps messages for those who subscribed before they were sent."""
        subscribed = threading.Event()
        client = self.connected(self.client, on_subscribe=lambda *_: subscribed.set())
        client.subscribe(f"{self.topic}/#", options=SubscribeOptions(qos=1))
        assert subscribed.wait(10)
        self.leave(client)

    def forget_session(self) -> None:
        """As a broker that lost its data, or after the session's time."""
        self.leave(self.connected(self.client, clean=True))

    def restart(self) -> None:
        self.leave(self._producer)
        self._producer = None
        self.server.restart()

    def another(self) -> MqttBroker:
        return MqttBroker(self.server)

    def close(self) -> None:
        self.leave(self._producer)
        self.forget_session()
        self.proxy.close()

    def connected(self, name: str, *, clean: bool = False, **callbacks: Any) -> Any:
        client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTv5, manual_ack=True)
        for callback, function in callbacks.items():
            setattr(client, callback, function)
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 0 if clean else 3600
        client.connect("127.0.0.1", self.server.port, clean_start=clean, properties=properties)
        client.loop_start()
        wait_until(client.is_connected)
        return client

    def leave(self, client: Any) -> None:
        if client is not None:
            client.disconnect()
            client.loop_stop()


def _address(broker: Broker, proxied: bool) -> str:  # noqa: FBT001 - as the callers got it
    """Where a broker is found, or its proxy with the same credentials and path."""
    if not proxied:
        return broker.server.address
    parts = urlsplit(broker.server.address)
    user, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}{at}127.0.0.1:{broker.proxy.port}").geturl()


def dashed(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Headers as they are spelt on the wire."""
    return {name.replace("_", "-"): value for name, value in headers.items()}
