"""Two careless handlers, what the test kit says about them, and both corrected: python examples/careless.py."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceward import Inbox, Message
from onceward.testing import Report, prove_exactly_once

ORDER = {"source": "stripe", "id": "evt_1", "type": "order.paid", "data": {"order_id": 7}}


class PaymentProvider:
    """Stands in for an HTTP client: remembers the calls it gets."""

    def __init__(self) -> None:
        self.charges: list[int] = []

    def charge(self, order_id: int) -> str:
        """Take the money."""
        self.charges.append(order_id)
        return f"ch_{order_id}"


class Shop:
    """An inbox with an orders table in the same database, and handlers good and bad."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.provider = PaymentProvider()
        self.inbox = Inbox(f"sqlite:///{path}")
        self.inbox.migrate()
        with self.inbox.transaction() as tx:
            tx.execute("CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY, payments integer, charge text)")
            tx.execute("INSERT OR IGNORE INTO orders VALUES (7, 0, NULL)")

    def count_payment_careless(self, message: Message, tx: Any) -> None:
        """Opens a connection of its own, as an old repository class would, and commits there."""
        with contextlib.closing(sqlite3.connect(self.path, timeout=0.1)) as connection:
            connection.execute("UPDATE orders SET payments = payments + 1 WHERE id = ?", [message.data["order_id"]])
            connection.commit()
        tx.execute("UPDATE orders SET charge = 'booked' WHERE id = ?", [message.data["order_id"]])

    def count_payment(self, message: Message, tx: Any) -> None:
        """Everything through tx: it is one transaction, with the message's own "done" in it."""
        tx.execute("UPDATE orders SET payments = payments + 1 WHERE id = ?", [message.data["order_id"]])
        tx.execute("UPDATE orders SET charge = 'booked' WHERE id = ?", [message.data["order_id"]])

    def charge_careless(self, message: Message, tx: Any) -> None:
        """Calls the provider in the middle of a transaction that may still be undone."""
        charge = self.provider.charge(message.data["order_id"])
        tx.execute("UPDATE orders SET charge = ? WHERE id = ?", [charge, message.data["order_id"]])

    def charge(self, message: Message, tx: Any) -> None:
        """Records the call before and after it is made; a retry gets the record."""
        charge = message.once("charge", lambda: self.provider.charge(message.data["order_id"]))
        tx.execute("UPDATE orders SET charge = ? WHERE id = ?", [charge, message.data["order_id"]])

    def prove(self, handler: Callable[..., Any]) -> Report:
        """Run a handler through everything that can happen to it."""
        self.inbox.on("order.paid")(handler)
        return prove_exactly_once(
            self.inbox,
            ORDER,
            check=lambda connection: connection.execute("SELECT id, payments, charge FROM orders").fetchall(),
            external=lambda: self.provider.charges,
            modes=["store-first"],
        )


def main() -> None:
    """Prove all four."""
    for name in ("count_payment_careless", "count_payment", "charge_careless", "charge"):
        with tempfile.TemporaryDirectory() as directory:
            shop = Shop(Path(directory) / "shop.db")
            print(shop.prove(getattr(shop, name)), end="\n\n")  # noqa: T201 - the output is its purpose
            shop.inbox.close()


if __name__ == "__main__":
    main()
