"""Redis Streams: a consumer group, read with XREADGROUP, acknowledged with XACK; published with XADD.

Redis never delivers again by itself what a dead consumer was given: entries that were not acknowledged for
`claim_after` seconds are taken over with XAUTOCLAIM, also our own whose delivery was lost on the way. It confirms an
entry when it has it; how well it keeps it is its configuration.

Invariant: a consumer with pending entries is never deleted, since Redis would forget the entries with it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from onceward.brokers.connection import CONFIRM_SECONDS
from onceward.brokers.protocol import Arrival, Broker, BrokerUnavailable, unavailable, unconfirmed
from onceward.domain import identity
from onceward.domain.address import Address
from onceward.domain.headers import fields_of, text_of
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject

try:
    import redis.asyncio
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError, ResponseError
    from redis.retry import Retry
except ImportError as error:
    raise ConfigurationError("Redis Streams need: pip install 'onceward[redis]'") from error

CONNECT_SECONDS, TLS_CLOSE_SECONDS = 5.0, 0.05
BODY = b"body"
START = b"0-0"


class RedisStream:
    """`redis://host:6379/0?stream=orders&group=shop&claim_after=30`.

    An entry's field `body` is the body, `id` and `type` are its names, other fields are headers. Without a field `body`
    the fields themselves are the data, as a JSON object.
    """

    form = "redis://host:6379/0?stream=NAME&group=onceward&claim_after=30"
    redelivery = timedelta(days=30)
    """As long as the stream keeps an entry, which only its owner knows; declare your own where it is longer."""
    positions = True

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        self._url, self._stream, self._group = address.server, address["stream"], address["group"]
        self._claim_after = address.seconds("claim_after")
        self._consumer = identity.new_id()
        self._client: Any = None
        self._claimed_at, self._cursor = 0.0, START
        self.name = f"{address.shown} stream {self._stream}"

    async def open(self) -> None:
        self._client = redis.asyncio.Redis.from_url(
            self._url, socket_connect_timeout=CONNECT_SECONDS, socket_timeout=CONNECT_SECONDS, protocol=2
        )
        self._claimed_at, self._cursor = 0.0, START
        try:
            # From the beginning: what was there before us must not be missed.
            await self._ask("xgroup_create", self._stream, self._group, "0", mkstream=True)
        except BrokerUnavailable as trouble:
            if "BUSYGROUP" not in str(trouble):
                leaving, self._client = self._client, None
                await leaving.aclose()
                # TLS takes leave in its own time, which the client does not wait for; the loop may end right after us.
                await asyncio.sleep(TLS_CLOSE_SECONDS)
                raise

    async def next(self, limit: int, seconds: float) -> list[Arrival]:
        taken_over = await self._taken_over(limit)
        if taken_over:
            return taken_over
        milliseconds = max(1, int(min(seconds, self._claim_after / 2) * 1000))
        answer = await self._ask(
            "xreadgroup", self._group, self._consumer, {self._stream: ">"}, count=limit, block=milliseconds
        )
        return [self._arrival(*entry) for _, entries in answer for entry in entries]

    async def ack(self, arrivals: Sequence[Arrival]) -> None:
        await self._ask("xack", self._stream, self._group, *(arrival.handle for arrival in arrivals))

    async def nack(self, arrivals: Sequence[Arrival]) -> None:
        """Redis has no command for it: what is not acknowledged is taken over in time."""

    async def close(self) -> None:
        if self._client is None:
            return
        try:
            pending = await self._ask("xpending_range", self._stream, self._group, "-", "+", 1, self._consumer)
            if not pending:
                await self._ask("xgroup_delconsumer", self._stream, self._group, self._consumer)
        except BrokerUnavailable:
            pass  # it is only tidier
        finally:
            leaving, self._client = self._client, None
            await leaving.aclose()

    async def _taken_over(self, limit: int) -> list[Arrival]:
        """Entries that were not acknowledged for too long; looked for at the start, and then now and then."""
        now = time.monotonic()
        if self._cursor == START and self._claimed_at and now - self._claimed_at < self._claim_after / 2:
            return []
        self._claimed_at = now
        idle = int(self._claim_after * 1000)
        words = (self._stream, self._group, self._consumer, idle, self._cursor)
        self._cursor, entries, *_ = await self._ask("xautoclaim", *words, count=limit)
        # Before Redis 7 an entry that was trimmed away comes as nothing.
        return [self._arrival(*entry) for entry in entries if entry[0] is not None]

    def _arrival(self, entry: bytes, fields: dict[bytes, bytes]) -> Arrival:
        texts = {text_of(name): text_of(value) for name, value in fields.items() if name != BODY}
        body = fields.get(BODY)
        return Arrival(
            body=json.dumps(texts).encode() if body is None else bytes(body),
            headers={} if body is None else texts,
            handle=entry,
            position=f"redis:{self._stream}/{entry.decode()}",
            id=texts.get("id"),
            type=texts.get("type"),
        )

    async def _ask(self, command: str, *words: Any, **options: Any) -> Any:
        if self._client is None:
            raise BrokerUnavailable("not connected")
        with unavailable(RedisError):
            try:
                return await getattr(self._client, command)(*words, **options)
            except ResponseError as refused:  # also NOGROUP, when Redis came back without its data: open makes it anew
                raise BrokerUnavailable(f"Redis refused {command}: {refused}") from refused


class RedisSink:
    """`redis://host:6379/0?stream=orders`.

    The field `body` is the body, `id` and `type` are its names, other fields are headers.
    """

    form = "redis://host:6379/0?stream=NAME"

    def __init__(self, url: str) -> None:
        address = Address.of(url, self.form)
        self._stream, self._where = address["stream"], f"{address.shown} stream {address['stream']!r}"
        self._client: Any = redis.Redis.from_url(
            address.server,
            socket_connect_timeout=CONFIRM_SECONDS,
            socket_timeout=CONFIRM_SECONDS,
            retry=Retry(NoBackoff(), 0),  # the relay retries, in order
            protocol=2,
        )

    def publish(self, message: Message) -> None:
        with unconfirmed(self._where, RedisError):
            try:
                self._client.xadd(self._stream, {**fields_of(message), "body": message.body})
            except ResponseError as refused:
                if "WRONGTYPE" in str(refused):
                    raise Reject(f"{self._where} is not a stream; name another key, then redrive") from refused
                raise

    def close(self) -> None:
        self._client.close()


BROKER = Broker(RedisStream, RedisSink)
