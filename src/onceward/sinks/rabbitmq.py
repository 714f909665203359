"""RabbitMQ as the destination: persistent messages, confirmed by the broker, returned where no queue takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from onceward.domain.address import Address
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject
from onceward.sinks.loop import Link

try:
    import aio_pika
    from aio_pika.exceptions import AMQPError, ChannelInvalidStateError, PublishError
except ImportError as error:
    raise ConfigurationError("RabbitMQ needs: pip install 'onceward[rabbitmq]'") from error

if TYPE_CHECKING:
    from aio_pika.abc import AbstractConnection, AbstractExchange

    Opened: TypeAlias = tuple[AbstractConnection, AbstractExchange]

HEARTBEAT_SECONDS = 15
SHORT_STRING_BYTES = 255
"""The most that AMQP lets a property hold."""
FORM = "amqp://host:5672/vhost?exchange=&routing_key="


class RabbitSink:
    """`amqp://user:password@host:5672/vhost?exchange=orders&routing_key=`.

    Without an exchange it is the default one, which leads to the queue that is called like the routing key; without a
    routing key it is the message's type. The id is the property `message_id`, the type the property `type`.
    """

    def __init__(self, url: str) -> None:
        address = Address.of(url, FORM)
        self._url, self._exchange, self._routing_key = address.server, address["exchange"], address["routing_key"]
        self._where = f"{address.shown} exchange {self._exchange!r}"
        self._link = Link(self._where, self._connect, _disconnect, (AMQPError, ChannelInvalidStateError))

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

        self._link.use(confirmed)

    def close(self) -> None:
        self._link.close()

    async def _connect(self) -> Opened:
        connection = await aio_pika.connect(f"{self._url}?heartbeat={HEARTBEAT_SECONDS}")
        try:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            named = self._exchange != ""
            return connection, await channel.get_exchange(self._exchange) if named else channel.default_exchange
        except BaseException:
            await connection.close()
            raise


async def _disconnect(opened: Opened) -> None:
    await opened[0].close()


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
