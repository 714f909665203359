"""The example is a service that works: wallets in DynamoDB."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from tests.dynamodb.place import DynamoPlace


def test_wallets_are_paid_into_and_out_of_once(place: DynamoPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies change nothing, and what is not there is not paid out."""
    monkeypatch.setenv("WALLET_DATABASE", place.url)
    monkeypatch.setenv("WALLET_TABLE", place.effects_table)
    wallet: Any = importlib.reload(importlib.import_module("examples.wallet"))
    inbox = wallet.inbox
    inbox.migrate()
    store: Any = inbox.store
    store.client().create_table(
        TableName=place.effects_table,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    orders = [("in", "money.received", 500), ("out", "money.wanted", 200), ("too much", "money.wanted", 400)]
    for name, kind, cents in [*orders, *orders]:
        inbox.receive(source="bank", id=name, type=kind, data={"wallet": "w1", "cents": cents})

    async def drained() -> None:
        await inbox.adrain()
        await inbox.store.async_close()

    asyncio.run(drained())
    item = store.client().get_item(TableName=place.effects_table, Key={"id": {"S": "w1"}})["Item"]
    (dead,) = inbox.admin.messages(status="dead")
    assert (item["cents"], dead.id) == ({"N": "300"}, "too much")
    assert [row.type for row in inbox.admin.messages(outgoing=True)] == ["payout.wanted"]
    inbox.close()
