"""A database that cannot be reached, for as long as a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onceward import StoreUnavailable

if TYPE_CHECKING:
    from onceward import Inbox


@contextmanager
def away(inbox: Inbox) -> Iterator[None]:
    """The database of an inbox cannot be reached."""
    store: Any = inbox.store

    def refuse(*_: object, **__: object) -> Any:
        raise StoreUnavailable("the database is away")

    names = ("session", "async_session", "connect", "async_connect")
    for name in names:
        setattr(store, name, refuse)
    try:
        yield
    finally:
        for name in names:
            delattr(store, name)
