"""Senders with a scheme of their own, all HMAC-SHA256: Stripe, GitHub, Slack, Shopify.

Invariant: the signature is checked over the bytes that came, before anything in them is read.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from datetime import timedelta

from onceward.webhooks.keyring import Keyring, Secrets
from onceward.webhooks.request import (
    MAX_SIGNATURES,
    NotAuthentic,
    Request,
    base64_bytes,
    check_time,
    fields_of,
    hex_bytes,
    seconds,
    text_of,
)
from onceward.webhooks.verifier import TOLERANCE, Event, Sample, Signed, checked_tolerance, digest_id

DIGEST_BYTES = 32
_SCHEME = re.compile(r"[a-z][a-z0-9]{0,7}")
_CHALLENGE = re.compile(r"[A-Za-z0-9_.=-]{1,256}")


class Stripe:
    """`Stripe-Signature: t=...,v1=...`; id and type are in the signed body."""

    redelivery = timedelta(days=30)
    """Three days of retries, and resending by hand for as long as events can be listed."""
    waits = False
    keeps: Sequence[str] = ()

    def __init__(self, secrets: Secrets, *, source: str = "stripe", tolerance: timedelta = TOLERANCE) -> None:
        self.source = source
        self._keys, self._tolerance = Keyring(source, secrets), checked_tolerance(tolerance)
        self.signers = self._keys.signers

    def verify(self, request: Request, now: float) -> Event:
        stamp, signatures = self._read(request.headers.signed("stripe-signature"))
        check_time(seconds(stamp), now, past=self._tolerance, future=self._tolerance)
        secret = self._keys.match(f"{stamp}.".encode() + request.body, signatures, now)
        event = fields_of(request.body)
        return Event(text_of(event.get("id")), text_of(event.get("type")), secret)

    def sign(self, sample: Sample, now: float) -> Signed:
        """As Stripe would send it: the data becomes the event's `data.object`."""
        content = {"id": sample.id, "object": "event", "type": sample.type, "created": int(now)}
        body = json.dumps({**content, "data": {"object": sample.data}}).encode()
        signature = self._keys.sign(f"{int(now)}.".encode() + body, now).hex()
        return Signed({"stripe-signature": f"t={int(now)},v1={signature}"}, body)

    @staticmethod
    def _read(header: str) -> tuple[str, list[bytes]]:
        stamps, signatures = [], []
        for part in header.split(","):
            scheme, _, value = part.partition("=")
            if not _SCHEME.fullmatch(scheme) or not value:
                raise NotAuthentic("the signature header is not a list of name=value")
            if scheme == "t":
                stamps.append(value)
            elif scheme == "v1":
                signatures.append(hex_bytes(value, DIGEST_BYTES))
        if len(stamps) != 1 or not 1 <= len(signatures) <= MAX_SIGNATURES:
            raise NotAuthentic("the signature header must have one time and 1 to 16 signatures")
        return stamps[0], signatures


class GitHub:
    """`X-Hub-Signature-256: sha256=...` over the body alone: delivery id and event name are not signed.

    `by_body=True` makes the body's hash the id: no replay under a new id, but equal genuine events are one.
    """

    redelivery = timedelta(days=3)
    waits = False
    keeps = ("x-github-event", "x-github-hook-id", "x-github-hook-installation-target-id")

    def __init__(self, secrets: Secrets, *, source: str = "github", by_body: bool = False) -> None:
        self.source = source
        self._keys, self._by_body = Keyring(source, secrets), by_body
        self.signers = self._keys.signers

    def verify(self, request: Request, now: float) -> Event:
        scheme, _, value = request.headers.signed("x-hub-signature-256").partition("=")
        if scheme != "sha256":
            raise NotAuthentic("the signature is not sha256=...")
        secret = self._keys.match(request.body, [hex_bytes(value, DIGEST_BYTES)], now)
        kind = request.headers.get("x-github-event")
        if self._by_body:
            return Event(digest_id(request.body), kind, secret, ("type",))
        return Event(request.headers.get("x-github-delivery"), kind, secret, ("id", "type"))

    def sign(self, sample: Sample, now: float) -> Signed:
        """As GitHub would send it: the data is the body."""
        body = json.dumps(sample.data).encode()
        signature = f"sha256={self._keys.sign(body, now).hex()}"
        named = {"x-github-delivery": sample.id, "x-github-event": sample.type}
        return Signed({"x-hub-signature-256": signature, **named}, body)


