"""The shipped suite on our own stores: what it promises to those who write stores, ours keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from onceward import Inbox
from onceward.stores.postgres.store import PostgresStore
from onceward.stores.protocol import Store
from onceward.testing.memory import MemoryStore, Recorder
from onceward.testing.store_suite import Note, Place, StoreSuite
from tests.contract.harness import SqlPlace


class MemoryPlace:
    """A memory store; effects are rows under their numbers."""

    def __init__(self) -> None:
        self._store, self._written = MemoryStore(), 0

    def store(self) -> Store:
        """The store itself: its inboxes share it, as processes share a database."""
        return self._store

    def prepare(self, inbox: Inbox) -> None:
        """There is nothing to make."""

    def write(self, tx: Recorder, note: Note) -> None:
        """Record a row."""
        self._written += 1
        tx.put("effects", self._written, note=note)

    def effects(self, inbox: Inbox) -> list[Note]:
        """The rows."""
        with inbox.transaction() as tx:
            return [row["note"] for row in tx.rows("effects").values()]


class CursorPlace(SqlPlace):
    """PostgreSQL without pipelines: each statement of ours by itself, through psycopg's cursors."""

    def store(self) -> Any:
        """A store that does so."""
        return PostgresStore(self.url, "onceward_", pipelining=False)


PLACES = {"sqlite": SqlPlace, "postgres": SqlPlace, "cursors-postgres": CursorPlace, "mariadb": SqlPlace}


class TestStores(StoreSuite):
    """Every promise, on each of our stores."""

    @pytest.fixture(params=[*PLACES, "memory"])
    def place(self, request: pytest.FixtureRequest) -> Iterator[Place]:
        """An empty database of each kind."""
        if request.param == "memory":
            yield MemoryPlace()
            return
        place: Any = PLACES[request.param](request.getfixturevalue(f"{request.param.rpartition('-')[2]}_url"))
        yield place
        place.window.close()
