"""A shop on Flask: SQLAlchemy, Stripe's webhook, and a worker beside the web server.

    pip install 'onceward[standard,sqlalchemy]' flask
    export SHOP_STRIPE_SECRET=whsec_...                            # Stripe's signing secret of this endpoint
    flask --app examples.flask_shop.app run                        # SHOP_DATABASE=postgresql://... for PostgreSQL
    onceward run examples.flask_shop.app:inbox                     # the worker: a process of its own

`POST /orders` stores an order, and a message in the same commit; its handler confirms the order. Stripe's
`checkout.session.completed` comes to `POST /hooks/stripe`; its handler books the payment, once, however often Stripe
sends the event and whichever process dies. The columns `confirmations` and `payments` count how often that happened.
"""

from __future__ import annotations

import os
from typing import Any
from uuid import uuid4

from flask import Flask, abort, request
from sqlalchemy import BigInteger, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from onceward import Inbox, Message, Reject
from onceward.webhooks import Stripe

DATABASE = os.environ.get("SHOP_DATABASE", "sqlite:///flask_shop.db")

inbox = Inbox(DATABASE, service="shop")
engine = create_engine(DATABASE.replace("postgresql:", "postgresql+psycopg:"))
session = scoped_session(sessionmaker(engine))


class Table(DeclarativeBase):
    """What the shop's tables have in common."""


class Order(Table):
    """An order, and how often its messages took effect."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int] = mapped_column(BigInteger)
    confirmations: Mapped[int] = mapped_column(default=0)
    payments: Mapped[int] = mapped_column(default=0)


@inbox.on("order.placed", key="order_id")
def confirm(message: Message, tx: Session) -> None:
    """Confirm an order."""
    tx.get_one(Order, message.data["order_id"]).confirmations += 1


@inbox.on("checkout.session.completed", key="data.object.client_reference_id")
def pay(message: Message, tx: Session) -> None:
    """Book a payment, in the transaction in which its message is finished."""
    checkout = message.data["data"]["object"]
    order = tx.get(Order, checkout["client_reference_id"])
    if order is None:
        raise Reject(f"there is no order {checkout['client_reference_id']}")
    order.payments += 1


Table.metadata.create_all(engine)
inbox.migrate()

app = Flask(__name__)
hooks = inbox.webhooks({"/stripe": Stripe(os.environ.get("SHOP_STRIPE_SECRET", ""))})
app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/hooks": hooks.wsgi})  # type: ignore[method-assign] # as Flask says


@app.teardown_appcontext
def end(_: BaseException | None) -> None:
    """Give the connection back; what was not committed is rolled back."""
    session.remove()


@app.post("/orders")
def place() -> tuple[dict[str, str], int]:
    """Store an order and the message about it: both, or neither."""
    amount = (request.get_json(silent=True) or {}).get("amount")
    if not isinstance(amount, int) or amount <= 0:
        abort(422)
    order_id = uuid4().hex
    session.add(Order(id=order_id, amount=amount))
    inbox.receive(source="shop", id=order_id, type="order.placed", data={"order_id": order_id}, tx=session)
    session.commit()
    return {"id": order_id}, 201


@app.get("/orders/<order_id>")
def show(order_id: str) -> dict[str, Any]:
    """An order, and what became of it."""
    order = session.get(Order, order_id)
    if order is None:
        abort(404)
    return {"id": order.id, "amount": order.amount, "confirmations": order.confirmations, "payments": order.payments}
