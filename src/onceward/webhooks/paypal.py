"""PayPal: RSA over `transmission id|time|webhook id|CRC-32 of the body`, with a certificate by address.

The trap: a CRC is no hash. An attacker with a genuine signature can build another body with the same CRC, so a verified
event proves only that PayPal sent *something*. Every event is therefore marked `onceward-unsigned: body`: take the
resource's id from it, and ask PayPal's API for the resource before acting.
"""

from __future__ import annotations

import re
import zlib
from datetime import datetime, timedelta

from onceward.errors import ConfigurationError
from onceward.webhooks.certificates import Certificates, Fetch, roots_in, system_roots
from onceward.webhooks.request import NotAuthentic, Request, base64_bytes, check_time, fields_of, text_of
from onceward.webhooks.verifier import TOLERANCE, Event

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
except ImportError as missing:
    raise ConfigurationError("PayPal's webhooks need: pip install 'onceward[webhooks]'") from missing

# No page of PayPal's documentation says whom its certificates are for; its own SDKs do. PayPal-Java-SDK (SSLUtil,
# validateCertificateChain) asks for a name "messageverificationcerts...paypal.com", PayPal-Python-SDK
# (notifications.py) for one in ".paypal.com" that leads to DigiCert's root. These two are stricter than either.
_NAME = "messageverificationcerts.paypal.com"
_SANDBOX_NAME = "messageverificationcerts.sandbox.paypal.com"
LIVE = {"api.paypal.com": _NAME, "api-m.paypal.com": _NAME}
SANDBOX = {"api.sandbox.paypal.com": _SANDBOX_NAME, "api-m.sandbox.paypal.com": _SANDBOX_NAME}
RETRIES = timedelta(days=3)
SMALLEST_KEY_BITS = 2048


class PayPal:
    """`webhook_id` is the id under which the webhook is registered with PayPal; it is part of what is signed."""

    redelivery = RETRIES
    waits = True
    keeps = ("paypal-transmission-id", "paypal-transmission-time")

    def __init__(
        self,
        webhook_id: str,
        *,
        source: str = "paypal",
        sandbox: bool = False,
        roots: bytes | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        if not re.fullmatch("[A-Za-z0-9]+", webhook_id or ""):
            raise ConfigurationError(
                f"webhook {source!r} has no webhook id; it is in PayPal's developer dashboard, letters and digits"
            )
        self.source, self._webhook_id = source, webhook_id
        self.signers = frozenset({webhook_id})
        trusted = system_roots() if roots is None else roots_in(roots)
        self._certificates = Certificates(SANDBOX if sandbox else LIVE, trusted, fetch)

    def verify(self, request: Request, now: float) -> Event:
        headers = request.headers
        transmission = headers.signed("paypal-transmission-id")
        moment = headers.signed("paypal-transmission-time")
        if headers.signed("paypal-auth-algo") != "SHA256withRSA":
            raise NotAuthentic("the algorithm is not SHA256withRSA")
        signature = base64_bytes(headers.signed("paypal-transmission-sig"))
        if "|" in transmission or "|" in moment:
            raise NotAuthentic("a signed header holds the separator")
        # A retry may carry the time of the first transmission; what came before is the ledger's business.
        past = (RETRIES + TOLERANCE).total_seconds()
        check_time(_time(moment), now, past=past, future=TOLERANCE.total_seconds())
        key = self._certificates.public_key(headers.signed("paypal-cert-url"), now)
        if not isinstance(key, RSAPublicKey) or key.key_size < SMALLEST_KEY_BITS:
            raise NotAuthentic("the certificate's key is not RSA of at least 2048 bits")
        signed = f"{transmission}|{moment}|{self._webhook_id}|{zlib.crc32(request.body)}"
        try:
            key.verify(signature, signed.encode(), PKCS1v15(), SHA256())
        except InvalidSignature:
            raise NotAuthentic("the certificate's key did not make this signature") from None
        event = fields_of(request.body)
        return Event(text_of(event.get("id")), text_of(event.get("event_type")), "certificate", ("body",))


def _time(text: str) -> float:
    try:
        moment = datetime.strptime(text.removesuffix("Z") + "+0000", "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        raise NotAuthentic("the transmission time is not of the form 2026-01-31T12:00:00Z") from None
    if not text.isascii() or not text.endswith("Z"):
        raise NotAuthentic("the transmission time is not in UTC")
    return moment.timestamp()
