"""Shops with a journal on each store, with each kind of handler; and processes to kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.contract.harness import Kind, Shop
from tests.order.ledger import Clerk, Marks, open_journal
from tests.stores import PLAYS_ALL, postgres_database

__all__ = ["postgres_database"]

_MARIADB = ("mariadb-def", "mariadb-async") if PLAYS_ALL else ()
DIAGONAL = ("sqlite-def", "postgres-async", *_MARIADB[:1])
"""Both stores and both kinds, for promises whose steps are the same for all."""
ALL = ("sqlite-def", "sqlite-async", "postgres-def", "postgres-async", *_MARIADB)

everywhere = pytest.mark.parametrize("shop", ALL, indirect=True)
on_every_store = pytest.mark.parametrize("shop", [*dict.fromkeys([*ALL, "mariadb-def"])], indirect=True)
"""For what MySQL has words of its own for."""


@pytest.fixture(params=["def", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Which kind of handler, and which half of the API."""
    return cast("Kind", request.param)


@pytest.fixture(params=DIAGONAL)
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A shop on each store, one of each kind; where a test is marked `everywhere`, of both kinds on both stores."""
    store, _, kind = request.param.partition("-")
    with Shop(request.getfixturevalue(f"{store}_url"), kind) as shop:
        open_journal(shop)
        yield shop


@pytest.fixture
def postgres_shop(postgres_url: str, kind: Kind) -> Iterator[Shop]:
    """A shop on PostgreSQL, for what needs two writers at once."""
    with Shop(postgres_url, kind) as shop:
        open_journal(shop)
        yield shop


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    """Where handlers say that they begin and end."""
    return Marks(str(tmp_path / "marks"))


@pytest.fixture
def clerk(marks: Marks, tmp_path: Path) -> Clerk:
    """The ordinary handler."""
    return Clerk(marks, str(tmp_path))
