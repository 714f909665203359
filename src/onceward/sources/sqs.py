"""Amazon SQS: long polling, deletion in batches after the commit, visibility extended while a delivery is in hand.

What is not deleted becomes visible again when its visibility ends: at once where we release it, else after at most
`visibility` seconds without us.

Invariant: a receipt handle settles one delivery and names nothing: it is another one each time a message comes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

from onceward.domain.address import Address
from onceward.errors import ConfigurationError
from onceward.sinks.sqs import BASE64, HEADERS
from onceward.sources.protocol import Arrival, BrokerUnavailable

try:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session
    from aiohttp import ClientError as HttpError
    from botocore.exceptions import BotoCoreError, ClientError
except ImportError as error:
    raise ConfigurationError("Amazon SQS needs: pip install 'onceward[sqs]'") from error

CONNECT_SECONDS = 5
AT_ONCE = 10
"""How many messages one call of SQS may be about."""
LONGEST_VISIBILITY = 12 * 3600
FORM = "sqs://REGION/QUEUE?visibility=30&endpoint="


class SqsQueue:
    """`sqs://eu-west-1/orders?visibility=30`; `endpoint=http://...` for another server than Amazon's.

    Credentials come from where AWS's own tools look for them. The id is the message attribute `id`, the type the
    attribute `type`; `id="position"` takes SQS's own message id, `id="header:sqs-deduplication-id"` a FIFO queue's.
    """

    redelivery = timedelta(days=14)
    """As long as a queue may keep a message."""
    positions = True

    def __init__(self, url: str) -> None:
        address = Address.of(url, FORM)
        self._region, self._queue = address.host, address.path
        self._visibility = int(address.seconds("visibility", highest=LONGEST_VISIBILITY))
        self._endpoint = address["endpoint"] or None
        self._session = get_session()  # it remembers the descriptions of services, which are large
        self._stack: AsyncExitStack | None = None
        self._client: Any = None
        self._url = ""
        self._held: set[str] = set()
        self.name = f"{address.shown}"

    async def open(self) -> None:
        config = AioConfig(connect_timeout=CONNECT_SECONDS, read_timeout=30, retries={"total_max_attempts": 1})
        self._held = set()
        self._stack = AsyncExitStack()
        made = self._session.create_client("sqs", region_name=self._region, endpoint_url=self._endpoint, config=config)
        self._client = await self._asked(self._stack.enter_async_context(made))
        self._url = (await self._asked(self._client.get_queue_url(QueueName=self._queue)))["QueueUrl"]
        extending = asyncio.create_task(self._extend())
        self._stack.push_async_callback(_ended, extending)

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        found: list[Arrival] = []
        wait = max(1, int(seconds))
        while len(found) < limit:
            answer = await self._asked(
                self._client.receive_message(
                    QueueUrl=self._url,
                    MaxNumberOfMessages=min(AT_ONCE, limit - len(found)),
                    WaitTimeSeconds=0 if found else wait,
                    VisibilityTimeout=self._visibility,
                    MessageSystemAttributeNames=["All"],
                    MessageAttributeNames=["All"],
                )
            )
            messages = answer.get("Messages", [])
            found += [self._arrival(message) for message in messages]
            self._held |= {message["ReceiptHandle"] for message in messages}
            if not messages:
                break
        return found

    async def accept(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle(arrivals, self._client.delete_message_batch, {})

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle(arrivals, self._client.change_message_visibility_batch, {"VisibilityTimeout": 0})

    async def close(self) -> None:
        leaving, self._stack, self._client = self._stack, None, None
        if leaving is not None:
            await leaving.aclose()

    async def _settle(self, arrivals: Sequence[Arrival], call: Any, more: dict[str, Any]) -> None:
        handles = [arrival.handle for arrival in arrivals]
        self._held -= set(handles)
        for entries in _batches(handles, more):
            answer = await self._asked(call(QueueUrl=self._url, Entries=entries))
            if failed := answer.get("Failed"):
                raise BrokerUnavailable(f"{len(failed)} deliveries could not be settled: {failed[0]}")

    async def _extend(self) -> None:
        """Keep what is in hand out of others' sight, for as long as it is."""
        while True:
            await asyncio.sleep(self._visibility / 3)
            for entries in _batches(sorted(self._held), {"VisibilityTimeout": self._visibility}):
                # One that fails comes to somebody else, and is known by then or stored by them.
                with suppress(BrokerUnavailable):
                    call = self._client.change_message_visibility_batch(QueueUrl=self._url, Entries=entries)
                    await self._asked(call)

    async def _asked(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except (ClientError, BotoCoreError, HttpError, OSError, TimeoutError) as trouble:
            raise BrokerUnavailable(f"{type(trouble).__name__}: {trouble}") from trouble

    def _arrival(self, message: Any) -> Arrival:
        headers = {name.lower(): _text(value) for name, value in message.get("MessageAttributes", {}).items()}
        headers = {**_packed(headers.pop(HEADERS, "{}")), **headers}
        system = message.get("Attributes", {})
        own = {
            "sqs-message-id": message["MessageId"],
            "sqs-group-id": system.get("MessageGroupId"),
            "sqs-deduplication-id": system.get("MessageDeduplicationId"),
        }
        return Arrival(
            body=_bytes(message["Body"], encoded=BASE64 in headers),
            headers={**headers, **{name: value for name, value in own.items() if value is not None}},
            handle=message["ReceiptHandle"],
            position=f"sqs:{self._queue}/{message['MessageId']}",
            id=headers.get("id"),
            type=headers.get("type"),
        )


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _batches(handles: Sequence[str], more: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Entries of so many at a time as a call may have."""
    for start in range(0, len(handles), AT_ONCE):
        yield [
            {"Id": str(number), "ReceiptHandle": handle, **more}
            for number, handle in enumerate(handles[start : start + AT_ONCE])
        ]


def _bytes(body: str, *, encoded: bool) -> bytes:
    if encoded:
        with suppress(binascii.Error, ValueError):  # not ours after all
            return base64.b64decode(body.strip(), validate=True)
    return body.encode()


def _packed(text: str) -> dict[str, str]:
    """What our own sink has put together."""
    try:
        fields = json.loads(text)
    except ValueError:
        return {HEADERS: text}  # not ours after all
    return {str(name).lower(): str(value) for name, value in fields.items()} if isinstance(fields, dict) else {}


def _text(value: Any) -> str:
    text: str | None = value.get("StringValue")
    return value.get("BinaryValue", b"").decode(errors="backslashreplace") if text is None else text
