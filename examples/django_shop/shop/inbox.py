"""The inbox of the shop, in its own database, and the webhooks that it takes."""

from __future__ import annotations

from django.conf import settings

from onceward.integrations.django import DjangoInbox
from onceward.webhooks import Stripe

inbox = DjangoInbox(service="shop")
hooks = inbox.webhooks({"/stripe": Stripe(settings.STRIPE_SECRET)})
