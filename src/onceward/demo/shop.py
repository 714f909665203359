"""The shop of the demo, an ordinary program that uses onceward: an inbox, one handler, and the senders that deliver.

The senders give each delivery to the shop, and to its careless neighbour (`careless.py`).
The table `payment` has no unique constraint on purpose: an effect applied twice would stand there twice.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from onceward import Inbox, Message, Reject, Settings
from onceward.message import Arguments

STORE, CARELESS = "ONCEWARD_DEMO_STORE", "ONCEWARD_DEMO_CARELESS"
ACCOUNTS = 40
DUPLICATES = 0.3
HANDLER_SECONDS = 0.001
BATCH = 20
SENDERS = 2

TABLES = (
    "CREATE TABLE payment (message text NOT NULL, account text NOT NULL, amount integer NOT NULL)",
    "CREATE TABLE account (name text PRIMARY KEY, balance integer NOT NULL)",
)

# A short lease, so that messages of a killed process come back soon even if nobody saw it die.
inbox = Inbox(
    os.environ.get(STORE, "sqlite:///onceward-demo.db"), service="shop", settings=Settings(lease=timedelta(seconds=2))
)


@inbox.on("payment.received", key="account")
def book(message: Message, tx: Any) -> None:
    """Book a payment: one row, and the balance of its account."""
    if message.data.get("poison") == "rejected":
        raise Reject("the currency of this payment does not exist")
    if message.data.get("poison") == "deadly":
        os._exit(1)  # as the kernel does when memory runs out, without an exception
    time.sleep(HANDLER_SECONDS)
    account, amount = message.data["account"], message.data["amount"]
    tx.execute("INSERT INTO payment VALUES (?, ?, ?)", [message.id, account, amount])
    tx.execute(
        "INSERT INTO account VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET balance = balance + excluded.balance",
        [account, amount],
    )


def payments(seed: int, messages: int) -> list[Arguments]:
    """The messages of a demo, each once: the same for every process that knows the seed. The last two are poison."""
    chance = random.Random(seed)  # noqa: S311 - a repeatable show, not a secret
    found: list[Arguments] = []
    for number in range(messages):
        data: dict[str, Any] = {"account": f"account-{chance.randrange(ACCOUNTS)}", "amount": chance.randint(1, 500)}
        # An account of their own: a dead message holds back the later ones of its account, as it should.
        if number == messages - 1:
            data |= {"poison": "rejected", "account": "account-of-a-fool"}
        elif number == messages - 2:
            data |= {"poison": "deadly", "account": "account-of-a-killer"}
        found.append({"source": "bank", "id": f"pay_{seed}_{number}", "type": "payment.received", "data": data})
    return found


def deliveries(seed: int, messages: int, sender: int) -> Iterator[tuple[int, Arguments]]:
    """What one sender delivers, with its place: its share, shuffled; copies come from the other one."""
    chance = random.Random(seed)  # noqa: S311 - as above
    every = payments(seed, messages)
    chance.shuffle(every)
    for place, message in enumerate(every):
        first = place % SENDERS
        again = chance.random() < DUPLICATES
        if sender == first or (again and sender == (first + 1) % SENDERS):
            yield place * SENDERS + (sender != first), message


def deliver(seed: int, messages: int, sender: int) -> None:
    """Deliver in small batches, as a webhook endpoint under load would."""
    from onceward.demo import careless  # noqa: PLC0415 - it imports this module

    stream = deliveries(seed, messages, sender)
    with inbox:
        while batch := list(islice(stream, BATCH)):
            careless.deliver(Path(os.environ[CARELESS]), batch)
            inbox.receive_many(message for _, message in batch)


def work(name: str, parent: int) -> None:
    """A worker under the demo's supervisor."""
    from onceward.runtime.supervisor import follow_parent  # noqa: PLC0415 - senders start without

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s [%(process)d] %(message)s")
    follow_parent(parent)
    with inbox:
        inbox.run(process=name)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(sys.argv[2], int(sys.argv[3]))
    else:
        deliver(*map(int, sys.argv[2:]))
