"""PostgreSQL through psycopg 3: needs `onceward[postgres]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.errors import ConfigurationError

if TYPE_CHECKING:
    from onceward.stores.protocol import Store, StoreOptions


def open_store(url: str, options: StoreOptions) -> Store:
    """The entry point: the store in a database of PostgreSQL."""
    try:
        from onceward.stores.postgres.store import PostgresStore  # noqa: PLC0415 - the driver loads on demand
    except ImportError as error:
        message = "PostgreSQL needs its driver: pip install 'onceward[postgres]'"
        raise ConfigurationError(message) from error
    return PostgresStore(url, options.prefix, options.pool, pipelining=options.pipelining)
