"""Webhooks in: signatures verified over the raw bytes, stored and committed, then acknowledged.

`inbox.webhooks({"/stripe": Stripe(secret)})` is an ASGI application.
"""

from typing import TYPE_CHECKING, Any

from onceward.steps.first_seen import ECHO
from onceward.webhooks.asgi import Webhooks
from onceward.webhooks.generic import Hmac
from onceward.webhooks.hooks import UNSIGNED, Hooks, Limits, check_sources
from onceward.webhooks.keyring import Secret
from onceward.webhooks.providers import GitHub, Shopify, Slack, Stripe
from onceward.webhooks.standard import StandardWebhooks
from onceward.webhooks.verifier import Event, Verifier

if TYPE_CHECKING:
    from onceward.webhooks.paypal import PayPal

__all__ = [
    "ECHO",
    "UNSIGNED",
    "Event",
    "GitHub",
    "Hmac",
    "Hooks",
    "Limits",
    "PayPal",
    "Secret",
    "Shopify",
    "Slack",
    "StandardWebhooks",
    "Stripe",
    "Verifier",
    "Webhooks",
    "check_sources",
]


def __getattr__(name: str) -> Any:
    """PayPal needs a package that the others do not."""
    if name == "PayPal":
        from onceward.webhooks.paypal import PayPal  # noqa: PLC0415 - its packages are an extra

        return PayPal
    raise AttributeError(name)
