"""MQTT 5: a lasting session whose deliveries (QoS 1) are acknowledged after the commit.

The broker keeps the session while nobody is connected, and delivers what was not acknowledged when its client connects
again; never before.

Invariant: a packet id belongs to its connection and is soon used for another message. It is never an identity, and a
delivery is acknowledged on the very connection it came by, or not at all.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from onceward.domain.address import Address
from onceward.errors import ConfigurationError
from onceward.sinks.mqtt import CONNECT_SECONDS, connect, prepared
from onceward.sources.protocol import Arrival, BrokerUnavailable

try:
    from paho.mqtt.client import MQTT_ERR_SUCCESS
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.subscribeoptions import SubscribeOptions
except ImportError as error:
    raise ConfigurationError("MQTT needs: pip install 'onceward[mqtt]'") from error

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

log = logging.getLogger("onceward")

SHORT_LIFE_SECONDS, SHORT_LIVES, CALM_SECONDS = 2.0, 3, 2.0
"""A connection that did not last is a short one; after so many of them in a row, the next one waits so long."""
MOST_IN_HAND = 65_535
LONGEST_SESSION_SECONDS = 0xFFFF_FFFE
TOPIC = "mqtt-topic"
FORM = "mqtt://host:1883?topic=FILTER&client=NAME&prefetch=100&session_expiry=2592000"


class MqttTopic:
    """`mqtt://user:password@host:1883?topic=orders/%23&client=shop&prefetch=100&session_expiry=2592000`.

    The id and the type are the user properties `id` and `type`; `type="header:mqtt-topic"` takes the topic. `mqtts`
    is the same over TLS.
    """

    positions = False

    def __init__(self, url: str) -> None:
        address = Address.of(url, FORM)
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
        try:
            async with asyncio.timeout(2 * CONNECT_SECONDS):
                await asyncio.to_thread(self._connect, client)
                client.loop_start()
                resumed = await _agreed(answers)
                # Retained messages come with a new subscription, not with each connection.
                client.subscribe(self._topic, options=SubscribeOptions(qos=1, retainHandling=1))
                await _agreed(answers)
        except (OSError, TimeoutError, ValueError) as trouble:  # ValueError: what the client thinks of a host or topic
            raise BrokerUnavailable(f"{type(trouble).__name__}: {trouble}") from trouble
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

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            client, message = arrival.handle
            if client is not self._check():
                raise BrokerUnavailable("the connection of this delivery is lost")
            if client.ack(message.mid, message.qos) != MQTT_ERR_SUCCESS:
                raise BrokerUnavailable("the connection is lost")

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        """MQTT has no word for it: what was not acknowledged comes again with the next connection."""
        if arrivals:
            self._trouble = "deliveries were given back"

    async def close(self) -> None:
        leaving, self._client = self._client, None
        if leaving is not None:
            leaving.disconnect()
            await asyncio.to_thread(leaving.loop_stop)

    def _prepared(self, answers: asyncio.Queue[tuple[Any, bool]]) -> Client:
        """A client whose thread tells what happens to the event loop."""
        loop = asyncio.get_running_loop()
        # A queue of this connection's own: what another one left in an older queue must not be acknowledged here.
        waiting: asyncio.Queue[MQTTMessage | None] = asyncio.Queue()
        self._waiting = waiting
        client = prepared(self._server, self._client_id, manual_ack=True)

        def tell(function: Any, *words: Any) -> None:
            with suppress(RuntimeError):  # the event loop is gone, and with it whoever would listen
                loop.call_soon_threadsafe(function, *words)

        def lost(reason: Any) -> None:
            if client is self._client:
                self._trouble = self._trouble or str(reason)
            answers.put_nowait((reason, False))
            waiting.put_nowait(None)  # wakes up whoever waits

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
            log.warning("%s is lost again and again: does another process read with the same client=?", self.name)
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


async def _agreed(answers: asyncio.Queue[tuple[Any, bool]]) -> bool:
    """Wait for the broker's yes to what was asked; answers whether it knew the session."""
    reason, resumed = await answers.get()
    if reason.is_failure or reason.getName() in ("Granted QoS 0", "Normal disconnection"):
        raise BrokerUnavailable(f"the broker answered: {reason}")
    return resumed
