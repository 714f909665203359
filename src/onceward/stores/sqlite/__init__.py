"""SQLite through the standard library; async work needs `onceward[sqlite]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceward.stores.protocol import Store, StoreOptions


def open_store(url: str, options: StoreOptions) -> Store:
    """The entry point: the store in a SQLite file."""
    from onceward.stores.sqlite.store import SqliteStore  # noqa: PLC0415 - the driver loads on demand

    return SqliteStore(url, options.prefix, options.lock_wait)
