"""Amazon SQS as the destination: confirmed by SQS; a FIFO queue itself drops copies that come within five minutes."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from typing import Any

from onceward.domain.address import Address
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject
from onceward.sinks.headers import fields_of, header_text
from onceward.sinks.loop import CONFIRM_SECONDS

try:
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.session import get_session
except ImportError as error:
    raise ConfigurationError("Amazon SQS needs: pip install 'onceward[sqs]'") from error

BASE64, HEADERS = "onceward-base64", "onceward-headers"
"""The attributes of a body that is bytes, and of headers that SQS cannot carry as they are."""
MOST_ATTRIBUTES = 10
FORM = "sqs://REGION/QUEUE?endpoint="
_TEXT = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_TOKEN = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")
_NEVER = ("NonExistentQueue", "QueueDoesNotExist", "InvalidMessageContents", "InvalidParameterValue", "InvalidAddress")


class SqsSink:
    """`sqs://eu-west-1/orders`; `endpoint=http://...` for another server than Amazon's.

    The id and the type are the message attributes `id` and `type`. In a FIFO queue the key is the group, and the id the
    dedupe id.
    """

    def __init__(self, url: str) -> None:
        address = Address.of(url, FORM)
        self._region, self._queue = address.host, address.path
        self._endpoint, self._where = address["endpoint"] or None, address.shown
        self._guard = threading.Lock()
        self._client: Any = None
        self._url = ""

    def publish(self, message: Message) -> None:
        try:
            client = self._connected()
            client.send_message(QueueUrl=self._url, **self._words(message))
        except ClientError as refused:
            code = str(refused.response.get("Error", {}).get("Code", ""))
            if any(code.endswith(never) for never in _NEVER):
                self.close()  # the queue may be another one when it is there again
                raise Reject(f"{self._where}: {refused}; cure that, then redrive") from refused
            raise ConnectionError(f"{self._where} refused: {refused}") from refused
        except (BotoCoreError, OSError) as trouble:
            raise ConnectionError(f"{self._where} did not confirm: {type(trouble).__name__}: {trouble}") from trouble

    def close(self) -> None:
        with self._guard:
            leaving, self._client = self._client, None
        if leaving is not None:
            leaving.close()

    def _connected(self) -> Any:
        with self._guard:
            if self._client is None:
                config = Config(
                    connect_timeout=CONFIRM_SECONDS,
                    read_timeout=CONFIRM_SECONDS,
                    retries={"total_max_attempts": 1},  # the relay retries, in order
                )
                client = get_session().create_client(
                    "sqs", region_name=self._region, endpoint_url=self._endpoint, config=config
                )
                self._url = client.get_queue_url(QueueName=self._queue)["QueueUrl"]
                self._client = client
            return self._client

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


def _body(body: bytes) -> str | None:
    """The body as SQS carries it; None for what is not text, or none that SQS takes."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if _TEXT.fullmatch(text) else None


def _attributes(message: Message) -> dict[str, str]:
    """Names and headers; where there are too many or odd ones among them, all but the names travel as one."""
    fields = fields_of(message)
    names = {name: header_text(fields.pop(name)) for name in ("id", "type")}
    fits = len(fields) + len(names) < MOST_ATTRIBUTES  # and one for the encoding
    if fits and all(_NAME.fullmatch(name) and _TEXT.fullmatch(value) for name, value in fields.items()):
        return {**fields, **names}
    return {**names, HEADERS: json.dumps(fields)}


def _token(text: str) -> str:
    return text if _TOKEN.fullmatch(text) else hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
