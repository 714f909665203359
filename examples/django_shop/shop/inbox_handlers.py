"""What the shop does about its messages; found by its name, as each app's."""

from __future__ import annotations

from onceward import Message, Reject

from .inbox import inbox
from .models import Order


@inbox.on("order.placed", key="order_id")
def confirm(message: Message) -> None:
    """Confirm an order."""
    order = Order.objects.get(pk=message.data["order_id"])
    order.confirmations += 1
    order.save()


@inbox.on("checkout.session.completed", key="data.object.client_reference_id")
def pay(message: Message) -> None:
    """Book a payment, in the transaction in which its message is finished."""
    checkout = message.data["data"]["object"]
    order = Order.objects.filter(pk=checkout["client_reference_id"]).first()
    if order is None:
        raise Reject(f"there is no order {checkout['client_reference_id']}")
    order.payments += 1
    order.save()
