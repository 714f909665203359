"""Google Pub/Sub as the destination: confirmed by the topic; the key is the ordering key."""

from __future__ import annotations

import os
import threading
from typing import Any

from onceward.domain.address import Address
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject
from onceward.sinks.headers import fields_of
from onceward.sinks.loop import CONFIRM_SECONDS

try:
    import grpc
    from google.api_core.exceptions import GoogleAPIError, InvalidArgument, NotFound
    from google.auth.exceptions import GoogleAuthError
    from google.pubsub_v1 import PublisherClient
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
    from google.pubsub_v1.types import PubsubMessage
except ImportError as error:
    raise ConfigurationError("Google Pub/Sub needs: pip install 'onceward[pubsub]'") from error

FORM = "pubsub://PROJECT/TOPIC?endpoint="


class PubsubSink:
    """`pubsub://project/orders`; `endpoint=host:port` (or PUBSUB_EMULATOR_HOST) for an emulator.

    The id and the type are the attributes `id` and `type`.
    """

    def __init__(self, url: str) -> None:
        address = Address.of(url, FORM)
        self._topic, self._where = f"projects/{address.host}/topics/{address.path}", address.shown
        self._endpoint = address["endpoint"] or os.environ.get("PUBSUB_EMULATOR_HOST")
        self._guard = threading.Lock()
        self._client: Any = None

    def publish(self, message: Message) -> None:
        wanted = PubsubMessage(data=message.body, attributes=fields_of(message), ordering_key=message.key or "")
        client = None
        try:
            client = self._connected()
            client.publish(topic=self._topic, messages=[wanted], retry=None, timeout=CONFIRM_SECONDS)
        except (NotFound, InvalidArgument) as refused:
            raise Reject(f"{self._where}: {refused}; cure that, then redrive") from refused
        except (GoogleAPIError, GoogleAuthError, OSError) as trouble:
            self._drop(client)  # it would wait longer each time before it connects again
            raise ConnectionError(f"{self._where} did not confirm: {type(trouble).__name__}: {trouble}") from trouble

    def close(self) -> None:
        self._drop(self._client)

    def _connected(self) -> Any:
        with self._guard:
            if self._client is None:
                if self._endpoint:
                    channel = grpc.insecure_channel(self._endpoint)
                    self._client = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
                else:
                    self._client = PublisherClient()
            return self._client

    def _drop(self, client: Any) -> None:
        with self._guard:
            if self._client is client:  # and not one that was made since
                self._client = None
        if client is not None:
            client.transport.close()
