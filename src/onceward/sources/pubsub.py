"""Google Pub/Sub: a pull subscription; acknowledged after the commit, deadlines extended while in hand.

A pull that nobody waits for any more may already have been given messages, which would then be out of sight until
their deadline: so one pull is always under way, and who finds nothing in time leaves it running for the next look.

Invariant: an acknowledgement id settles one delivery and names nothing; the message id is the same for each of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from onceward.domain.address import Address
from onceward.errors import ConfigurationError
from onceward.sources.protocol import Arrival, BrokerUnavailable

try:
    import grpc
    from google.api_core.exceptions import DeadlineExceeded, GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.pubsub_v1 import SubscriberAsyncClient
    from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport
except ImportError as error:
    raise ConfigurationError("Google Pub/Sub needs: pip install 'onceward[pubsub]'") from error

CALL_SECONDS = 10
PULL_SECONDS = 60
AT_ONCE = 500
"""How many acknowledgement ids a call may have."""
LONGEST_DEADLINE = 600
FORM = "pubsub://PROJECT/SUBSCRIPTION?deadline=30&endpoint="


class PubsubSubscription:
    """`pubsub://project/orders-shop?deadline=30`; `endpoint=host:port` (or PUBSUB_EMULATOR_HOST) for an emulator.

    Credentials come from where Google's own tools look for them. The id is the attribute `id`, the type the attribute
    `type`; `id="position"` takes Pub/Sub's own message id.
    """

    redelivery = timedelta(days=7)
    """As long as a subscription keeps a message, unless its owner says otherwise: then declare it."""
    positions = True

    def __init__(self, url: str) -> None:
        address = Address.of(url, FORM)
        self._subscription = f"projects/{address.host}/subscriptions/{address.path}"
        self._deadline = int(address.seconds("deadline", highest=LONGEST_DEADLINE))
        self._endpoint = address["endpoint"] or os.environ.get("PUBSUB_EMULATOR_HOST")
        self._client: Any = None
        self._pulling: asyncio.Task[Any] | None = None
        self._extending: asyncio.Task[None] | None = None
        self._held: set[str] = set()
        self.name = address.shown

    async def open(self) -> None:
        self._held = set()
        try:
            if self._endpoint:
                channel = grpc.aio.insecure_channel(self._endpoint)
                self._client = SubscriberAsyncClient(transport=SubscriberGrpcAsyncIOTransport(channel=channel))
            else:
                self._client = SubscriberAsyncClient()
        except GoogleAuthError as trouble:
            raise BrokerUnavailable(f"{type(trouble).__name__}: {trouble}") from trouble
        self._extending = asyncio.create_task(self._extend())

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        if self._pulling is None:
            self._pulling = asyncio.create_task(self._pulled(limit))
        await asyncio.wait([self._pulling], timeout=seconds)
        if not self._pulling.done():
            return []
        pulling, self._pulling = self._pulling, None
        received = pulling.result()
        self._held |= {one.ack_id for one in received}
        # From now on by our deadline, whatever the subscription's is.
        await self._each([one.ack_id for one in received], self._set_deadline(self._deadline))
        return [self._arrival(one) for one in received]

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle(arrivals, self._acknowledge)

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle(arrivals, self._set_deadline(0))

    async def close(self) -> None:
        for task in (self._pulling, self._extending):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError, BrokerUnavailable):
                    await task
        self._pulling = self._extending = None
        leaving, self._client = self._client, None
        if leaving is not None:
            await leaving.transport.close()

    async def _pulled(self, limit: int) -> list[Any]:
        try:
            answer = await self._asked(
                self._client.pull(subscription=self._subscription, max_messages=limit, retry=None, timeout=PULL_SECONDS)
            )
        except DeadlineExceeded:
            return []
        return list(answer.received_messages)

    async def _settle(self, arrivals: Sequence[Arrival], call: Callable[[list[str]], Awaitable[None]]) -> None:
        handles = [arrival.handle for arrival in arrivals]
        self._held -= set(handles)
        await self._each(handles, call)

    async def _extend(self) -> None:
        """Keep what is in hand away from others, for as long as it is."""
        while True:
            await asyncio.sleep(self._deadline / 3)
            # What fails here comes to somebody else, and is known by then or stored by them.
            with suppress(BrokerUnavailable):
                await self._each(sorted(self._held), self._set_deadline(self._deadline))

    async def _each(self, ack_ids: Sequence[str], call: Callable[[list[str]], Awaitable[None]]) -> None:
        for batch in _batches(ack_ids):
            try:
                await self._asked(call(batch))
            except DeadlineExceeded as trouble:
                raise BrokerUnavailable(str(trouble)) from trouble

    async def _acknowledge(self, ack_ids: list[str]) -> None:
        await self._client.acknowledge(
            subscription=self._subscription, ack_ids=ack_ids, retry=None, timeout=CALL_SECONDS
        )

    def _set_deadline(self, seconds: int) -> Callable[[list[str]], Awaitable[None]]:
        async def call(ack_ids: list[str]) -> None:
            await self._client.modify_ack_deadline(
                subscription=self._subscription,
                ack_ids=ack_ids,
                ack_deadline_seconds=seconds,
                retry=None,
                timeout=CALL_SECONDS,
            )

        return call

    async def _asked(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except DeadlineExceeded:
            raise
        except (GoogleAPIError, GoogleAuthError, OSError) as trouble:
            raise BrokerUnavailable(f"{type(trouble).__name__}: {trouble}") from trouble

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


def _batches(ack_ids: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(ack_ids), AT_ONCE):
        yield list(ack_ids[start : start + AT_ONCE])
