"""What fragments of the documentation take for granted: the program of a shop around them."""

from __future__ import annotations

import contextlib  # noqa: F401 - for the fragments, as all that is imported here
import os
import sqlite3  # noqa: F401
from datetime import UTC, datetime, timedelta  # noqa: F401
from typing import Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse  # noqa: F401

from onceward import Inbox, Message, Reject, Retry, execute  # noqa: F401
from onceward.dashboard import Credential
from onceward.sinks.http import HttpSink  # noqa: F401
from onceward.sinks.inbox import InboxSink  # noqa: F401
from onceward.webhooks import Hmac, Secret, Stripe  # noqa: F401

SECRETS = ("STRIPE_SECRET", "GITHUB_SECRET", "OLD_SHOP_SECRET", "WAREHOUSE_SECRET", "ADA_SECRET", "DASHBOARD_SECRET")
os.environ |= {name: f"{name.lower()} of the shop, as long as it must be" for name in SECRETS}
os.environ |= {"OPS_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}

people = [Credential("ada", "operator", os.environ["ADA_SECRET"])]
billing = Inbox("sqlite:///billing.db", service="billing")
app = Starlette()
inbox = Inbox("sqlite:///shop.db", service="shop")
inbox.migrate()
with inbox.transaction() as tx:
    tx.execute(
        "CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY, paid integer NOT NULL, state text, version integer)"
    )
    tx.execute("INSERT INTO orders VALUES (7, 0, 'new', 1) ON CONFLICT (id) DO NOTHING")


@inbox.on("order.refused", key="order_id")
def refuse(message: Message, tx: Any) -> None:
    """Makes a dead letter, for pages about these."""
    del tx
    raise Reject(f"order {message.data['order_id']} does not exist")


seq = inbox.receive(source="stripe", id="evt_0", type="order.refused", data={"order_id": 4711}).seq
inbox.drain()


def tell_the_team(alert: Any) -> None:
    """An alert hook."""
