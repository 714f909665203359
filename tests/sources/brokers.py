"""What the contract needs of a broker: publish, look, kill, cut."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import nats
import redis
from nats.js.errors import NotFoundError

from tests.servers import FaultProxy, NatsServer, RedisServer


class Broker(Protocol):
    """A real broker with a queue of this test's own."""

    proxy: FaultProxy

    def url(self, *, proxied: bool = False) -> str:
        """The source's address."""

    def publish(self, body: bytes, *, id: str | None = None, type: str | None = None, **headers: str) -> None:  # noqa: A002
        """Deliver a message, as a producer does."""

    def unsettled(self) -> int:
        """How many messages the broker has not been told to forget."""

    def restart(self) -> None:
        """Kill -9, and start again."""

    def close(self) -> None:
        """Close what this made."""


class RedisBroker:
    """A stream on a private Redis."""

    def __init__(self, server: RedisServer) -> None:
        self._server, self._stream = server, f"orders-{uuid.uuid4().hex[:8]}"
        self._client: Any = redis.Redis(port=server.port)
        self.proxy = FaultProxy("127.0.0.1", server.port).start()

    def url(self, *, proxied: bool = False) -> str:
        port = self.proxy.port if proxied else self._server.port
        return f"redis://127.0.0.1:{port}/0?stream={self._stream}&group=shop&claim_after=1"

    def publish(self, body: bytes, *, id: str | None = None, type: str | None = None, **headers: str) -> None:  # noqa: A002
        names = {name: value for name, value in (("id", id), ("type", type)) if value is not None}
        self._client.xadd(self._stream, {"body": body, **names, **dashed(headers)})

    def publish_fields(self, fields: Mapping[str, str]) -> None:
        self._client.xadd(self._stream, dict(fields))

    def unsettled(self) -> int:
        groups = self._client.xinfo_groups(self._stream) if self._client.exists(self._stream) else []
        if not groups:
            return int(self._client.xlen(self._stream))
        (group,) = groups
        unread = len(self._client.xrange(self._stream, f"({group['last-delivered-id'].decode()}", "+"))
        return int(group["pending"]) + unread

    def consumers(self) -> int:
        return int(self._client.xinfo_groups(self._stream)[0]["consumers"])

    def trim(self) -> None:
        self._client.xtrim(self._stream, maxlen=0)

    def forget_everything(self) -> None:
        """As a Redis that came back without its data."""
        self._client.flushall()

    def restart(self) -> None:
        self._server.restart()

    def close(self) -> None:
        self._client.close()
        self.proxy.close()


class NatsBroker:
    """A stream on a private NATS server."""

    def __init__(self, server: NatsServer) -> None:
        self._server, self._stream = server, f"orders-{uuid.uuid4().hex[:8]}"
        self.subject = f"{self._stream}.paid"
        self.proxy = FaultProxy("127.0.0.1", server.port).start()
        self.make_stream()

    def url(self, *, proxied: bool = False) -> str:
        port = self.proxy.port if proxied else self._server.port
        return f"nats://127.0.0.1:{port}?stream={self._stream}&durable=shop&ack_wait=1"

    def publish(self, body: bytes, *, id: str | None = None, type: str | None = None, **headers: str) -> None:  # noqa: A002
        # Not Nats-Msg-Id: the server itself would drop what is sent twice soon after.
        names = {name: value for name, value in (("id", id), ("type", type)) if value is not None}
        self._do(lambda stream: stream.publish(self.subject, body, headers={**names, **dashed(headers)}))

    def unsettled(self) -> int:
        async def count(stream: Any) -> int:
            try:
                consumer = await stream.consumer_info(self._stream, "shop")
            except NotFoundError:
                return int((await stream.stream_info(self._stream)).state.messages)
            return int(consumer.num_pending + consumer.num_ack_pending)

        return int(self._do(count))

    def make_stream(self) -> None:
        self._do(lambda stream: stream.add_stream(name=self._stream, subjects=[f"{self._stream}.>"]))

    def delete_stream(self) -> None:
        self._do(lambda stream: stream.delete_stream(self._stream))

    def restart(self) -> None:
        self._server.restart()

    def close(self) -> None:
        self.proxy.close()

    def _do(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        async def connected() -> Any:
            connection = await nats.connect(f"nats://127.0.0.1:{self._server.port}")
            try:
                return await work(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(connected())


def dashed(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers as they are spelt on the wire."""
    return {name.replace("_", "-"): value for name, value in headers.items()}
