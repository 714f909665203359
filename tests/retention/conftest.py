"""A shop on each store whose retention has run out for everything that is finished."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from onceward import Settings
from tests.contract.harness import Shop
from tests.stores import postgres_database

__all__ = ["postgres_database"]

# Nothing is too young to go, so a test needs no clock; and nobody prunes but the test itself.
NOW = Settings(body_retention=timedelta(0), dedupe_retention=timedelta(0), maintenance=None)
# Bodies may go at once, ids stay.
BODIES = Settings(body_retention=timedelta(0), maintenance=None)


@pytest.fixture
def shop(store_url: str) -> Iterator[Shop]:
    """A shop that keeps nothing it need not keep."""
    with Shop(store_url, "def", settings=NOW) as shop:
        yield shop


@pytest.fixture
def remembering(store_url: str) -> Iterator[Shop]:
    """A shop that keeps ids and no bodies."""
    with Shop(store_url, "def", settings=BODIES) as shop:
        yield shop
