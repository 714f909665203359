"""A shop with something of everything: what the pages of the dashboard are tested on."""

from __future__ import annotations

from typing import Any

from onceward import Inbox, Message, Reject, Retry
from onceward.dashboard import Credential

OPERATOR = Credential("ada", "operator", "operator-secret-123")
READER = Credential("grace", "reader", "reader-secret-12345")
VIEWER = Credential("bob", "viewer", "viewer-secret-12345")
PEOPLE = (OPERATOR, READER, VIEWER)


def opened(url: str) -> Inbox:
    """An inbox with handlers and tables, and nothing in it."""
    inbox = Inbox(url, service="shop", code_version="1.4.2")
    inbox.migrate()
    with inbox.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, state text NOT NULL)")

    @inbox.on("order.paid", key="order")
    def paid(message: Message, tx: Any) -> dict[str, Any]:
        if message.data.get("amount", 0) < 0:
            raise Reject(f"order {message.data['order']} has a negative amount")
        sign = "?" if inbox.url.startswith("sqlite") else "%s"
        tx.execute(
            f"INSERT INTO orders (id, state) VALUES ({sign}, 'paid') ON CONFLICT (id) DO UPDATE SET state = 'paid'",
            [str(message.data["order"])],
        )
        message.send("order.confirmed", {"order": message.data["order"]}, key=message.data["order"])
        return {"confirmed": True}

    @inbox.on("order.shipped", key="order")
    def shipped(message: Message, tx: Any) -> None:
        del tx
        if message.data.get("late"):
            raise Retry("the carrier does not answer", after=3600)

    @inbox.on("card.charged")
    def charged(message: Message, tx: Any) -> None:
        del tx
        message.once("charge", lambda: {"charge": message.data["amount"]})

    return inbox


def fill(inbox: Inbox) -> dict[str, int]:
    """Put something of everything into it; answers the numbers by name."""

    def receive(number: int | str, kind: str, source: str = "stripe", **data: Any) -> int:
        headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
        return inbox.receive(source=source, id=f"evt_{number}", type=kind, data=data, headers=headers).seq

    seqs: dict[str, int] = {}
    for number in range(1, 41):
        seqs["done"] = receive(number, "order.paid", order=1000 + number, amount=20 + number)
    for _ in range(3):
        receive(40, "order.paid", order=1040, amount=60)
    receive(7, "order.paid", order=1007, amount=2700)  # another amount under the same id
    for number in range(50, 56):
        seqs["dead"] = receive(number, "order.paid", order=2000 + number, amount=-number)
    seqs["waiting"] = receive(60, "order.paid", order=2055, amount=9)
    seqs["retrying"] = receive(61, "order.shipped", "carrier", order=3001, late=True)
    seqs["unhandled"] = receive(62, "order.refunded", "carrier", order=3002)
    seqs["charged"] = receive(63, "card.charged", amount=12)
    inbox.drain()
    seqs["due"] = receive(64, "order.paid", order=5001, amount=5)
    inbox.admin.redrive(seqs["dead"], reason="the bank is back", actor="ada")
    inbox.drain()
    receive(65, "order.paid", order=5002, amount=5)
    return seqs
