"""RabbitMQ: a consumer with individual acknowledgements and a bounded number of messages in hand.

RabbitMQ delivers again what was given back or not acknowledged when its channel closed.

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
from typing import TYPE_CHECKING, Any

from onceward.domain.address import Address
from onceward.errors import ConfigurationError
from onceward.sources.protocol import Arrival, BrokerUnavailable

try:
    import aio_pika
    from aio_pika.exceptions import AMQPError, ChannelInvalidStateError, ChannelNotFoundEntity
except ImportError as error:
    raise ConfigurationError("RabbitMQ needs: pip install 'onceward[rabbitmq]'") from error

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

CONNECT_SECONDS = 5.0
HEARTBEAT_SECONDS = 15
MOST_IN_HAND = 65_535
ROUTING_KEY, EXCHANGE = "rabbitmq-routing-key", "rabbitmq-exchange"
QUORUM = {"x-queue-type": "quorum"}
_OF_THE_DELIVERY = ("x-delivery-count", "x-acquired-count")
"""Headers that the broker changes with each delivery."""
FORM = "amqp://host:5672/vhost?queue=NAME&prefetch=200"


class RabbitQueue:
    """`amqp://user:password@host:5672/vhost?queue=orders&prefetch=200`.

    The id is the property `message_id`, the type the property `type`; `type="header:rabbitmq-routing-key"` takes the
    routing key. A queue that is not there is made, as a quorum queue; bindings are yours.
    """

    redelivery = timedelta(days=30)
    """As long as the queue keeps a message, which only its owner knows; declare your own where it is longer."""
    positions = False

    def __init__(self, url: str) -> None:
        address = Address.of(url, FORM)
        self._url, self._name = address.server, address["queue"]
        self._prefetch = address.count("prefetch", highest=MOST_IN_HAND)
        self._connection: Any = None
        self._channel: Any = None
        self._consumer = ""
        self._waiting: asyncio.Queue[AbstractIncomingMessage | None] = asyncio.Queue()
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

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            await _ask(arrival.handle.ack())

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            await _ask(arrival.handle.nack(requeue=True))

    async def close(self) -> None:
        leaving, self._connection, self._channel = self._connection, None, None
        if leaving is not None:
            with suppress(BrokerUnavailable):  # it is gone already
                await _ask(leaving.close())

    async def _connect(self) -> None:
        self._connection = await aio_pika.connect(f"{self._url}?heartbeat={HEARTBEAT_SECONDS}")
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
            waiting.put_nowait(None)  # wakes up whoever waits

        async def arrived(message: AbstractIncomingMessage) -> None:
            waiting.put_nowait(message)

        channel.close_callbacks.add(closed)
        self._channel, self._waiting = channel, waiting
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
        headers = {name: _text(value) for name, value in found.items() if value is not None}
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


async def _ask(work: Awaitable[Any]) -> None:
    """Do something at the broker; whatever goes wrong there is a `BrokerUnavailable`."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await work
    except (AMQPError, ChannelInvalidStateError, OSError, TimeoutError) as trouble:
        raise BrokerUnavailable(f"{type(trouble).__name__}: {trouble}") from trouble


def _text(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes | bytearray) else str(value)
