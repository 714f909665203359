"""Fixtures: a shop on each store whose handler books payments, in both worlds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from onceward import Inbox, Message, Reject
from tests.stores import postgres_database

__all__ = ["postgres_database"]

SOURCE = "stripe"


def sign(inbox: Inbox) -> str:
    """How the driver writes a parameter."""
    return "?" if inbox.url.startswith("sqlite") else "%s"


@pytest.fixture
def inbox(store_url: str) -> Iterator[Inbox]:
    """An inbox with a table `account` and no handlers yet."""
    with Inbox(store_url, service="shop", code_version="1.4.2") as made:
        made.migrate()
        with made.transaction() as tx:
            tx.execute("CREATE TABLE account (id varchar(64) PRIMARY KEY, balance integer NOT NULL)")
            tx.execute("INSERT INTO account VALUES ('a', 100), ('b', 7)")
        yield made


def pay(inbox: Inbox) -> None:
    """Register a handler that moves money."""
    mark = sign(inbox)

    @inbox.on("paid", key="account")
    def paid(message: Message, tx: Any) -> dict[str, Any]:
        amount = message.data["amount"]
        if amount < 0:
            raise Reject(f"amount {amount} of {message.id} is negative")
        values = [amount, message.data["account"]]
        tx.execute(f"UPDATE account SET balance = balance + {mark} WHERE id = {mark}", values)
        message.send("booked", {"amount": amount})
        return {"booked": amount}


def deliver(inbox: Inbox, number: int, *, amount: int = 5, account: str = "a", kind: str = "paid") -> int:
    """Receive a payment; answers its number."""
    data = {"account": account, "amount": amount}
    return inbox.receive(source=SOURCE, id=f"evt-{number}", type=kind, data=data).seq


def balances(inbox: Inbox) -> dict[str, int]:
    """What is in the accounts."""
    with inbox.transaction() as tx:
        return dict(tx.execute("SELECT id, balance FROM account").fetchall())
