"""The other sides: how each sender signs, by its own library where there is one.

Invariant: nothing here uses the code under test, except to send what onceward itself sends.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import standardwebhooks
import stripe
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from slack_sdk.signature import SignatureVerifier

from onceward.webhooks import GitHub, Hmac, Shopify, Slack, StandardWebhooks, Stripe
from onceward.webhooks.paypal import PayPal
from onceward.webhooks.request import Headers, Request
from tests.servers.certificates import Root

NOW = 1_800_000_000
SECRET = "a-secret-of-the-tests"
OTHER = "the-secret-after-it"
SHARED = "whsec_" + base64.b64encode(bytes(range(32))).decode()
ED25519 = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = "whpk_" + base64.b64encode(ED25519.public_key().public_bytes_raw()).decode()


@dataclass(frozen=True)
class Signed:
    """A request as a sender makes it."""

    body: bytes
    headers: Mapping[str, str]

    @property
    def request(self) -> Request:
        """As a verifier sees it."""
        return request(self.body, self.headers)

    def changed(self, *, body: bytes | None = None, **headers: str | None) -> Signed:
        """The same with another body, or other headers (None takes one away; `_` stands for `-`)."""
        return self.with_headers(headers, body)

    def with_headers(self, headers: Mapping[str, str | None], body: bytes | None = None) -> Signed:
        """As `changed`, with the headers in a mapping."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        merged = {**self.headers, **named}
        kept = {name: value for name, value in merged.items() if value is not None}
        return Signed(self.body if body is None else body, kept)


def request(body: bytes, headers: Mapping[str, str]) -> Request:
    """A request with these headers."""
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request(Headers(pairs), body)


def event(message_id: str, **more: Any) -> bytes:
    """The body of an event: what Stripe, Slack, PayPal and others look for in it."""
    fields = {"id": message_id, "event_id": message_id, "type": "order.paid", "event_type": "order.paid"}
    return json.dumps({**fields, "data": {"order": message_id}, **more}).encode()


def sign_stripe(body: bytes, message_id: str, *, now: float = NOW, secret: str = SECRET) -> Signed:
    """By Stripe's library."""
    del message_id
    header = stripe.WebhookSignature.generate_signature_header(body.decode(), secret, int(now))
    return Signed(body, {"stripe-signature": header})


def sign_github(body: bytes, message_id: str, *, now: float = NOW, secret: str = SECRET) -> Signed:
    """As GitHub's documentation has it."""
    del now
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return Signed(
        body,
        {"x-hub-signature-256": f"sha256={digest}", "x-github-delivery": message_id, "x-github-event": "order.paid"},
    )


def sign_slack(body: bytes, message_id: str, *, now: float = NOW, secret: str = SECRET) -> Signed:
    """By Slack's library."""
    del message_id
    signature = SignatureVerifier(secret).generate_signature(timestamp=str(int(now)), body=body)
    return Signed(body, {"x-slack-signature": signature or "", "x-slack-request-timestamp": str(int(now))})


def sign_shopify(body: bytes, message_id: str, *, now: float = NOW, secret: str = SECRET) -> Signed:
    """As Shopify's documentation has it."""
    del now
    digest = base64.b64encode(hmac.new(secret.encode(), body, hashlib.sha256).digest()).decode()
    return Signed(
        body,
        {"x-shopify-hmac-sha256": digest, "x-shopify-webhook-id": message_id, "x-shopify-topic": "order.paid"},
    )


def sign_standard(body: bytes, message_id: str, *, now: float = NOW, secret: str = SHARED) -> Signed:
    """By the standard's library."""
    moment = datetime.fromtimestamp(int(now), UTC)
    signature = standardwebhooks.Webhook(secret).sign(message_id, moment, body.decode())
    return Signed(body, {"webhook-id": message_id, "webhook-timestamp": str(int(now)), "webhook-signature": signature})


def sign_ed25519(body: bytes, message_id: str, *, now: float = NOW, secret: str = "") -> Signed:
    """As the standard has it; its Python library knows no public keys."""
    key = Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32) if secret else ED25519
    signature = base64.b64encode(key.sign(f"{message_id}.{int(now)}.".encode() + body)).decode()
    headers = {"webhook-id": message_id, "webhook-timestamp": str(int(now)), "webhook-signature": f"v1a,{signature}"}
    return Signed(body, headers)


