"""Food delivery: an order, a restaurant, a courier, a payment; `python examples/delivery.py` plays and counts it.

Four services tell us what happened, each at least once. Their events come twice, late and out of order: the courier has
delivered before the restaurant says that it has accepted, the payment comes two times, and a status of yesterday comes
after the one of today. What must be so in the end: each customer is charged once, each courier is paid once, and each
order ends in the state of its last event.

- Copies: the producer's id, and the ledger. Nothing of it is in the handlers.
- Order within an order: `key` and `sequence`. Each event waits for the one before it.
- A payment that comes before its order: a namespace of its own (`aggregate`), so that neither waits for the other.
- The charge itself is a call to somebody else: `message.once` records that it was made.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from onceward import Inbox, Message, execute

TABLES = (
    "CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY, state text NOT NULL, steps integer NOT NULL)",
    "CREATE TABLE IF NOT EXISTS charges (order_id integer NOT NULL, charge text NOT NULL)",
    "CREATE TABLE IF NOT EXISTS wages (courier text NOT NULL, order_id integer NOT NULL)",
)
STORY = ("placed", "accepted", "cooked", "collected", "delivered")
"""What happens to an order, one after the other; the restaurant says two of it, the courier the last two."""
COURIERS = ("Ada", "Grace", "Linus")


class Bank:
    """Stands in for the payment provider: it charges as often as it is asked."""

    def __init__(self) -> None:
        self.charged: Counter[int] = Counter()

    def charge(self, order: int) -> str:
        """Take the money for an order."""
        self.charged[order] += 1
        return f"ch_{order}"


def service(url: str, bank: Bank) -> Inbox:
    """The inbox of the delivery service, with its handlers."""
    inbox = Inbox(url, service="delivery")
    inbox.migrate()
    with inbox.transaction() as tx:
        for table in TABLES:
            tx.execute(table)

    @inbox.on("order.changed", key="order", sequence="step", gap=timedelta(hours=1))
    def change(message: Message, tx: Any) -> None:
        """Events of an order, in their order, whatever order they came in."""
        event = message.data
        execute(
            tx,
            "INSERT INTO orders VALUES (:order, :state, 1) "
            "ON CONFLICT (id) DO UPDATE SET state = excluded.state, steps = orders.steps + 1",
            event,
        )
        if event["state"] == "delivered":
            execute(tx, "INSERT INTO wages VALUES (:courier, :order)", event)

    @inbox.on("payment.authorised", key="order", aggregate="payment")
    def pay(message: Message, tx: Any) -> None:
        """Charge once. The call is made before the transaction has begun, and a retry gets its record."""
        order = message.data["order"]
        charge = message.once("charge", lambda: bank.charge(order))
        execute(tx, "INSERT INTO charges VALUES (:order, :charge)", {"order": order, "charge": charge})

    return inbox


def deliveries(orders: int, chance: random.Random) -> list[dict[str, Any]]:
    """Everything that the four services send: shuffled, and every second event twice."""
    sent: list[dict[str, Any]] = []
    for order in range(1, orders + 1):
        courier = chance.choice(COURIERS)
        for step, state in enumerate(STORY, start=1):
            data = {"order": order, "step": step, "state": state, "courier": courier}
            source = "courier" if step > 3 else "restaurant"  # noqa: PLR2004 - the last two
            sent.append({"source": source, "id": f"{order}-{step}", "type": "order.changed", "data": data})
        sent.append(
            {"source": "payments", "id": f"pay-{order}", "type": "payment.authorised", "data": {"order": order}}
        )
    sent += [event for event in sent if chance.random() < 0.5]  # noqa: PLR2004 - every second
    chance.shuffle(sent)
    return sent


def play(url: str, orders: int = 50, seed: int = 1) -> dict[str, int]:
    """Deliver everything, a few at a time, and count what came of it."""
    bank, chance = Bank(), random.Random(seed)  # noqa: S311 - a story that can be told again
    with service(url, bank) as inbox:
        sent = deliveries(orders, chance)
        while sent:
            batch, sent = sent[:20], sent[20:]
            for event in batch:
                inbox.receive(**event)
            inbox.drain()
        with inbox.transaction() as tx:
            delivered = tx.execute("SELECT count(*) FROM orders WHERE state = 'delivered' AND steps = 5").fetchone()[0]
            charges = tx.execute("SELECT count(*), count(DISTINCT order_id) FROM charges").fetchone()
            wages = tx.execute("SELECT count(*), count(DISTINCT order_id) FROM wages").fetchone()
        return {
            "orders": orders,
            "delivered, in five steps": delivered,
            "charges": charges[0],
            "orders charged": charges[1],
            "asked of the bank": bank.charged.total(),
            "wages": wages[0],
            "orders paid to a courier": wages[1],
            "duplicates": inbox.admin.stats().duplicates,
        }


def main() -> int:
    """Tell the story on a new database; returns 0 when every number is as it must be."""
    with tempfile.TemporaryDirectory() as folder:
        found = play(f"sqlite:///{Path(folder) / 'delivery.db'}")
    for name, number in found.items():
        sys.stdout.write(f"{number:>5}  {name}\n")
    holds = {number for name, number in found.items() if name != "duplicates"} == {found["orders"]}
    sys.stdout.write("each order once\n" if holds else "this must not be\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
