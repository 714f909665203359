"""The shipped suite on Redis: the same handlers, retries, sources and relay as on every other store."""

from __future__ import annotations

import json

import pytest

from onceward import Inbox
from onceward.stores.redis.transaction import RedisTransaction
from onceward.testing.store_suite import Note, Place, StoreSuite


class RedisPlace:
    """A database of a Redis; effects are entries of a list."""

    def __init__(self, url: str) -> None:
        self._url = url

    def store(self) -> str:
        """Its address: each inbox has a store of its own."""
        return self._url

    def prepare(self, inbox: Inbox) -> None:
        """There is nothing to make."""

    def write(self, tx: RedisTransaction, note: Note) -> None:
        """Record an entry."""
        tx.rpush("effects", json.dumps(note))

    def effects(self, inbox: Inbox) -> list[Note]:
        """The entries."""
        with inbox.transaction() as tx:
            return [tuple(json.loads(entry)) for entry in tx.read("LRANGE", "effects", 0, -1)]


class TestRedis(StoreSuite):
    """Every promise."""

    @pytest.fixture
    def place(self, address: str) -> Place:
        """An empty database."""
        return RedisPlace(address)
