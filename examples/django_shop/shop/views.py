"""What the shop answers."""

from __future__ import annotations

import json
from uuid import uuid4

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from .inbox import hooks, inbox
from .models import Order

stripe = hooks.wsgi.django("/stripe")


@csrf_exempt  # a program's interface: nothing here goes by cookies
@require_POST
def place(request: HttpRequest) -> HttpResponse:
    """Store an order and the message about it: both, or neither."""
    try:
        amount = json.loads(request.body)["amount"]
    except (ValueError, KeyError, TypeError):
        amount = None
    if not isinstance(amount, int) or amount <= 0:
        return JsonResponse({"error": "amount must be a whole number above 0"}, status=422)
    with transaction.atomic():
        order = Order.objects.create(id=uuid4().hex, amount=amount)
        inbox.receive(source="shop", id=order.id, type="order.placed", data={"order_id": order.id})
    return JsonResponse({"id": order.id}, status=201)


def show(_: HttpRequest, order_id: str) -> HttpResponse:
    """An order, and what became of it."""
    order = get_object_or_404(Order, pk=order_id)
    return JsonResponse(
        {
            "id": order.id,
            "amount": order.amount,
            "confirmations": order.confirmations,
            "payments": order.payments,
        }
    )
