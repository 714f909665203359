"""What the contract needs of a broker as the other side: where to publish, and what has arrived."""

from __future__ import annotations

import uuid
from typing import Any, Protocol

from onceward.testing import broker_suite
from tests.sources.brokers import Broker, MqttBroker, NatsBroker, RabbitBroker, RedisBroker
from tests.waiting import wait_until

Arrived = list[tuple[str, str, bytes]]


class Outlet(broker_suite.Outlet, Protocol):
    """What the contract needs of a broker as the other side, and which broker it is, for the record."""

    @property
    def broker(self) -> Broker:
        """The broker."""


class RedisOutlet:
    """A stream."""

    repeats = False

    def __init__(self, broker: RedisBroker) -> None:
        self.broker, self._text = broker, f"{broker.stream}-text"

    def url(self, *, proxied: bool = False) -> str:
        return f"{_server(self.broker, proxied=proxied)}?stream={self.broker.stream}"

    def nowhere(self) -> str:
        self.broker.client.set(self._text, "no stream")
        return f"{_server(self.broker)}?stream={self._text}"

    def received(self) -> Arrived:
        entries = [fields for _, fields in self.broker.client.xrange(self.broker.stream)]
        return [(fields[b"id"].decode(), fields[b"type"].decode(), fields[b"body"]) for fields in entries]

    def close(self) -> None:
        self.broker.client.delete(self._text)


class NatsOutlet:
    """A stream with a subject."""

    repeats = False

    def __init__(self, broker: NatsBroker) -> None:
        self.broker = broker

    def url(self, *, proxied: bool = False) -> str:
        return f"{_server(self.broker, proxied=proxied)}?subject={self.broker.subject}"

    def nowhere(self) -> str:
        return f"{_server(self.broker)}?subject=nowhere.{uuid.uuid4().hex}"

    def received(self) -> Arrived:
        found = self.broker.messages()
        return [(one.headers["Nats-Msg-Id"], one.headers["type"], bytes(one.data or b"")) for one in found]

    def close(self) -> None:
        """Nothing of its own."""


class RabbitOutlet:
    """A queue."""

    repeats = False

    def __init__(self, broker: RabbitBroker) -> None:
        self.broker = broker
        self._received: Arrived = []

    def url(self, *, proxied: bool = False) -> str:
        return f"{_server(self.broker, proxied=proxied)}?routing_key={self.broker.queue}"

    def nowhere(self) -> str:
        return f"{_server(self.broker)}?routing_key=nowhere-{uuid.uuid4().hex}"

    def received(self) -> Arrived:
        while True:
            frame, properties, body = self.broker.channel.basic_get(self.broker.queue, auto_ack=True)
            if frame is None:
                return self._received
            self._received.append((properties.message_id, properties.type, body))

    def close(self) -> None:
        """Nothing of its own."""


class MqttOutlet:
    """A subscriber."""

    repeats = False

    def __init__(self, broker: MqttBroker) -> None:
        self.broker = broker
        self._received: Arrived = []
        self._client = broker.connected(broker.client, on_message=lambda _, __, message: self._keep(message))

    def url(self, *, proxied: bool = False) -> str:
        return f"{_server(self.broker, proxied=proxied)}?topic={self.broker.topic}/paid"

    def nowhere(self) -> str:
        return f"{_server(self.broker)}?topic=nowhere/{uuid.uuid4().hex}"

    def received(self) -> Arrived:
        # What was confirmed is on its way to us, before whatever is published now.
        mark = uuid.uuid4().hex
        self.broker.publish(b"", id=mark, type="mark")
        wait_until(lambda: any(name == mark for name, _, _ in self._received))
        return [one for one in self._received if one[1] != "mark"]

    def close(self) -> None:
        self.broker.leave(self._client)

    def _keep(self, message: Any) -> None:
        self._client.ack(message.mid, message.qos)
        fields = dict(message.properties.UserProperty)
        self._received.append((fields["id"], fields["type"], message.payload))


def _server(broker: Broker, *, proxied: bool = False) -> str:
    return broker.url(proxied=proxied).partition("?")[0]
