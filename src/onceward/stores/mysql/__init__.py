"""MySQL and MariaDB through PyMySQL, and asyncmy for async work: needs `onceward[mysql]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.errors import ConfigurationError

if TYPE_CHECKING:
    from onceward.stores.protocol import Store, StoreOptions


def open_store(url: str, options: StoreOptions) -> Store:
    """The entry point: the store in a database of MySQL's family."""
    try:
        from onceward.stores.mysql.store import MysqlStore  # noqa: PLC0415 - the driver loads on demand
    except ImportError as error:
        message = "MySQL and MariaDB need their driver: pip install 'onceward[mysql]'"
        raise ConfigurationError(message) from error
    return MysqlStore(url, options.prefix, options.pool)
