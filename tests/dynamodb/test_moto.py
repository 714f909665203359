"""moto as a second opinion: conditions and transactions mean the same to two implementations."""

from __future__ import annotations

from typing import Any

import pytest

from onceward import Inbox, Message
from tests.dynamodb.place import DynamoPlace
from tests.servers import MotoServer


@pytest.fixture
def place(moto_server: MotoServer) -> DynamoPlace:
    """A table of this test's own, at moto."""
    return DynamoPlace(f"http://127.0.0.1:{moto_server.port}")


def test_a_message_takes_effect_once_and_a_key_keeps_its_order(inbox: Inbox, place: DynamoPlace) -> None:
    """Received twice, handled, sent on, duplicates and mismatches told apart."""

    @inbox.on("order.paid", key="k")
    def pay(message: Message, tx: Any) -> None:
        place.write(tx, (message.id, "paid"))

    for name in ("m1", "m2", "m3"):
        for _ in range(2):
            inbox.receive(source="shop", id=name, type="order.paid", data={"k": 1})
    assert inbox.receive(source="shop", id="m1", type="order.paid", data={"k": 2}).status == "mismatch"
    inbox.drain()
    assert [name for name, _ in place.effects(inbox)] == ["m1", "m2", "m3"]
    assert inbox.process(source="shop", id="m2", type="order.paid", data={"k": 1}).status == "duplicate"
    assert inbox.admin.stats().done == 3
