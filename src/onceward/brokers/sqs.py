"""Amazon SQS: long polling, deletion in batches after the commit, visibility extended while a delivery is in hand.

What is not deleted becomes visible again when its visibility ends: at once after a `nack`, else after at most
`visibility` seconds without us. A FIFO queue itself drops copies of a publication that come within five minutes.

Invariant: a receipt handle settles one delivery and names nothing: it is another one each time a message comes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

from onceward.brokers.connection import CONFIRM_SECONDS, Connection
from onceward.brokers.deadlines import Deadlines, batches
from onceward.brokers.protocol import Arrival, Broker, BrokerUnavailable, unavailable, unconfirmed
from onceward.domain.address import Address
from onceward.domain.headers import fields_of, header_text, text_of
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject

try:
    import aiobotocore.session
    import botocore.session
    from aiobotocore.config import AioConfig
    from aiohttp import ClientError as HttpError
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
except ImportError as error:
    raise ConfigurationError("Amazon SQS needs: pip install 'onceward[sqs]'") from error

CONNECT_SECONDS = 5
AT_ONCE = 10
"""How many messages one call of SQS may be about."""
LONGEST_VISIBILITY = 12 * 3600
BASE64, HEADERS = "onceward-base64", "onceward-headers"
"""The attributes of a body that is bytes, and of headers that SQS cannot carry as they are."""
MOST_ATTRIBUTES = 10
_TEXT = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_TOKEN = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")
_NEVER = ("NonExistentQueue", "QueueDoesNotExist", "InvalidMessageContents", "InvalidParameterValue", "InvalidAddress")


class SqsQueue:
    """`sqs://eu-west-1/orders?visibility=30`; `endpoint=http://...` for another server than Amazon's.

    Credentials come from where AWS's own tools look for them. The id is the message attribute `id`, the type the
    attribute `type`; `id="position"` takes SQS's own message id, `id="header:sqs-deduplication-id"` a FIFO queue's.
    """

    form = "sqs://REGION/QUEUE?visibility=30&endpoint="
    redelivery = timedelta(days=14)
    """As long as a queue may keep a message."""
    positions = True

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        self._service, self._queue = _service(address), address.path
        self._visibility = int(address.seconds("visibility", highest=LONGEST_VISIBILITY))
        self._session = aiobotocore.session.get_session()  # it remembers the descriptions of services, which are large
        self._deadlines = Deadlines(self._visibility, AT_ONCE, self._extend)
        self._stack: AsyncExitStack | None = None
        self._client: Any = None
        self._url = ""
        self.name = address.shown

    async def open(self) -> None:
        config = AioConfig(connect_timeout=CONNECT_SECONDS, read_timeout=30, retries={"total_max_attempts": 1})
        self._stack = AsyncExitStack()
        made = self._session.create_client(**self._service, config=config)
        self._client = await _asked(self._stack.enter_async_context(made))
        self._url = (await _asked(self._client.get_queue_url(QueueName=self._queue)))["QueueUrl"]
        self._deadlines.start()
        self._stack.push_async_callback(self._deadlines.stop)

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        found: list[Arrival] = []
        wait = max(1, int(seconds))
        while len(found) < limit:
            answer = await _asked(
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
            self._deadlines.hold(message["ReceiptHandle"] for message in messages)
            if not messages:
                break
        return found

    async def ack(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle(arrivals, self._client.delete_message_batch)

    async def nack(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle(arrivals, self._client.change_message_visibility_batch, VisibilityTimeout=0)

    async def close(self) -> None:
        leaving, self._stack, self._client = self._stack, None, None
        if leaving is not None:
            await leaving.aclose()

    async def _settle(self, arrivals: Sequence[Arrival], call: Any, **more: int) -> None:
        handles = [arrival.handle for arrival in arrivals]
        self._deadlines.settle(handles)
        for batch in batches(handles, AT_ONCE):
            answer = await _asked(call(QueueUrl=self._url, Entries=_entries(batch, **more)))
            if failed := answer.get("Failed"):
                raise BrokerUnavailable(f"{len(failed)} deliveries could not be settled: {failed[0]}")

    async def _extend(self, handles: list[str]) -> None:
        """Keep what is in hand invisible to other readers."""
        entries = _entries(handles, VisibilityTimeout=self._visibility)
        await _asked(self._client.change_message_visibility_batch(QueueUrl=self._url, Entries=entries))

    def _arrival(self, message: Any) -> Arrival:
        headers = {name.lower(): _value(value) for name, value in message.get("MessageAttributes", {}).items()}
        headers = {**_unpacked(headers.pop(HEADERS, "{}")), **headers}
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


class SqsSink:
    """`sqs://eu-west-1/orders`; `endpoint=http://...` for another server than Amazon's.

    The id and the type are the message attributes `id` and `type`. In a FIFO queue the key is the group, and the id the
    dedupe id.
    """

    form = "sqs://REGION/QUEUE?endpoint="

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        self._service, self._queue, self._where = _service(address), address.path, address.shown
        self._connection = Connection(self._connect, lambda opened: opened[0].close())

    def publish(self, message: Message) -> None:
        with unconfirmed(self._where, ClientError, BotoCoreError):
            try:
                client, url = self._connection.get()
                client.send_message(QueueUrl=url, **self._words(message))
            except ClientError as refused:
                code = str(refused.response.get("Error", {}).get("Code", ""))
                if any(code.endswith(never) for never in _NEVER):
                    self.close()  # the queue may be another one when it is there again
                    raise Reject(f"{self._where}: {refused}; correct that, then redrive") from refused
                raise

    def close(self) -> None:
        self._connection.close()

    def _connect(self) -> tuple[Any, str]:
        config = Config(
            connect_timeout=CONFIRM_SECONDS,
            read_timeout=CONFIRM_SECONDS,
            retries={"total_max_attempts": 1},  # the relay retries, in order
        )
        client = botocore.session.get_session().create_client(**self._service, config=config)
        return client, client.get_queue_url(QueueName=self._queue)["QueueUrl"]

    def _words(self, message: Message) -> dict[str, Any]:
        body, attributes = _body(message.body), _attributes(message)
        if body is None:
            # The line break is the body of nothing, since SQS takes no empty one.
            body, attributes[BASE64] = f"{base64.b64encode(message.body).decode()}\n", "true"
        words: dict[str, Any] = {
            "MessageBody": body,
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
            },
        }
        if self._queue.endswith(".fifo"):
            words["MessageGroupId"] = _token(message.key or message.id)
            words["MessageDeduplicationId"] = _token(message.id)
        return words


BROKER = Broker(SqsQueue, SqsSink)


def _service(address: Address) -> dict[str, Any]:
    """Which service a client is for, and where."""
    return {"service_name": "sqs", "region_name": address.host, "endpoint_url": address["endpoint"] or None}


async def _asked(call: Awaitable[Any]) -> Any:
    with unavailable(ClientError, BotoCoreError, HttpError):
        return await call


def _entries(handles: Sequence[str], **more: int) -> list[dict[str, Any]]:
    return [{"Id": str(number), "ReceiptHandle": handle, **more} for number, handle in enumerate(handles)]


# How bodies and headers travel, there and back


def _body(body: bytes) -> str | None:
    """The body as SQS carries it; None for what is not text, or none that SQS takes."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if _TEXT.fullmatch(text) else None


