"""Shops on each store, with each kind of handler; sinks; and processes to kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.harness import Shop
from tests.order.conftest import DIAGONAL
from tests.outbox.post import LATER, Post
from tests.stores import postgres_database

__all__ = ["postgres_database"]


@pytest.fixture(params=DIAGONAL)
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A shop on each store, one of each kind; where a test is marked `everywhere`, of both kinds on both stores."""
    store, _, kind = request.param.partition("-")
    with Shop(request.getfixturevalue(f"{store}_url"), kind) as shop:
        yield shop


@pytest.fixture
def post(shop: Shop) -> Post:
    """The shop's default sink, of the shop's kind."""
    post = Post()
    shop.inbox.add_sink("default", post.sink(shop.kind), retry=LATER)
    return post
