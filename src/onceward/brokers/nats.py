"""NATS JetStream: a durable pull consumer with explicit acknowledgements; publications that the stream confirms.

JetStream delivers again what was not acknowledged within `ack_wait`, to any reader of the consumer. It knows a
publication that comes twice soon after another by `Nats-Msg-Id`.

Invariant: the stream is its owner's; we make the consumer alone, from the stream's beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from onceward.brokers.connection import AsyncConnection
from onceward.brokers.protocol import Arrival, Broker, BrokerUnavailable, unavailable
from onceward.domain.address import Address
from onceward.domain.headers import fields_of, header_text
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject

try:
    from nats.aio.client import Client
    from nats.errors import Error
    from nats.errors import TimeoutError as NothingCame
    from nats.js.api import AckPolicy, ConsumerConfig
    from nats.js.errors import NoStreamResponseError, NotFoundError
except ImportError as error:
    raise ConfigurationError("NATS needs: pip install 'onceward[nats]'") from error

if TYPE_CHECKING:
    from nats.js import JetStreamContext

CONNECT_SECONDS, CLOSE_SECONDS = 5, 0.5
MORE_SECONDS = 0.05
"""How long a batch that has begun waits to become larger."""
SUBJECT = "nats-subject"


class NatsStream:
    """`nats://host:4222?stream=ORDERS&durable=shop&subject=orders.paid&ack_wait=30`.

    The id is `Nats-Msg-Id` or the header `id`, the type the header `type`; `type="header:nats-subject"` takes the
    subject.
    """

    form = "nats://host:4222?stream=NAME&durable=onceward&subject=&ack_wait=30"
    redelivery = timedelta(days=30)
    """As long as the stream keeps a message, which only its owner knows; declare your own where it is longer."""
    positions = True

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        self._url, self._stream, self._durable = address.server, address["stream"], address["durable"]
        self._subject = address["subject"] or None
        self._ack_wait = address.seconds("ack_wait")
        self._connection: Any = None
        self._subscription: Any = None
        self._waiting: list[Any] = []
        self.name = f"{address.shown} stream {self._stream}"

    async def open(self) -> None:
        with unavailable(Error):
            self._connection = await connected(self._url)
            stream = self._connection.jetstream()
            try:
                await stream.consumer_info(self._stream, self._durable)
            except NotFoundError:
                await stream.add_consumer(
                    self._stream,
                    ConsumerConfig(
                        durable_name=self._durable,
                        ack_policy=AckPolicy.EXPLICIT,
                        ack_wait=self._ack_wait,
                        filter_subject=self._subject,
                    ),
                )
            self._subscription = await stream.pull_subscribe_bind(self._durable, self._stream)

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        if not self._waiting:
            self._waiting = await self._fetched(1, seconds)
            if self._waiting and limit > 1:
                self._waiting += await self._fetched(limit - 1, MORE_SECONDS)
        # The client may hand over more than was asked for: what came late for an earlier call.
        batch, self._waiting = self._waiting[:limit], self._waiting[limit:]
        return [self._arrival(message) for message in batch]

    async def ack(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle([arrival.handle.ack for arrival in arrivals])

    async def nack(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle([arrival.handle.nak for arrival in arrivals])

    async def close(self) -> None:
        leaving, self._connection, self._subscription, self._waiting = self._connection, None, None, []
        if leaving is not None:
            await leaving.close()

    def _check(self) -> None:
        if self._subscription is None or not self._connection.is_connected:
            raise BrokerUnavailable("the connection is lost")

    async def _fetched(self, count: int, seconds: float) -> list[Any]:
        self._check()
        with unavailable(Error):
            try:
                return list(await self._subscription.fetch(count, timeout=seconds))
            except NothingCame:
                # A consumer that was deleted, or a server that stopped answering, looks the same; asking tells.
                await self._connection.jetstream().consumer_info(self._stream, self._durable)
                return []

    async def _settle(self, calls: Sequence[Any]) -> None:
        """Send acknowledgements, and wait until the server has them."""
        self._check()
        with unavailable(Error):
            for call in calls:
                await call()
            await self._connection.flush(CONNECT_SECONDS)

    def _arrival(self, message: Any) -> Arrival:
        headers = {name.lower(): value for name, value in (message.headers or {}).items()}
        place = message.metadata.sequence.stream
        return Arrival(
            body=bytes(message.data),
            headers={**headers, SUBJECT: message.subject},
            handle=message,
            position=f"nats:{self._stream}/{place}",
            id=headers.get("nats-msg-id") or headers.get("id"),
            type=headers.get("type"),
        )


class NatsSink:
    """`nats://host:4222?subject=orders.paid`; without a subject it is the message's type.

    The id is `Nats-Msg-Id`, the type the header `type`. What is not plain ASCII in them is percent-encoded.
    """

    form = "nats://host:4222?subject="

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        server, self._subject, self._where = address.server, address["subject"], address.shown
        self._connection: AsyncConnection[Client] = AsyncConnection(
            self._where, lambda: connected(server), Client.close, (Error,)
        )

    def publish(self, message: Message) -> None:
        subject = self._subject or message.type
        headers = {name: header_text(value) for name, value in fields_of(message).items()}
        headers["Nats-Msg-Id"] = headers.pop("id")

        async def confirmed(connection: Client) -> None:
            stream = connection.jetstream()
            try:
                await stream.publish(subject, message.body, headers=headers)
            except NoStreamResponseError:  # a server that has just started says so, too
                if not await _is_taken(stream, subject):
                    problem = f"{self._where}: no stream takes the subject {subject!r}; make one, then redrive"
                    raise Reject(problem) from None
                raise

        self._connection.use(confirmed)

    def close(self) -> None:
        self._connection.close()


BROKER = Broker(NatsStream, NatsSink)


async def connected(url: str) -> Client:
    """Return a connection that does not come back by itself; a server that is away is an error soon."""

    async def heard(_: Exception) -> None:
        """Whatever it is, the next call raises it."""

    client = Client()
    try:
        await client.connect(
            **_credentials(url),
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=CONNECT_SECONDS,
            error_cb=heard,
        )
    except BaseException:
        # It may have left the connection open on which it was refused; one without TLS yet never says that it closed.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await client.close()
        raise
    return client


def _credentials(url: str) -> dict[str, Any]:
    """The server and the login: the client takes what is in a URL as it stands, escapes and all."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    found: dict[str, Any] = {"servers": parts._replace(netloc=host).geturl()}
    user, is_pair, password = login.partition(":")
    if is_pair:
        found |= {"user": unquote(user), "password": unquote(password)}
    elif user:
        found |= {"token": unquote(user)}
    return found


async def _is_taken(stream: JetStreamContext, subject: str) -> bool:
    try:
        await stream.find_stream_name_by_subject(subject)
    except NotFoundError:
        return False
    return True
