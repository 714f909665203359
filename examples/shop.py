"""The reference service: a shop that is told about orders and payments by webhooks. Every event takes effect once.

    export SHOP_STRIPE_SECRET=whsec_...                  # Stripe's signing secret of this endpoint
    export SHOP_STANDARD_SECRET=whsec_$(head -c 32 /dev/urandom | base64)
    onceward migrate examples.shop:inbox                 # SHOP_DATABASE=postgresql://... for PostgreSQL
    onceward run examples.shop:inbox --http 127.0.0.1:8080

`POST /hooks/standard` takes `order.placed`, `POST /hooks/stripe` takes `checkout.session.completed` and
`payment_intent.succeeded`. A payment sends `order.confirmed` in its own commit; the relay brings it back into the same
inbox. The columns `payments` and `confirmations` count how often that happened: once per event, whoever was killed.
"""

from __future__ import annotations

import os
from typing import Any

from onceward import Inbox, Message, Reject
from onceward.sinks.inbox import InboxSink
from onceward.webhooks import StandardWebhooks, Stripe

inbox = Inbox(os.environ.get("SHOP_DATABASE", "sqlite:///shop.db"), service="shop")
inbox.add_sink("default", InboxSink(inbox, source="shop"))
hooks = inbox.webhooks(
    {
        "/hooks/stripe": Stripe(os.environ.get("SHOP_STRIPE_SECRET", "")),
        "/hooks/standard": StandardWebhooks(os.environ.get("SHOP_STANDARD_SECRET", "")),
    }
)

ORDERS = """
CREATE TABLE IF NOT EXISTS orders (
    id            text PRIMARY KEY,
    amount        bigint,
    currency      text,
    status        text NOT NULL,
    paid          bigint NOT NULL DEFAULT 0,
    payments      integer NOT NULL DEFAULT 0,
    confirmations integer NOT NULL DEFAULT 0
)
"""


def run(tx: Any, statement: str, *values: Any) -> Any:
    """Execute a statement on either database: SQLite writes its parameters as ?, PostgreSQL as %s."""
    return tx.execute(statement if inbox.url.startswith("sqlite") else statement.replace("?", "%s"), values)


@inbox.on("order.placed", key="data.order_id")
def place(message: Message, tx: Any) -> None:
    """Remember what was ordered; a payment may have come before."""
    order = message.data["data"]
    run(
        tx,
        "INSERT INTO orders (id, amount, currency, status) VALUES (?, ?, ?, 'placed') "
        "ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, currency = excluded.currency",
        str(order["order_id"]),
        order["amount"],
        order["currency"],
    )


def order_of(message: Message) -> str | None:
    """The order that a Stripe event is about: the shop put its number there when it began the payment."""
    paid = message.data["data"]["object"]
    return paid.get("client_reference_id") or (paid.get("metadata") or {}).get("order_id")


@inbox.on("checkout.session.completed", key=order_of)
@inbox.on("payment_intent.succeeded", key=order_of)
def pay(message: Message, tx: Any) -> None:
    """Book a payment. A signature says who sent it, not that it is right: amount and currency are compared."""
    paid, number = message.data["data"]["object"], order_of(message)
    if not number:
        raise Reject("this payment names no order: client_reference_id and metadata.order_id are missing")
    amount = paid["amount_total"] if "amount_total" in paid else paid["amount_received"]
    known = run(tx, "SELECT amount, currency FROM orders WHERE id = ?", number).fetchone()
    if known and known[0] is not None and tuple(known) != (amount, paid["currency"]):
        raise Reject(f"order {number} is {known[0]} {known[1]}, not {amount} {paid['currency']}")
    run(
        tx,
        "INSERT INTO orders (id, status, paid, payments) VALUES (?, 'paid', ?, 1) ON CONFLICT (id) DO UPDATE "
        "SET status = 'paid', paid = orders.paid + excluded.paid, payments = orders.payments + 1",
        number,
        amount,
    )
    message.send("order.confirmed", {"order_id": number}, key=number)


@inbox.on("order.confirmed", key="order_id")
def confirm(message: Message, tx: Any) -> None:
    """What the shop told itself, through its outbox."""
    run(tx, "UPDATE orders SET confirmations = confirmations + 1 WHERE id = ?", message.data["order_id"])


def prepare() -> None:
    """The shop's own table. Several processes may start at once; PostgreSQL wants one of them to go first."""
    with inbox.transaction() as tx:
        if not inbox.url.startswith("sqlite"):
            tx.execute("SELECT pg_advisory_xact_lock(7)")
        tx.execute(ORDERS)


prepare()
