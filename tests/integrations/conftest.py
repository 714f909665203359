"""A shop whose tables are SQLAlchemy's, on each store, with each kind of handler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from tests.integrations.shop import Kind, OrmShop


@pytest.fixture(params=["def", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Which kind of handler."""
    return cast("Kind", request.param)


@pytest.fixture
def orm_shop(store_url: str, kind: Kind) -> Iterator[OrmShop]:
    """A shop on each store, of each kind."""
    with OrmShop(store_url, kind) as shop:
        yield shop
