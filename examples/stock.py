"""A shop's stock, kept in Redis (or Valkey): no SQL database, and each order counted once.

    export STOCK_STORE=redis://localhost:6379/0   # with appendonly yes and appendfsync always
    onceward migrate examples.stock:inbox
    onceward run examples.stock:inbox &
    python -m examples.stock 100                  # 100 orders, each of them delivered twice

What the handler writes through `tx` are commands, which Redis applies together with "done": whoever is killed, an order
takes its apples once. `watch` is for what depends on a read: a bonus of which there is one.
"""

from __future__ import annotations

import os
import sys

from onceward import Inbox, Message
from onceward.stores.redis.transaction import RedisTransaction

inbox = Inbox(os.environ.get("STOCK_STORE", "redis://localhost:6379/0"), service="stock")


@inbox.on("order.placed", key="fruit")
def take(message: Message, tx: RedisTransaction) -> None:
    """Take what was ordered, and tell the warehouse."""
    order = message.data
    tx.hincrby("stock", order["fruit"], -order["count"])
    tx.xadd("picking", {"order": order["number"], "fruit": order["fruit"], "count": order["count"]})
    tx.watch("bonus")
    if tx.read("GET", "bonus") is None:
        tx.set("bonus", order["number"])


def deliver(numbers: range) -> None:
    """What a web shop does that sends everything twice."""
    for number in (*numbers, *numbers):
        name, fruit = f"o-{number}", ("apple", "pear", "plum")[number % 3]
        inbox.receive(source="web", id=name, type="order.placed", data={"number": name, "fruit": fruit, "count": 2})


if __name__ == "__main__":
    deliver(range(int(sys.argv[1])))