def sign_generic(body: bytes, message_id: str, *, now: float = NOW, secret: str = SECRET) -> Signed:
    """A sender that signs id, time and body with SHA-512."""
    text = f"{message_id}:{int(now)}:".encode() + body
    digest = base64.b64encode(hmac.new(secret.encode(), text, hashlib.sha512).digest()).decode()
    return Signed(body, {"x-signature": f"v9={digest}", "x-id": message_id, "x-time": str(int(now))})


def generic(secrets: Any = SECRET, **options: Any) -> Hmac:
    """The verifier for `sign_generic`."""
    settings: dict[str, Any] = {
        "header": "X-Signature",
        "prefix": "v9=",
        "encoding": "base64",
        "digest": "sha512",
        "signed": "{X-Id}:{timestamp}:{body}",
        "timestamp": "X-Time",
        "id": "header:X-Id",
        "type": "type",
    }
    return Hmac("generic", secrets, **{**settings, **options})


class Authority:
    """A certificate authority, and PayPal's server of certificates, as the tests need them."""

    def __init__(self, *, bits: int = 2048) -> None:
        self._root = Root(datetime.fromtimestamp(NOW, UTC))
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
        self.served = self.chain()
        self.fetches: list[tuple[str, str]] = []

    @property
    def roots(self) -> bytes:
        """The root, as PEM."""
        return self._root.pem

    def chain(
        self,
        name: str = "messageverificationcerts.paypal.com",
        *,
        begin: float = NOW - 86_400,
        days: int = 90,
        key: Any = None,
    ) -> bytes:
        """A certificate for a name, as PEM."""
        start = datetime.fromtimestamp(begin, UTC)
        return self._root.issue(name, key or self.key, start, start + timedelta(days=days))

    def fetch(self, host: str, path: str) -> bytes:
        """Instead of the network."""
        self.fetches.append((host, path))
        return self.served


AUTHORITY = Authority()
WEBHOOK_ID = "9XL90610J3647323C"
CERTIFICATE = "https://api.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-a5cafa77"


def sign_paypal(
    body: bytes, message_id: str, *, now: float = NOW, secret: str = "", authority: Authority = AUTHORITY
) -> Signed:
    """As PayPal's documentation has it."""
    del message_id
    moment = datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    transmission = "d938e770-8046-11e6-8103-6b62a8a99ac4"
    text = f"{transmission}|{moment}|{secret or WEBHOOK_ID}|{zlib.crc32(body)}"
    signature = authority.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    headers = {
        "paypal-transmission-id": transmission,
        "paypal-transmission-time": moment,
        "paypal-auth-algo": "SHA256withRSA",
        "paypal-cert-url": CERTIFICATE,
        "paypal-transmission-sig": base64.b64encode(signature).decode(),
    }
    return Signed(body, headers)


def paypal(webhook_id: str = WEBHOOK_ID, **options: Any) -> PayPal:
    """PayPal's verifier, with the tests' authority instead of the world's."""
    return PayPal(webhook_id, **{"roots": AUTHORITY.roots, "fetch": AUTHORITY.fetch, **options})


@dataclass(frozen=True)
class Sender:
    """One sender: how it signs, who verifies it, which headers it signs with."""

    name: str
    sign: Callable[..., Signed]
    verifier: Callable[..., Any]
    signature: str
    other: str = OTHER
    """A secret that is not the verifier's."""
    secrets: Any = field(default=SECRET)


SENDERS = [
    Sender("stripe", sign_stripe, Stripe, "stripe-signature"),
    Sender("github", sign_github, GitHub, "x-hub-signature-256"),
    Sender("slack", sign_slack, Slack, "x-slack-signature"),
    Sender("shopify", sign_shopify, Shopify, "x-shopify-hmac-sha256"),
    Sender(
        "standard",
        sign_standard,
        StandardWebhooks,
        "webhook-signature",
        "whsec_" + base64.b64encode(bytes(32)).decode(),
        SHARED,
    ),
    Sender("ed25519", sign_ed25519, StandardWebhooks, "webhook-signature", "another", PUBLIC),
    Sender("paypal", sign_paypal, paypal, "paypal-transmission-sig", "0000000000000", WEBHOOK_ID),
    Sender("generic", sign_generic, generic, "x-signature"),
]
