"""What the contract needs of SQS."""

from __future__ import annotations

import base64
import json
import os
import time
import uuid
from functools import cache
from typing import Any

import botocore.session

from tests.servers import FaultProxy, MotoServer
from tests.servers.foreign import ForeignServer
from tests.sources.brokers import dashed

REGION = "eu-west-1"
# Before any process is started that reads or writes: the server takes whatever it is shown.
os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@cache  # it takes a while to read what SQS is
def _client(where: str) -> Any:
    session = botocore.session.get_session()
    return session.create_client("sqs", region_name=REGION, endpoint_url=f"http://{where}")


class SqsBroker:
    """A FIFO queue on a private server; messages with a `key` in their body are a group, each other one its own."""

    positions = True
    readers = 2

    def __init__(self, server: MotoServer | ForeignServer) -> None:
        self.server = server
        self.queue = f"orders-{uuid.uuid4().hex[:8]}.fifo"
        self.proxy = FaultProxy(server.host, server.port).start()
        self.client = _client(f"{server.host}:{server.port}")
        self.make_queue()

    def make_queue(self) -> None:
        self.queue_url = self.client.create_queue(QueueName=self.queue, Attributes={"FifoQueue": "true"})["QueueUrl"]

    def url(self, *, proxied: bool = False, queue: str = "") -> str:
        return f"sqs://{REGION}/{queue or self.queue}?visibility=2&endpoint={self.endpoint(proxied=proxied)}"

    def endpoint(self, *, proxied: bool = False) -> str:
        where = f"127.0.0.1:{self.proxy.port}" if proxied else f"{self.server.host}:{self.server.port}"
        return f"http://{where}"

    def publish(self, body: bytes, *, id: str | None = None, type: str | None = None, **headers: str) -> None:  # noqa: A002
        names = {name: value for name, value in (("id", id), ("type", type)) if value is not None}
        try:
            text, data = body.decode(), json.loads(body)
        except ValueError:
            text, data = f"{base64.b64encode(body).decode()}\n", {}  # SQS takes no body of nothing
            names["onceward-base64"] = "true"
        key = data.get("key") or uuid.uuid4().hex
        # A dedupe id of its own: the queue itself would drop what is sent twice soon after.
        self.send(text, {**names, **dashed(headers)}, MessageGroupId=key, MessageDeduplicationId=uuid.uuid4().hex)

    def send(self, text: str, headers: dict[str, str], **options: Any) -> None:
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in headers.items()}
        options.setdefault("QueueUrl", self.queue_url)
        self.client.send_message(MessageBody=text, MessageAttributes=attributes, **options)

    def unsettled(self, queue_url: str = "") -> int:
        time.sleep(0.1)  # paces those who ask again and again: a look costs more than the wait. It decides nothing
        answer = self.client.get_queue_attributes(QueueUrl=queue_url or self.queue_url, AttributeNames=["All"])
        counts = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        return sum(int(answer["Attributes"][name]) for name in counts)

    def another(self) -> SqsBroker:
        return SqsBroker(self.server)

    def restart(self) -> None:
        self.server.restart()
        self.make_queue()

    def close(self) -> None:
        if isinstance(self.server, ForeignServer):
            self.client.delete_queue(QueueUrl=self.queue_url)
        self.proxy.close()
