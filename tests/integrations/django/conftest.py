"""A shop of Django's on each store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.integrations.django.project import configured_django

configured_django()

if TYPE_CHECKING:
    from tests.integrations.django.running import DjangoShop


@pytest.fixture
def kind() -> str:
    """There are no `async def` handlers."""
    return "def"


@pytest.fixture(autouse=True)
def only_its_own() -> Iterator[None]:
    """A project keeps its inboxes; a test must not find those of another."""
    from onceward.integrations.django import inbox  # noqa: PLC0415 - Django must be set up first

    inbox._made.clear()
    yield
    inbox._made.clear()


@pytest.fixture
def shop(store_url: str) -> Iterator[DjangoShop]:
    """On each store."""
    yield from _shop(store_url)


@pytest.fixture
def postgres_shop(postgres_url: str) -> Iterator[DjangoShop]:
    """On PostgreSQL."""
    yield from _shop(postgres_url)


@pytest.fixture
def sqlite_shop(sqlite_url: str) -> Iterator[DjangoShop]:
    """On SQLite."""
    yield from _shop(sqlite_url)


def _shop(url: str, **more: Any) -> Iterator[DjangoShop]:
    from tests.integrations.django.running import DjangoShop  # noqa: PLC0415 - Django must be set up first

    with DjangoShop(url, **more) as shop:
        yield shop
