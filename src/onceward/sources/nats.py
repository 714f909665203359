"""NATS JetStream: a durable pull consumer with explicit acknowledgements.

JetStream delivers again what was not acknowledged within `ack_wait`, to whoever reads then.

Invariant: the stream is its owner's; we make the consumer alone, from the stream's beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from onceward.domain.address import Address
from onceward.errors import ConfigurationError
from onceward.sinks.nats import CONNECT_SECONDS, connected
from onceward.sources.protocol import Arrival, BrokerUnavailable

try:
    from nats.errors import Error
    from nats.errors import TimeoutError as NothingCame
    from nats.js.api import AckPolicy, ConsumerConfig
    from nats.js.errors import NotFoundError
except ImportError as error:
    raise ConfigurationError("NATS needs: pip install 'onceward[nats]'") from error

MORE_SECONDS = 0.05
"""How long a batch that has begun waits to become larger."""
SUBJECT = "nats-subject"
FORM = "nats://host:4222?stream=NAME&durable=onceward&subject=&ack_wait=30"


class NatsStream:
    """`nats://host:4222?stream=ORDERS&durable=shop&subject=orders.paid&ack_wait=30`.

    The id is `Nats-Msg-Id` or the header `id`, the type the header `type`; `type="header:nats-subject"` takes the
    subject.
    """

    redelivery = timedelta(days=30)
    """As long as the stream keeps a message, which only its owner knows; declare your own where it is longer."""
    positions = True

    def __init__(self, url: str) -> None:
        address = Address.of(url, FORM)
        self._url, self._stream, self._durable = address.server, address["stream"], address["durable"]
        self._subject = address["subject"] or None
        self._ack_wait = address.seconds("ack_wait")
        self._connection: Any = None
        self._subscription: Any = None
        self._waiting: list[Any] = []
        self.name = f"{address.shown} stream {self._stream}"

    async def open(self) -> None:
        try:
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
        except (Error, OSError) as trouble:
            raise BrokerUnavailable(f"{type(trouble).__name__}: {trouble}") from trouble

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        if not self._waiting:
            self._waiting = await self._fetched(1, seconds)
            if self._waiting and limit > 1:
                self._waiting += await self._fetched(limit - 1, MORE_SECONDS)
        # The client may hand over more than was asked for: what came late for an earlier call.
        batch, self._waiting = self._waiting[:limit], self._waiting[limit:]
        return [self._arrival(message) for message in batch]

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle([arrival.handle.ack for arrival in arrivals])

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle([arrival.handle.nak for arrival in arrivals])

    async def close(self) -> None:
        leaving, self._connection, self._subscription, self._waiting = self._connection, None, None, []
        if leaving is not None:
            await leaving.close()

    async def _fetched(self, count: int, seconds: float) -> list[Any]:
        if self._subscription is None or not self._connection.is_connected:
            raise BrokerUnavailable("the connection is lost")
        try:
            try:
                return list(await self._subscription.fetch(count, timeout=seconds))
            except NothingCame:
                # A consumer that was deleted, or a server that stopped answering, looks the same; asking tells.
                await self._connection.jetstream().consumer_info(self._stream, self._durable)
                return []
        except (Error, OSError) as trouble:
            raise BrokerUnavailable(f"{type(trouble).__name__}: {trouble}") from trouble

    async def _settle(self, calls: Sequence[Any]) -> None:
        """Send what is to be said, and wait until the server has it."""
        if self._connection is None or not self._connection.is_connected:
            raise BrokerUnavailable("the connection is lost")
        try:
            for call in calls:
                await call()
            await self._connection.flush(CONNECT_SECONDS)
        except (Error, OSError) as trouble:
            raise BrokerUnavailable(f"{type(trouble).__name__}: {trouble}") from trouble

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
