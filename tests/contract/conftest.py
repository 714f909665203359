"""A shop on each store, with each kind of handler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from tests.contract.harness import Kind, Shop
from tests.stores import postgres_database

__all__ = ["postgres_database"]


@pytest.fixture(params=["def", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Which kind of handler, and which half of the API."""
    return cast("Kind", request.param)


@pytest.fixture
def shop(store_url: str, kind: Kind) -> Iterator[Shop]:
    """A shop on each store, of each kind."""
    with Shop(store_url, kind) as shop:
        yield shop


@pytest.fixture
def postgres_shop(postgres_url: str, kind: Kind) -> Iterator[Shop]:
    """A shop on PostgreSQL, for what only PostgreSQL has."""
    with Shop(postgres_url, kind) as shop:
        yield shop


@pytest.fixture
def sqlite_shop(sqlite_url: str, kind: Kind) -> Iterator[Shop]:
    """A shop on SQLite, for what only SQLite has."""
    with Shop(sqlite_url, kind) as shop:
        yield shop
