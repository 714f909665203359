"""The first of two services with RabbitMQ between them: it takes orders, and tells `examples.billing` about each.

    export ORDERS_BROKER=amqp://guest:guest@localhost:5672/
    onceward migrate examples.billing:inbox && onceward migrate examples.orders:inbox
    onceward run examples.billing:inbox &      # first: it makes the queue
    onceward run examples.orders:inbox &
    python -m examples.orders 100              # places 100 orders, each of them twice

An order is a row here and an invoice there, each once, whoever is killed: the row, the message to the other service and
the mark that the order is done are one commit; the relay publishes until RabbitMQ has confirmed, always under the same
id; and the other inbox knows that id.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from onceward import Inbox, Message

QUEUE = os.environ.get("ORDERS_QUEUE", "invoices")
BROKER = os.environ.get("ORDERS_BROKER", "amqp://guest:guest@localhost:5672/")

inbox = Inbox(os.environ.get("ORDERS_DATABASE", "sqlite:///orders.db"), service="orders")
inbox.add_sink("billing", f"{BROKER}?routing_key={QUEUE}")

with inbox.transaction() as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS orders (number text NOT NULL, customer text NOT NULL)")


@inbox.on("order.placed", key="customer")
def place(message: Message, tx: Any) -> None:
    """Keep the order, and send it on, in the same commit."""
    order = message.data
    mark = "?" if inbox.url.startswith("sqlite") else "%s"
    tx.execute(f"INSERT INTO orders VALUES ({mark}, {mark})", (order["number"], order["customer"]))
    message.send("invoice.wanted", order, key=order["customer"], to="billing")


def deliver(numbers: range) -> None:
    """What a web shop does that sends everything twice."""
    for number in (*numbers, *numbers):
        order = {"number": f"o-{number}", "customer": f"c-{number % 7}"}
        inbox.receive(source="web", id=order["number"], type="order.placed", data=order)


if __name__ == "__main__":
    deliver(range(int(sys.argv[1])))
