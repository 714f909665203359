"""RabbitMQ: a consumer with individual acknowledgements; persistent messages with publisher confirms.

A bounded number of messages is in hand. RabbitMQ delivers again what was given back or not acknowledged when its
channel closed. It returns a publication that no queue takes.

Invariant: a delivery tag belongs to its channel and restarts with the next one. It is never an identity, and a
delivery is acknowledged on the very channel it came by, or not at all.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from onceward.brokers.connection import AsyncConnection
from onceward.brokers.protocol import Arrival, Broker, BrokerUnavailable, unavailable
from onceward.domain.address import Address
from onceward.domain.headers import text_of
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject

try:
    import aio_pika
    from aio_pika.connection import make_url
    from aio_pika.exceptions import AMQPError, ChannelInvalidStateError, ChannelNotFoundEntity, PublishError
except ImportError as error:
    raise ConfigurationError("RabbitMQ needs: pip install 'onceward[rabbitmq]'") from error

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage

    Opened: TypeAlias = tuple[AbstractConnection, AbstractExchange]

CONNECT_SECONDS = 5.0
HEARTBEAT_SECONDS = 15
MOST_IN_HAND = 65_535
SHORT_STRING_BYTES = 255
"""The most that AMQP lets a property hold."""
ROUTING_KEY, EXCHANGE = "rabbitmq-routing-key", "rabbitmq-exchange"
QUORUM = {"x-queue-type": "quorum"}
TROUBLES = (AMQPError, ChannelInvalidStateError)
_OF_THE_DELIVERY = ("x-delivery-count", "x-acquired-count")
"""Headers that the broker changes with each delivery."""


class RabbitQueue:
    """`amqp://user:password@host:5672/vhost?queue=orders&prefetch=200`.

    The id is the property `message_id`, the type the property `type`; `type="header:rabbitmq-routing-key"` takes the
    routing key. A queue that is not there is made, as a quorum queue; bindings are yours.
    """

    form = "amqp://host:5672/vhost?queue=NAME&prefetch=200"
    redelivery = timedelta(days=30)
    """As long as the queue keeps a message, which only its owner knows; declare your own where it is longer."""
    positions = False

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        self._url, self._name = address.server, address["queue"]
        self._prefetch = address.count("prefetch", highest=MOST_IN_HAND)
        self._connection: Any = None
        self._channel: Any = None
        self._consumer = ""
        self._waiting: asyncio.Queue[AbstractIncomingMessage | None] = asyncio.Queue()
        self._settled: set[int] = set()
        """The delivery tags of the channel that are acknowledged or given back, without those up to `_settled_to`."""
        self._settled_to = 0
        """Up to this tag all are. A channel counts its deliveries from 1."""
        self.name = f"{address.shown} queue {self._name}"

    async def open(self) -> None:
        await _ask(self._connect())

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        self._check()
        try:
            async with asyncio.timeout(seconds):
                batch = [await self._waiting.get()]
        except TimeoutError:
            await _ask(self._still_there())
            return []
        while len(batch) < limit and not self._waiting.empty():
            batch.append(self._waiting.get_nowait())
        self._check()
        return [self._arrival(message) for message in batch if message is not None]

    async def ack(self, arrivals: Sequence[Arrival]) -> None:
        tags = {arrival.handle.delivery_tag for arrival in arrivals}
        last = max(tags, default=0)
        if 0 < len(tags | {tag for tag in self._settled if tag < last}) == last - self._settled_to:
            # All up to the last, so one frame says it; each by itself costs as much as storing the message.
            handle = next(arrival.handle for arrival in arrivals if arrival.handle.delivery_tag == last)
            await _ask(handle.ack(multiple=True))
        else:
            for arrival in arrivals:
                await _ask(arrival.handle.ack())
        self._settle(tags)

    async def nack(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            await _ask(arrival.handle.nack(requeue=True))
            self._settle({arrival.handle.delivery_tag})

    def _settle(self, tags: set[int]) -> None:
        self._settled |= tags
        while self._settled_to + 1 in self._settled:
            self._settled_to += 1
            self._settled.remove(self._settled_to)

    async def close(self) -> None:
        leaving, self._connection, self._channel = self._connection, None, None
        if leaving is not None:
            with suppress(BrokerUnavailable):  # it is gone already
                await _ask(leaving.close())

    async def _connect(self) -> None:
        self._connection = await _connected(self._url)
        channel = await self._connection.channel()
        try:
            queue = await channel.get_queue(self._name)
        except ChannelNotFoundEntity:  # which also closed the channel
            channel = await self._connection.channel()
            queue = await channel.declare_queue(self._name, durable=True, arguments=QUORUM)
        await channel.set_qos(prefetch_count=self._prefetch)
        # A queue of this channel's own: what another one left in an older queue must not be acknowledged here.
        waiting: asyncio.Queue[AbstractIncomingMessage | None] = asyncio.Queue()

        def closed(_: AbstractChannel | None, __: BaseException | None) -> None:
            waiting.put_nowait(None)  # wakes up `next`

        async def arrived(message: AbstractIncomingMessage) -> None:
            waiting.put_nowait(message)

        channel.close_callbacks.add(closed)
        self._channel, self._waiting = channel, waiting
        self._settled, self._settled_to = set(), 0
        self._consumer = await queue.consume(arrived)

    def _check(self) -> None:
        if self._channel is None or self._channel.is_closed:
            raise BrokerUnavailable("the connection is lost")

    async def _still_there(self) -> None:
        """A consumer whose queue was deleted, and a server that does not answer any more, are silent; asking tells."""
        await self._channel.get_queue(self._name)
        if self._consumer not in (await self._channel.get_underlay_channel()).consumers:
            raise BrokerUnavailable("the queue was deleted while it was read")

    def _arrival(self, message: AbstractIncomingMessage) -> Arrival:
        properties = {
            "content-type": message.content_type,
            "correlation-id": message.correlation_id,
            ROUTING_KEY: message.routing_key,
            EXCHANGE: message.exchange,
        }
        found = {**properties, **message.headers}
        headers = {name: text_of(value) for name, value in found.items() if value is not None}
        for name in _OF_THE_DELIVERY:
            headers.pop(name, None)
        everything = [message.message_id, message.type, sorted(headers.items())]
        content = hashlib.sha256(json.dumps(everything).encode() + message.body)
        return Arrival(
            body=message.body,
            headers=headers,
            handle=message,
            position=f"rabbitmq:{self._name}/{content.hexdigest()}",
            id=message.message_id,
            type=message.type,
        )


class RabbitSink:
    """`amqp://user:password@host:5672/vhost?exchange=orders&routing_key=`.

    Without an exchange it is the default one, which leads to the queue that is called like the routing key; without a
    routing key it is the message's type. The id is the property `message_id`, the type the property `type`.
    """

    form = "amqp://host:5672/vhost?exchange=&routing_key="

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        self._url, self._exchange, self._routing_key = address.server, address["exchange"], address["routing_key"]
        self._where = f"{address.shown} exchange {self._exchange!r}"
        self._connection = AsyncConnection(self._where, self._connect, _disconnect, TROUBLES)

    def publish(self, message: Message) -> None:
        for name, value in (("id", message.id), ("type", message.type)):
            if len(value.encode()) > SHORT_STRING_BYTES:
                raise Reject(f"the {name} has more than {SHORT_STRING_BYTES} bytes, which RabbitMQ has no room for")
        key = self._routing_key or message.type

        async def confirmed(opened: Opened) -> None:
            try:
                await opened[1].publish(_packed(message), routing_key=key, mandatory=True)
            except PublishError as returned:
                problem = f"{self._where}: no queue takes the routing key {key!r}; bind one, then redrive"
                raise Reject(problem) from returned

        self._connection.use(confirmed)

    def close(self) -> None:
        self._connection.close()

    async def _connect(self) -> Opened:
        connection = await _connected(self._url)
        try:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            named = self._exchange != ""
            return connection, await channel.get_exchange(self._exchange) if named else channel.default_exchange
        except BaseException:
            await connection.close()
            raise


BROKER = Broker(RabbitQueue, RabbitSink)


async def _connected(url: str) -> AbstractConnection:
    """A connection that does not come back by itself: delivery tags of the old one would name other messages."""
    connection = aio_pika.Connection(make_url(f"{url}?heartbeat={HEARTBEAT_SECONDS}"))
    try:
        await connection.connect()
    except BaseException:  # one that is not closed closes itself when it is collected, in whatever thread that happens
        await connection.close()
        raise
    return connection


async def _disconnect(opened: Opened) -> None:
    await opened[0].close()


async def _ask(work: Awaitable[Any]) -> None:
    """Do something at the broker; whatever fails there is a `BrokerUnavailable`."""
    with unavailable(*TROUBLES):
        async with asyncio.timeout(CONNECT_SECONDS):
            await work


def _packed(message: Message) -> aio_pika.Message:
    headers: dict[str, Any] = dict(message.headers)
    return aio_pika.Message(
        message.body,
        message_id=message.id,
        type=message.type,
        content_type=headers.pop("content-type", "application/json"),
        headers=headers,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )
