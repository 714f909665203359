"""Apache Pulsar: a key-shared subscription, acknowledged after the commit; publications that the broker confirms.

The client's calls block, so they run in threads, one after another. It connects again by itself, and then the broker
delivers again whatever was not acknowledged; message ids are the same on every connection, so an acknowledgement names
its message and no other. While it is not connected a `next` says so: we connect again sooner than it does.

Invariant: the topic is its owner's; we make the subscription alone, from the topic's beginning.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from onceward.brokers.connection import Connection
from onceward.brokers.protocol import Arrival, Broker, BrokerUnavailable, unavailable, unconfirmed
from onceward.domain.address import Address
from onceward.domain.headers import fields_of
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject

try:
    import certifi  # the client brings it along
    import pulsar
    from pulsar.exceptions import (
        InvalidMessage,
        InvalidTopicName,
        MessageTooBig,
        PulsarException,
        Timeout,
        TopicNotFound,
        TopicTerminated,
    )
except ImportError as error:
    raise ConfigurationError("Apache Pulsar needs: pip install 'onceward[pulsar]'") from error

CALL_SECONDS, CONFIRM_SECONDS = 5, 5.0
MORE_SECONDS = 0.02
"""How long a batch that has begun waits to become larger."""
_NEVER = (InvalidMessage, InvalidTopicName, MessageTooBig, TopicNotFound, TopicTerminated)
"""What waiting does not cure."""


class PulsarSubscription:
    """`pulsar://host:6650?topic=orders&subscription=shop`; `pulsar+ssl://TOKEN@host:6651?...` is TLS with a token.

    The id is the property `id`, the type the property `type`; `id="position"` takes Pulsar's own message id.
    """

    form = "pulsar://host:6650?topic=NAME&subscription=onceward&nack_delay=1&prefetch=200"
    redelivery = timedelta(days=30)
    """As long as the topic keeps a message, which only its owner knows; declare your own where it is longer."""
    positions = True

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        self._address, self._topic, self._subscription = address, address["topic"], address["subscription"]
        self._nack_delay = address.seconds("nack_delay")
        self._prefetch = address.count("prefetch", highest=100_000)
        self._client: Any = None
        self._consumer: Any = None
        self.name = f"{address.shown} topic {self._topic}"

    async def open(self) -> None:
        with unavailable(PulsarException):
            await asyncio.to_thread(self._open)

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        with unavailable(PulsarException):
            return await asyncio.to_thread(self._next, self._opened(), limit, seconds)

    async def ack(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle("acknowledge", arrivals)

    async def nack(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle("negative_acknowledge", arrivals)

    async def close(self) -> None:
        consumer, client, self._consumer, self._client = self._consumer, self._client, None, None
        if client is not None:
            await asyncio.to_thread(_leave, client, consumer)

    def _open(self) -> None:
        self._client = connected(self._address)
        try:
            self._consumer = self._client.subscribe(
                self._topic,
                self._subscription,
                consumer_type=pulsar.ConsumerType.KeyShared,
                initial_position=pulsar.InitialPosition.Earliest,  # what was there before us must not be missed
                receiver_queue_size=self._prefetch,
                negative_ack_redelivery_delay_ms=int(self._nack_delay * 1000),
                batch_index_ack_enabled=True,
            )
        except PulsarException as trouble:
            raise _explained(trouble, self._address) from trouble

    def _next(self, consumer: Any, limit: int, seconds: float) -> list[Arrival]:
        found: list[Arrival] = []
        end = time.monotonic() + seconds
        while len(found) < limit:
            left = end - time.monotonic()
            try:
                found.append(self._arrival(consumer.receive(max(1, int(left * 1000)))))
            except Timeout:
                break
            if len(found) == 1:
                end = time.monotonic() + MORE_SECONDS
        if not found and not consumer.is_connected():
            raise BrokerUnavailable("the connection is lost")
        return found

    async def _settle(self, call: str, arrivals: Sequence[Arrival]) -> None:
        consumer = self._opened()

        def settle() -> None:
            for arrival in arrivals:
                getattr(consumer, call)(arrival.handle)

        with unavailable(PulsarException):
            await asyncio.to_thread(settle)

    def _opened(self) -> Any:
        if self._consumer is None:
            raise BrokerUnavailable("not connected")
        return self._consumer

    def _arrival(self, message: Any) -> Arrival:
        headers = {name.lower(): value for name, value in message.properties().items()}
        keys = {"pulsar-key": message.partition_key(), "pulsar-ordering-key": message.ordering_key()}
        place = message.message_id()
        numbers = (place.ledger_id(), place.entry_id(), place.partition(), place.batch_index())
        return Arrival(
            body=bytes(message.data()),
            headers={**headers, **{name: key for name, key in keys.items() if key}},
            handle=place,
            position=f"pulsar:{self._topic}/{':'.join(map(str, numbers))}",
            id=headers.get("id"),
            type=headers.get("type"),
        )


class PulsarSink:
    """`pulsar://host:6650?topic=orders`; without a topic it is the message's type.

    The id and the type are the properties `id` and `type`, the partition key is the message's key.
    """

    form = "pulsar://host:6650?topic="

    def __init__(self, url: str) -> None:
        self._address = Address.of(url, self.form)
        self._topic, self._where = self._address["topic"], self._address.shown
        self._connection: Connection[Producers] = Connection(lambda: Producers(self._address), Producers.close)

    def publish(self, message: Message) -> None:
        topic = self._topic or message.type
        producers = None
        with unconfirmed(self._where, PulsarException):
            try:
                producers = self._connection.get()
                producers.of(topic).send(message.body, fields_of(message), partition_key=message.key)
            except _NEVER as refused:
                problem = f"{type(refused).__name__} for the topic {topic!r}: {refused}"
                raise Reject(f"{self._where}: {problem}; correct that, then redrive") from refused
            except PulsarException as trouble:
                self._connection.drop(producers)  # it would wait longer each time before it connects again
                raise _explained(trouble, self._address) from trouble

    def close(self) -> None:
        self._connection.close()


class Producers:
    """A connection, and a producer for each topic, for all threads."""

    def __init__(self, address: Address) -> None:
        self._client, self._guard = connected(address), threading.Lock()
        self._made: dict[str, Any] = {}

    def of(self, topic: str) -> Any:
        """Return the producer of a topic."""
        with self._guard:
            if topic not in self._made:
                self._made[topic] = self._client.create_producer(topic, send_timeout_millis=int(CONFIRM_SECONDS * 1000))
            return self._made[topic]

    def close(self) -> None:
        """Disconnect."""
        self._client.shutdown()


BROKER = Broker(PulsarSubscription, PulsarSink)


def connected(address: Address) -> Any:
    """Return a client; it connects when it is used."""
    parts = urlsplit(address.server)
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    token = unquote(password or user)
    options: dict[str, Any] = {}
    if token:
        options["authentication"] = pulsar.AuthenticationToken(token)
    if parts.scheme == "pulsar+ssl":
        options |= {"tls_trust_certs_file_path": _roots(), "tls_validate_hostname": True}
    return pulsar.Client(
        f"{parts.scheme}://{address.host}",
        operation_timeout_seconds=CALL_SECONDS,
        connection_timeout_ms=CALL_SECONDS * 1000,
        # It would write to the standard output, of the program's and not ours.
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
        **options,
    )


def _leave(client: Any, consumer: Any) -> None:
    """Send what is acknowledged and not sent yet, then go; a broker that is away is not waited for."""
    if consumer is not None and consumer.is_connected():
        with suppress(PulsarException):
            consumer.close()
    client.shutdown()


def _roots() -> str:
    """The file with the certificates that are believed; the client looks for none of the system by itself."""
    return os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile or certifi.where()


def _explained(trouble: Exception, address: Address) -> Exception:
    """The same error with its reason: of a certificate or a token that is refused, the client says nothing but that."""
    parts = urlsplit(address.server)
    where = (parts.hostname or "", parts.port or (6651 if parts.scheme == "pulsar+ssl" else 6650))
    try:
        with socket.create_connection(where, timeout=CALL_SECONDS) as plain:
            if parts.scheme == "pulsar+ssl":
                context = ssl.create_default_context(cafile=_roots())
                context.wrap_socket(plain, server_hostname=where[0]).close()
    except OSError as reason:
        return reason
    if isinstance(trouble, Timeout) and parts.username is not None:
        return TimeoutError("the address can be reached, but no broker there is ready and accepts the token")
    return trouble
