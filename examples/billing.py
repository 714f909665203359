"""The second of two services with RabbitMQ between them: it writes an invoice for each order of `examples.orders`."""

from __future__ import annotations

import os
from typing import Any

from onceward import Inbox, Message

QUEUE = os.environ.get("ORDERS_QUEUE", "invoices")
BROKER = os.environ.get("ORDERS_BROKER", "amqp://guest:guest@localhost:5672/")

inbox = Inbox(os.environ.get("BILLING_DATABASE", "sqlite:///billing.db"), service="billing")
inbox.add_source(f"{BROKER}?queue={QUEUE}", source="orders")

with inbox.transaction() as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS invoices (number text NOT NULL, customer text NOT NULL)")


@inbox.on("invoice.wanted", key="customer")
def bill(message: Message, tx: Any) -> None:
    """One invoice per order."""
    order = message.data
    mark = "?" if inbox.url.startswith("sqlite") else "%s"
    tx.execute(f"INSERT INTO invoices VALUES ({mark}, {mark})", (order["number"], order["customer"]))