def _bytes(body: str, *, encoded: bool) -> bytes:
    if encoded:
        with suppress(binascii.Error, ValueError):  # not ours after all
            return base64.b64decode(body.strip(), validate=True)
    return body.encode()


def _attributes(message: Message) -> dict[str, str]:
    """Names and headers; where there are too many or odd ones among them, all but the names travel as one."""
    fields = fields_of(message)
    names = {name: header_text(fields.pop(name)) for name in ("id", "type")}
    fits = len(fields) + len(names) < MOST_ATTRIBUTES  # and one for the encoding
    if fits and all(_NAME.fullmatch(name) and _TEXT.fullmatch(value) for name, value in fields.items()):
        return {**fields, **names}
    return {**names, HEADERS: json.dumps(fields)}


def _unpacked(text: str) -> dict[str, str]:
    """The headers that travelled as one."""
    try:
        fields = json.loads(text)
    except ValueError:
        return {HEADERS: text}  # not ours after all
    return {str(name).lower(): str(value) for name, value in fields.items()} if isinstance(fields, dict) else {}


def _value(attribute: Any) -> str:
    text: str | None = attribute.get("StringValue")
    return text_of(attribute.get("BinaryValue")) if text is None else text


def _token(text: str) -> str:
    return text if _TOKEN.fullmatch(text) else hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
