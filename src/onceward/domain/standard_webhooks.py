"""Standard Webhooks, the part that both sides share: what a secret is, and what is signed."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from onceward.errors import ConfigurationError


def sign(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """The signature of a webhook: `v1,` and the HMAC-SHA256 of id, timestamp and body."""
    digest = hmac.digest(key, signed_text(message_id, timestamp, body), hashlib.sha256)
    return "v1," + base64.b64encode(digest).decode()


def signed_text(message_id: str, timestamp: str, body: bytes) -> bytes:
    """What a signature covers."""
    return f"{message_id}.{timestamp}.".encode() + body


def secret_bytes(secret: str) -> bytes:
    """A Standard Webhooks secret: `whsec_` and base64."""
    text = secret.removeprefix("whsec_")
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigurationError("a webhook secret must be base64, with or without whsec_ before it") from error
    if len(key) < 24:  # noqa: PLR2004 - the least that Standard Webhooks allows
        raise ConfigurationError("a webhook secret must have at least 24 bytes")
    return key
