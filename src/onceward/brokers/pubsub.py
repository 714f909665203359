"""Google Pub/Sub: a pull subscription, acknowledged after the commit; publications whose key is the ordering key.

Deadlines of deliveries in hand are extended. A pull that is given up may already have been given messages, which would
then be invisible until their deadline: so one pull is always under way, and a `next` that finds nothing in time leaves
it running for the following one.

Invariant: an acknowledgement id settles one delivery and names nothing; the message id is the same for each of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from onceward.brokers.connection import CONFIRM_SECONDS, Connection
from onceward.brokers.deadlines import Deadlines, batches
from onceward.brokers.protocol import Arrival, Broker, BrokerUnavailable, unavailable, unconfirmed
from onceward.domain.address import Address
from onceward.domain.headers import fields_of
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject

try:
    import grpc
    from google.api_core.exceptions import DeadlineExceeded, GoogleAPIError, InvalidArgument, NotFound
    from google.auth.exceptions import GoogleAuthError
    from google.pubsub_v1 import PublisherClient, SubscriberAsyncClient
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
    from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport
    from google.pubsub_v1.types import PubsubMessage
except ImportError as error:
    raise ConfigurationError("Google Pub/Sub needs: pip install 'onceward[pubsub]'") from error

CALL_SECONDS = 10
PULL_SECONDS = 60
AT_ONCE = 500
"""How many acknowledgement ids a call may have."""
LONGEST_DEADLINE = 600
TROUBLES = (GoogleAPIError, GoogleAuthError)


class PubsubSubscription:
    """`pubsub://project/orders-shop?deadline=30`; `endpoint=host:port` (or PUBSUB_EMULATOR_HOST) for an emulator.

    Credentials come from where Google's own tools look for them. The id is the attribute `id`, the type the attribute
    `type`; `id="position"` takes Pub/Sub's own message id.
    """

    form = "pubsub://PROJECT/SUBSCRIPTION?deadline=30&endpoint="
    redelivery = timedelta(days=7)
    """As long as a subscription keeps a message, unless its owner says otherwise: then declare it."""
    positions = True

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        self._subscription = f"projects/{address.host}/subscriptions/{address.path}"
        self._deadline = int(address.seconds("deadline", highest=LONGEST_DEADLINE))
        self._endpoint = _endpoint(address)
        self._client: Any = None
        self._pulling: asyncio.Task[Any] | None = None
        self._deadlines = Deadlines(self._deadline, AT_ONCE, self._extend)
        self.name = address.shown

    async def open(self) -> None:
        with unavailable(*TROUBLES):
            if self._endpoint:
                channel = grpc.aio.insecure_channel(self._endpoint)
                self._client = SubscriberAsyncClient(transport=SubscriberGrpcAsyncIOTransport(channel=channel))
            else:
                self._client = SubscriberAsyncClient()
        self._deadlines.start()

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        if self._pulling is None:
            self._pulling = asyncio.create_task(self._pulled(limit))
        await asyncio.wait([self._pulling], timeout=seconds)
        if not self._pulling.done():
            return []
        pulling, self._pulling = self._pulling, None
        received = pulling.result()
        handles = [one.ack_id for one in received]
        self._deadlines.hold(handles)
        for batch in batches(handles, AT_ONCE):
            await self._extend(batch)  # from now on by our deadline, whatever the subscription's is
        return [self._arrival(one) for one in received]

    async def ack(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle(arrivals, self._acknowledge)

    async def nack(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle(arrivals, lambda handles: self._set_deadline(handles, 0))

    async def close(self) -> None:
        pulling, self._pulling = self._pulling, None
        if pulling is not None:
            pulling.cancel()
            with suppress(asyncio.CancelledError, BrokerUnavailable):
                await pulling
        await self._deadlines.stop()
        leaving, self._client = self._client, None
        if leaving is not None:
            await leaving.transport.close()

    async def _pulled(self, limit: int) -> list[Any]:
        with unavailable(*TROUBLES):
            try:
                answer = await self._client.pull(
                    subscription=self._subscription, max_messages=limit, retry=None, timeout=PULL_SECONDS
                )
            except DeadlineExceeded:
                return []
        return list(answer.received_messages)

    async def _settle(self, arrivals: Sequence[Arrival], call: Callable[[list[str]], Awaitable[None]]) -> None:
        handles = [arrival.handle for arrival in arrivals]
        self._deadlines.settle(handles)
        for batch in batches(handles, AT_ONCE):
            await call(batch)

    async def _acknowledge(self, handles: list[str]) -> None:
        with unavailable(*TROUBLES):
            await self._client.acknowledge(
                subscription=self._subscription, ack_ids=handles, retry=None, timeout=CALL_SECONDS
            )

    async def _extend(self, handles: list[str]) -> None:
        await self._set_deadline(handles, self._deadline)

    async def _set_deadline(self, handles: list[str], seconds: int) -> None:
        with unavailable(*TROUBLES):
            await self._client.modify_ack_deadline(
                subscription=self._subscription,
                ack_ids=handles,
                ack_deadline_seconds=seconds,
                retry=None,
                timeout=CALL_SECONDS,
            )

    def _arrival(self, received: Any) -> Arrival:
        message = received.message
        headers = {name.lower(): value for name, value in message.attributes.items()}
        own = {"pubsub-message-id": message.message_id}
        if message.ordering_key:
            own["pubsub-ordering-key"] = message.ordering_key
        return Arrival(
            body=bytes(message.data),
            headers={**headers, **own},
            handle=received.ack_id,
            position=f"pubsub:{self._subscription}/{message.message_id}",
            id=headers.get("id"),
            type=headers.get("type"),
        )


class PubsubSink:
    """`pubsub://project/orders`; `endpoint=host:port` (or PUBSUB_EMULATOR_HOST) for an emulator.

    The id and the type are the attributes `id` and `type`.
    """

    form = "pubsub://PROJECT/TOPIC?endpoint="

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        self._topic, self._where = f"projects/{address.host}/topics/{address.path}", address.shown
        self._endpoint = _endpoint(address)
        self._connection: Connection[Any] = Connection(self._connect, lambda client: client.transport.close())

    def publish(self, message: Message) -> None:
        wanted = PubsubMessage(data=message.body, attributes=fields_of(message), ordering_key=message.key or "")
        client = None
        with unconfirmed(self._where, *TROUBLES):
            try:
                client = self._connection.get()
                client.publish(topic=self._topic, messages=[wanted], retry=None, timeout=CONFIRM_SECONDS)
            except (NotFound, InvalidArgument) as refused:
                raise Reject(f"{self._where}: {refused}; correct that, then redrive") from refused
            except (*TROUBLES, OSError):
                self._connection.drop(client)  # it would wait longer each time before it connects again
                raise

    def close(self) -> None:
        self._connection.close()

    def _connect(self) -> Any:
        if self._endpoint:
            return PublisherClient(transport=PublisherGrpcTransport(channel=grpc.insecure_channel(self._endpoint)))
        return PublisherClient()


BROKER = Broker(PubsubSubscription, PubsubSink)


def _endpoint(address: Address) -> str | None:
    """An emulator instead of Google's own service."""
    return address["endpoint"] or os.environ.get("PUBSUB_EMULATOR_HOST")
