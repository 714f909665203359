"""A shop on each store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onceward import Inbox
from tests.testing.shop import Shop


@pytest.fixture
def shop(store_url: str) -> Iterator[Shop]:
    """A shop, open."""
    with Inbox(store_url) as inbox:
        yield Shop(inbox).open()


@pytest.fixture
def sqlite_shop(sqlite_url: str) -> Iterator[Shop]:
    """A shop for what is the same on every store."""
    with Inbox(sqlite_url) as inbox:
        yield Shop(inbox).open()
