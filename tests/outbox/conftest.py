"""Shops on each store, with each kind of handler; sinks; and processes to kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.harness import Shop
from tests.order.conftest import DIAGONAL
from tests.order.nursery import Nursery
from tests.outbox.post import LATER, Post


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
    shop.inbox.sink("default", post.sink(shop.kind), retry=LATER)
    return post


@pytest.fixture(scope="session")
def warm_nursery() -> Iterator[Nursery]:
    """The process that all children of this test process come from."""
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def nursery(warm_nursery: Nursery) -> Iterator[Nursery]:
    """Starts children; what a test leaves running is killed after it."""
    yield warm_nursery
    warm_nursery.clear()
