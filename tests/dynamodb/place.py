"""A table of one test's own, and one of its effects."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

from onceward import Inbox
from onceward.stores.dynamodb.recorder import Recorder
from onceward.testing.store_suite import Note


class DynamoPlace:
    """A table at an endpoint; effects are items of a second table, numbered as they are written."""

    def __init__(self, endpoint: str) -> None:
        self.table = f"onceward-{os.urandom(6).hex()}"
        self.effects_table = f"{self.table}-effects"
        self.url = f"dynamodb://eu-central-1/{self.table}?endpoint={endpoint}&shards=1"
        self._written = itertools.count(1)

    def store(self) -> str:
        """Its URL."""
        return self.url

    def prepare(self, inbox: Inbox) -> None:
        """Make the table of effects."""
        store: Any = inbox.store
        store.client().create_table(
            TableName=self.effects_table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        )

    def write(self, tx: Recorder, note: Note) -> None:
        """Record an item."""
        number = next(self._written)
        tx.put(self.effects_table, {"id": number, "message": note[0], "note": note[1]})

    def effects(self, inbox: Inbox) -> list[Note]:
        """The items, in the order of their writing."""
        store: Any = inbox.store
        items = sorted(self._items(store.client()), key=lambda item: int(item["id"]["N"]))
        return [(item["message"]["S"], item["note"]["S"]) for item in items]

    def _items(self, client: Any) -> Iterator[dict[str, Any]]:
        for page in client.get_paginator("scan").paginate(TableName=self.effects_table, ConsistentRead=True):
            yield from page["Items"]
