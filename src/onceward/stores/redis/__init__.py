"""Redis and Valkey through redis-py: needs `onceward[redis]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.errors import ConfigurationError

if TYPE_CHECKING:
    from onceward.stores.protocol import Store, StoreOptions


def open_store(url: str, options: StoreOptions) -> Store:
    """The entry point: the store in a Redis or Valkey server."""
    try:
        from onceward.stores.redis.store import RedisStore  # noqa: PLC0415 - the driver loads on demand
    except ImportError as error:
        message = "Redis and Valkey need their driver: pip install 'onceward[redis]'"
        raise ConfigurationError(message) from error
    return RedisStore(url, options.prefix, options.pool)
