"""What the contract needs of Pub/Sub."""

from __future__ import annotations

import json
import uuid
from concurrent import futures
from typing import Any

import grpc
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import AcknowledgeRequest, PublishResponse, PubsubMessage, PullResponse

from tests.servers import FaultProxy, PubsubServer
from tests.servers.foreign import ForeignServer
from tests.sources.brokers import dashed
from tests.waiting import wait_until

PROJECT = "tests"


class Ledger(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types
    """Passes every call on, and keeps count of who was acknowledged: Pub/Sub itself tells nobody."""

    def __init__(self, where: str) -> None:
        self._channel = grpc.insecure_channel(where)
        self._named: dict[str, str] = {}
        self.published: set[str] = set()
        self.acknowledged: set[str] = set()
        self._server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[self])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def service(self, details: Any) -> Any:
        method = details.method

        def unary(request: bytes, context: Any) -> bytes:
            answer = b""
            try:
                answer = self._channel.unary_unary(method)(request, timeout=context.time_remaining())
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())  # raises
            self._note(method.rpartition("/")[2], request, answer)
            return answer

        return grpc.unary_unary_rpc_method_handler(unary)

    def _note(self, method: str, request: bytes, answer: bytes) -> None:
        if method == "Pull":
            for one in PullResponse.deserialize(answer).received_messages:
                self._named[one.ack_id] = one.message.message_id
        elif method == "Publish":
            self.published |= set(PublishResponse.deserialize(answer).message_ids)
        elif method == "Acknowledge":
            self.acknowledged |= {self._named[ack_id] for ack_id in AcknowledgeRequest.deserialize(request).ack_ids}

    def close(self) -> None:
        self._server.stop(None).wait()
        self._channel.close()


class PubsubBroker:
    """A topic with one subscription on a private server; a `key` in the body is the ordering key."""

    positions = True
    readers = 2

    def __init__(self, server: PubsubServer | ForeignServer) -> None:
        self.server = server
        name = uuid.uuid4().hex[:8]
        self.topic = f"projects/{PROJECT}/topics/orders-{name}"
        self.subscription = f"projects/{PROJECT}/subscriptions/shop-{name}"
        where = f"{server.host}:{server.port}"
        self._channel = grpc.insecure_channel(where)
        self._publisher = PublisherClient(transport=PublisherGrpcTransport(channel=self._channel))
        self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=self._channel))
        self._ledger = Ledger(where)
        self.proxy = FaultProxy("127.0.0.1", self._ledger.port).start()
        self.make_subscription()

    def make_subscription(self) -> None:
        self._publisher.create_topic(name=self.topic)
        wanted = {"name": self.subscription, "topic": self.topic, "enable_message_ordering": True}
        self._subscriber.create_subscription(request={**wanted, "ack_deadline_seconds": 10})

    def delete_subscription(self) -> None:
        self._subscriber.delete_subscription(subscription=self.subscription)
        self._publisher.delete_topic(topic=self.topic)

    def url(self, *, proxied: bool = False) -> str:
        name = self.subscription.rpartition("/")[2]
        return f"pubsub://{PROJECT}/{name}?deadline=2&endpoint={self.endpoint(proxied=proxied)}"

    def endpoint(self, *, proxied: bool = False) -> str:
        return f"127.0.0.1:{self.proxy.port if proxied else self._ledger.port}"

    def publish(self, body: bytes, *, id: str | None = None, type: str | None = None, **headers: str) -> None:  # noqa: A002
        names = {name: value for name, value in (("id", id), ("type", type)) if value is not None}
        try:
            key = json.loads(body).get("key", "")
        except ValueError:
            key = ""
        message = PubsubMessage(data=body, attributes={**names, **dashed(headers)}, ordering_key=key)
        answer = self._publisher.publish(topic=self.topic, messages=[message])
        self._ledger.published |= set(answer.message_ids)

    def unsettled(self) -> int:
        return len(self._ledger.published - self._ledger.acknowledged)

    def another(self) -> PubsubBroker:
        return PubsubBroker(self.server)

    def restart(self) -> None:
        self.server.restart()
        # The emulator counts from one again.
        self._ledger.published.clear()
        self._ledger.acknowledged.clear()
        wait_until(self._is_back)
        self.make_subscription()

    def _is_back(self) -> bool:
        try:
            list(self._publisher.list_topics(project=f"projects/{PROJECT}", retry=None, timeout=5))
        except Exception:  # noqa: BLE001 - not yet
            return False
        return True

    def close(self) -> None:
        if isinstance(self.server, ForeignServer):
            self.delete_subscription()
        self.proxy.close()
        self._ledger.close()
        self._channel.close()
