"""MQTT 5 as the destination: QoS 1, confirmed by the broker's PUBACK, which also says where nobody has subscribed."""

from __future__ import annotations

import ssl
import threading
from concurrent.futures import Future
from typing import Any
from urllib.parse import unquote, urlsplit

from onceward.domain import identity
from onceward.domain.address import Address
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject
from onceward.sinks.headers import fields_of
from onceward.sinks.loop import CONFIRM_SECONDS

try:
    from paho.mqtt.client import MQTT_ERR_SUCCESS, Client, MQTTv5
    from paho.mqtt.enums import CallbackAPIVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
except ImportError as error:
    raise ConfigurationError("MQTT needs: pip install 'onceward[mqtt]'") from error

CONNECT_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 15
FORM = "mqtt://host:1883?topic="
_GREETING = 0  # no packet has this number
_NEVER = ("No matching subscribers", "Topic name invalid", "Payload format invalid", "Packet too large")


class MqttSink:
    """`mqtt://user:password@host:1883?topic=orders/paid`; without a topic it is the message's type.

    The id and the type are the user properties `id` and `type`. `mqtts` is the same over TLS.
    """

    def __init__(self, url: str) -> None:
        address = Address.of(url, FORM)
        self._server, self._topic, self._where = address.server, address["topic"], address.shown
        self._guard = threading.Lock()
        self._line: _Line | None = None

    def publish(self, message: Message) -> None:
        topic, line = self._topic or message.type, None
        try:
            line = self._connected()
            answer = line.publish(topic, message)
        except (OSError, TimeoutError) as trouble:  # first: a certificate that is not known is a ValueError, too
            self._drop(line)
            raise ConnectionError(f"{self._where} did not confirm: {type(trouble).__name__}: {trouble}") from trouble
        except ValueError as wrong:  # wildcards in a topic, and the like
            raise Reject(f"{self._where}: {topic!r} cannot be published to: {wrong}") from wrong
        if answer in _NEVER:
            raise Reject(f"{self._where}: {answer} for the topic {topic!r}; cure that, then redrive")
        if answer != "Success":
            raise ConnectionError(f"{self._where} refused: {answer}")

    def close(self) -> None:
        self._drop(self._line)

    def _connected(self) -> _Line:
        with self._guard:
            if self._line is None:
                self._line = _Line(self._server)
            return self._line

    def _drop(self, line: _Line | None) -> None:
        with self._guard:
            if self._line is line:  # and not one that was made since
                self._line = None
        if line is not None:
            line.close()


class _Line:
    """A connection, and whoever waits for it.

    Each has a name of its own, so that nothing of an older one goes out: the relay says what does, and in which order.
    No lock is held while the client is called, since it calls back holding its own; `setdefault` is atomic.
    """

    def __init__(self, server: str) -> None:
        self._client = prepared(server, f"onceward-{identity.new_id()[:12]}")
        self._answers: dict[int, Future[Any]] = {}
        self._lost = False
        greeting = self._answers[_GREETING] = Future()
        self._client.on_connect = lambda _, __, ___, reason, ____: greeting.set_result(reason)
        self._client.on_publish = lambda _, __, number, reason, ___: self._answer(number).set_result(reason)
        self._client.on_disconnect = lambda _, __, ___, reason, ____: self._lose(reason)
        connect(self._client, server)
        self._client.loop_start()
        try:
            reason = greeting.result(CONFIRM_SECONDS)
            if reason.is_failure:
                raise ConnectionError(str(reason))
        except OSError:  # a timeout is one, too
            self.close()
            raise

    def publish(self, topic: str, message: Message) -> str:
        """Send a message, and wait for the broker's answer."""
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        fields = fields_of(message)
        properties.ContentType = fields.pop("content-type")
        properties.UserProperty = list(fields.items())
        sent = self._client.publish(topic, message.body, qos=1, properties=properties)
        answer = self._answer(sent.mid)  # it may be there already
        if sent.rc != MQTT_ERR_SUCCESS or (self._lost and not answer.done()):
            raise ConnectionError("the connection is lost")
        reason = answer.result(CONFIRM_SECONDS)
        del self._answers[sent.mid]
        return str(reason)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _answer(self, number: int) -> Future[Any]:
        return self._answers.setdefault(number, Future())

    def _lose(self, reason: Any) -> None:
        self._lost = True
        for waiting in list(self._answers.values()):
            if not waiting.done():
                waiting.set_exception(ConnectionError(str(reason)))


class _Closed(ssl.SSLSocket):
    """A socket that is closed when the other side is not trusted: the client forgets it then, open as it is."""

    def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - as its base has it
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


def prepared(server: str, name: str, *, manual_ack: bool = False) -> Client:
    """A client with a name, that connects once."""
    parts = urlsplit(server)
    client = Client(
        CallbackAPIVersion.VERSION2, name, protocol=MQTTv5, manual_ack=manual_ack, reconnect_on_failure=False
    )
    client.connect_timeout = CONNECT_SECONDS
    if parts.username is not None:
        client.username_pw_set(unquote(parts.username), unquote(parts.password or ""))
    if parts.scheme == "mqtts":
        context = ssl.create_default_context()
        context.sslsocket_class = _Closed
        client.tls_set_context(context)
    return client


def connect(client: Client, server: str, *, clean: bool = True, properties: Properties | None = None) -> None:
    """Connect a client; the broker's answer comes to its `on_connect`."""
    parts = urlsplit(server)
    port = parts.port or (8883 if parts.scheme == "mqtts" else 1883)
    client.connect(parts.hostname or "", port, KEEP_ALIVE_SECONDS, clean_start=clean, properties=properties)
