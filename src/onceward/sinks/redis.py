"""A Redis stream as the destination. Redis answers when it has the entry; how well it keeps it is its configuration."""

from __future__ import annotations

from typing import Any

from onceward.domain.address import Address
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.retry import Reject
from onceward.sinks.headers import fields_of
from onceward.sinks.loop import CONFIRM_SECONDS

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError, ResponseError
    from redis.retry import Retry
except ImportError as error:
    raise ConfigurationError("Redis Streams need: pip install 'onceward[redis]'") from error

FORM = "redis://host:6379/0?stream=NAME"


class RedisSink:
    """`redis://host:6379/0?stream=orders`.

    The field `body` is the body, `id` and `type` are its names, other fields are headers.
    """

    def __init__(self, url: str) -> None:
        address = Address.of(url, FORM)
        self._stream, self._where = address["stream"], f"{address.shown} stream {address['stream']!r}"
        self._client: Any = redis.Redis.from_url(
            address.server,
            socket_connect_timeout=CONFIRM_SECONDS,
            socket_timeout=CONFIRM_SECONDS,
            retry=Retry(NoBackoff(), 0),  # the relay retries, in order
            protocol=2,
        )

    def publish(self, message: Message) -> None:
        try:
            self._client.xadd(self._stream, {**fields_of(message), "body": message.body})
        except ResponseError as refused:
            if "WRONGTYPE" in str(refused):
                raise Reject(f"{self._where} is something else than a stream; name another, then redrive") from refused
            raise ConnectionError(f"{self._where} refused: {refused}") from refused
        except (RedisError, OSError) as trouble:
            raise ConnectionError(f"{self._where} did not confirm: {type(trouble).__name__}: {trouble}") from trouble

    def close(self) -> None:
        self._client.close()
