"""MQTT 5: a lasting session, deliveries and publications with QoS 1.

Deliveries are acknowledged after the commit. The broker keeps the session while its client is away, and delivers what
was not acknowledged when its client connects again; never before. It confirms a publication with a PUBACK, which also
says where there is no subscriber.

Invariant: a packet id belongs to its connection and is soon used for another message. It is never an identity, and a
delivery is acknowledged on the very connection it came by, or not at all.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from onceward.brokers.connection import CONFIRM_SECONDS, Connection
from onceward.brokers.protocol import Arrival, Broker, BrokerUnavailable, unavailable, unconfirmed
from onceward.domain import identity
from onceward.domain.address import Address
from onceward.domain.headers import fields_of
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject

try:
    from paho.mqtt.client import MQTT_ERR_SUCCESS, Client, MQTTv5
    from paho.mqtt.enums import CallbackAPIVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.subscribeoptions import SubscribeOptions
except ImportError as error:
    raise ConfigurationError("MQTT needs: pip install 'onceward[mqtt]'") from error

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

log = logging.getLogger("onceward")

CONNECT_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 15
SHORT_LIFE_SECONDS, SHORT_LIVES, CALM_SECONDS = 2.0, 3, 2.0
"""A connection that did not last is a short one; after so many of them in a row, the next one waits so long."""
MOST_IN_HAND = 65_535
LONGEST_SESSION_SECONDS = 0xFFFF_FFFE
TOPIC = "mqtt-topic"
_CONNECTED = 0  # no packet has this number
_NEVER = ("No matching subscribers", "Topic name invalid", "Payload format invalid", "Packet too large")


class MqttTopic:
    """`mqtt://user:password@host:1883?topic=orders/%23&client=shop&prefetch=100&session_expiry=2592000`.

    The id and the type are the user properties `id` and `type`; `type="header:mqtt-topic"` takes the topic. `mqtts`
    is the same over TLS.
    """

    form = "mqtt://host:1883?topic=FILTER&client=NAME&prefetch=100&session_expiry=2592000"
    positions = False

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        self._server = address.server
        self._topic, self._client_id = address["topic"], address["client"]
        self._prefetch = address.count("prefetch", highest=MOST_IN_HAND)
        self._expiry = int(address.seconds("session_expiry", highest=LONGEST_SESSION_SECONDS))
        self.redelivery = timedelta(seconds=self._expiry)
        self._client: Client | None = None
        self._waiting: asyncio.Queue[MQTTMessage | None] = asyncio.Queue()
        self._trouble = ""
        self._known = False
        self._opened_at, self._short_lives = float("-inf"), 0
        self.name = f"{address.shown} topic {self._topic} as {self._client_id}"

    async def open(self) -> None:
        await self._calm_down()
        self._trouble = ""
        answers: asyncio.Queue[tuple[Any, bool]] = asyncio.Queue()
        self._client = client = self._prepared(answers)
        with unavailable(ValueError):  # what the client thinks of a host or topic
            async with asyncio.timeout(2 * CONNECT_SECONDS):
                await asyncio.to_thread(self._connect, client)
                client.loop_start()
                resumed = await _agreed(answers)
                # Retained messages come with a new subscription, not with each connection.
                client.subscribe(self._topic, options=SubscribeOptions(qos=1, retainHandling=1))
                await _agreed(answers)
        if self._known and not resumed:
            log.error("%s: the broker has forgotten the session, and with it what came meanwhile", self.name)
        self._known, self._opened_at = True, time.monotonic()

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        self._check()
        batch = []
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                batch.append(await self._waiting.get())
        while batch and len(batch) < limit and not self._waiting.empty():
            batch.append(self._waiting.get_nowait())
        self._check()
        return [self._arrival(message) for message in batch if message is not None]

    async def ack(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            client, message = arrival.handle
            if client is not self._check():
                raise BrokerUnavailable("the connection of this delivery is lost")
            if client.ack(message.mid, message.qos) != MQTT_ERR_SUCCESS:
                raise BrokerUnavailable("the connection is lost")

    async def nack(self, arrivals: Sequence[Arrival]) -> None:
        """MQTT has no packet for it: what was not acknowledged comes again with the next connection."""
        if arrivals:
            self._trouble = "deliveries were given back"

    async def close(self) -> None:
        leaving, self._client = self._client, None
        if leaving is not None:
            leaving.disconnect()
            await asyncio.to_thread(leaving.loop_stop)

    def _prepared(self, answers: asyncio.Queue[tuple[Any, bool]]) -> Client:
        """A client whose thread passes what happens to the event loop."""
        loop = asyncio.get_running_loop()
        # A queue of this connection's own: what another one left in an older queue must not be acknowledged here.
        waiting: asyncio.Queue[MQTTMessage | None] = asyncio.Queue()
        self._waiting = waiting
        client = prepared(self._server, self._client_id, manual_ack=True)

        def tell(function: Any, *words: Any) -> None:
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(function, *words)

        def lost(reason: Any) -> None:
            if client is self._client:
                self._trouble = self._trouble or str(reason)
            answers.put_nowait((reason, False))
            waiting.put_nowait(None)  # wakes up `next`

        client.on_connect = lambda _, __, flags, reason, ___: tell(answers.put_nowait, (reason, flags.session_present))
        client.on_subscribe = lambda _, __, ___, reasons, ____: tell(answers.put_nowait, (reasons[0], True))
        client.on_disconnect = lambda _, __, ___, reason, ____: tell(lost, reason)
        client.on_message = lambda _, __, message: tell(waiting.put_nowait, message)
        return client

    async def _calm_down(self) -> None:
        """Two readers with one name throw each other out; not every broker tells them that it is so."""
        short = time.monotonic() - self._opened_at < SHORT_LIFE_SECONDS
        self._short_lives = self._short_lives + 1 if short else 0
        if self._short_lives >= SHORT_LIVES:
            log.warning(
                "%s: the connection is lost again and again; check that no other process reads with the same client=",
                self.name,
            )
            await asyncio.sleep(CALM_SECONDS)

    def _connect(self, client: Client) -> None:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self._expiry
        properties.ReceiveMaximum = self._prefetch
        connect(client, self._server, clean=False, properties=properties)

    def _check(self) -> Client:
        """The client, while it is connected."""
        if self._client is None or self._trouble or not self._client.is_connected():
            raise BrokerUnavailable(self._trouble or "the connection is lost")
        return self._client

    def _arrival(self, message: MQTTMessage) -> Arrival:
        properties = message.properties
        headers = dict(getattr(properties, "UserProperty", None) or [])
        if content_type := getattr(properties, "ContentType", None):
            headers.setdefault("content-type", content_type)
        headers[TOPIC] = message.topic
        content = hashlib.sha256(json.dumps(sorted(headers.items())).encode() + message.payload)
        return Arrival(
            body=bytes(message.payload),
            headers=headers,
            handle=(self._client, message),
            position=f"mqtt:{self._client_id}/{content.hexdigest()}",
            id=headers.get("id"),
            type=headers.get("type"),
        )


class MqttSink:
    """`mqtt://user:password@host:1883?topic=orders/paid`; without a topic it is the message's type.

    The id and the type are the user properties `id` and `type`. `mqtts` is the same over TLS.
    """

    form = "mqtt://host:1883?topic="

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        self._topic, self._where = address["topic"], address.shown
        self._connection = Connection(lambda: _Publisher(address.server), _Publisher.close)

    def publish(self, message: Message) -> None:
        topic, publisher = self._topic or message.type, None
        with unconfirmed(self._where):
            try:
                publisher = self._connection.get()
                answer = publisher.publish(topic, message)
            except OSError:  # first: a certificate that is not known is a ValueError, too
                self._connection.drop(publisher)
                raise
            except ValueError as wrong:  # wildcards in a topic, and the like
                raise Reject(f"{self._where}: {topic!r} cannot be published to: {wrong}") from wrong
        if answer in _NEVER:
            raise Reject(f"{self._where}: {answer} for the topic {topic!r}; correct that, then redrive")
        if answer != "Success":
            raise ConnectionError(f"{self._where} refused: {answer}")

    def close(self) -> None:
        self._connection.close()


BROKER = Broker(MqttTopic, MqttSink)


class _Publisher:
    """A connection, and the threads that wait for the broker's answers on it.

    Each has a name of its own, so that nothing of an older one goes out: the relay says what does, and in which order.
    No lock is held while the client is called, since it calls back holding its own; `setdefault` is atomic.
    """

    def __init__(self, server: str) -> None:
        self._client = prepared(server, f"onceward-{identity.new_id()[:12]}")
        self._answers: dict[int, Future[Any]] = {}
        self._lost = False
        connected = self._answers[_CONNECTED] = Future()
        self._client.on_connect = lambda _, __, ___, reason, ____: connected.set_result(reason)
        self._client.on_publish = lambda _, __, number, reason, ___: self._answer(number).set_result(reason)
        self._client.on_disconnect = lambda _, __, ___, reason, ____: self._lose(reason)
        connect(self._client, server)
        self._client.loop_start()
        try:
            reason = connected.result(CONFIRM_SECONDS)
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
    """Return a client with a name that connects once."""
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


async def _agreed(answers: asyncio.Queue[tuple[Any, bool]]) -> bool:
    """Wait until the broker agrees to a request; returns whether it knew the session."""
    reason, resumed = await answers.get()
    if reason.is_failure or reason.getName() in ("Granted QoS 0", "Normal disconnection"):
        raise BrokerUnavailable(f"the broker answered: {reason}")
    return resumed