class Slack:
    """`X-Slack-Signature: v0=...` over time and body; the Events API. Responds to the URL handshake by itself."""

    redelivery = timedelta(hours=2)
    waits = False
    keeps = ("x-slack-retry-num", "x-slack-retry-reason")

    def __init__(self, secrets: Secrets, *, source: str = "slack", tolerance: timedelta = TOLERANCE) -> None:
        self.source = source
        self._keys, self._tolerance = Keyring(source, secrets), checked_tolerance(tolerance)
        self.signers = self._keys.signers

    def verify(self, request: Request, now: float) -> Event:
        stamp = request.headers.signed("x-slack-request-timestamp")
        scheme, _, value = request.headers.signed("x-slack-signature").partition("=")
        if scheme != "v0":
            raise NotAuthentic("the signature is not v0=...")
        check_time(seconds(stamp), now, past=self._tolerance, future=self._tolerance)
        secret = self._keys.match(f"v0:{stamp}:".encode() + request.body, [hex_bytes(value, DIGEST_BYTES)], now)
        event = fields_of(request.body)
        kind, challenge = text_of(event.get("type")), event.get("challenge")
        if kind == "url_verification" and _may_be_echoed(challenge):
            return Event(None, kind, secret, challenge=challenge)
        inner = event.get("event")
        if kind == "event_callback" and isinstance(inner, dict):
            kind = text_of(inner.get("type"))
        return Event(text_of(event.get("event_id")), kind, secret)

    def sign(self, sample: Sample, now: float) -> Signed:
        """As Slack's Events API would send it: the data becomes the inner event."""
        inner = {**(sample.data if isinstance(sample.data, dict) else {}), "type": sample.type}
        body = json.dumps({"type": "event_callback", "event_id": sample.id, "event": inner}).encode()
        stamp = str(int(now))
        signature = f"v0={self._keys.sign(f'v0:{stamp}:'.encode() + body, now).hex()}"
        return Signed({"x-slack-signature": signature, "x-slack-request-timestamp": stamp}, body)


def _may_be_echoed(challenge: object) -> bool:
    """Whether a challenge is short, and without anything that a browser could run."""
    return isinstance(challenge, str) and bool(_CHALLENGE.fullmatch(challenge))


class Shopify:
    """`X-Shopify-Hmac-Sha256` over the body alone: id and topic are not signed. `by_body` as for GitHub."""

    redelivery = timedelta(days=2)
    waits = False
    keeps = ("x-shopify-topic", "x-shopify-shop-domain", "x-shopify-api-version", "x-shopify-event-id")

    def __init__(self, secrets: Secrets, *, source: str = "shopify", by_body: bool = False) -> None:
        self.source = source
        self._keys, self._by_body = Keyring(source, secrets), by_body
        self.signers = self._keys.signers

    def verify(self, request: Request, now: float) -> Event:
        signature = base64_bytes(request.headers.signed("x-shopify-hmac-sha256"), DIGEST_BYTES)
        secret = self._keys.match(request.body, [signature], now)
        topic = request.headers.get("x-shopify-topic")
        if self._by_body:
            return Event(digest_id(request.body), topic, secret, ("type",))
        return Event(request.headers.get("x-shopify-webhook-id"), topic, secret, ("id", "type"))

    def sign(self, sample: Sample, now: float) -> Signed:
        """As Shopify would send it: the data is the body."""
        body = json.dumps(sample.data).encode()
        signature = base64.b64encode(self._keys.sign(body, now)).decode()
        named = {"x-shopify-webhook-id": sample.id, "x-shopify-topic": sample.type}
        return Signed({"x-shopify-hmac-sha256": signature, **named}, body)
