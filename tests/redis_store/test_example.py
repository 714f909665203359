"""The example of a service whose state is in Redis."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def test_each_order_takes_its_fruit_once(address: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOCK_STORE", address)
    stock = importlib.reload(importlib.import_module("examples.stock"))
    with stock.inbox:
        stock.inbox.migrate()
        stock.deliver(range(30))
        while len(client.xrange("picking")) < 30:
            stock.inbox.drain()
        assert stock.inbox.admin.stats().duplicates == 30
    assert client.hgetall("stock") == {"apple": "-20", "pear": "-20", "plum": "-20"}
    assert client.get("bonus") == "o-0"
