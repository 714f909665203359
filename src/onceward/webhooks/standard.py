"""Standard Webhooks (and Svix): `id.timestamp.body` under HMAC-SHA256 (`v1`) or Ed25519 (`v1a`)."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from onceward.domain.standard_webhooks import secret_bytes, signed_text
from onceward.errors import ConfigurationError
from onceward.webhooks.keyring import Keyring, Secret, Secrets
from onceward.webhooks.request import MAX_SIGNATURES, NotAuthentic, Request, base64_bytes, check_time, seconds
from onceward.webhooks.verifier import TOLERANCE, Event, Path, Reader, Sample, Signed, checked_tolerance

_VERSION = re.compile(r"v[0-9]{1,3}[a-z]{0,3}")
_SIZES = {"v1": 32, "v1a": 64}
PUBLIC = "whpk_"


class StandardWebhooks:
    """Secrets are `whsec_...` (shared) or `whpk_...` (the sender's public key), also mixed.

    The id is the signed `webhook-id`. `type` is the place of the event's name: a field of the body, `header:NAME` (not
    signed; `header:webhook-type` for what onceward itself sends), or a function of the data. `prefix="svix"` reads
    Svix's own header names.
    """

    redelivery = timedelta(days=5)
    """The suggested schedule ends after three days; senders may be slower."""
    waits = False

    def __init__(
        self,
        secrets: Secrets,
        *,
        source: str = "standard",
        type: Path | Callable[[Any], str] = "type",  # noqa: A002 - the word every sender uses
        prefix: str = "webhook",
        tolerance: timedelta = TOLERANCE,
    ) -> None:
        self.source, self._prefix = source, prefix
        self._tolerance, self._type = checked_tolerance(tolerance), Reader("type", type)
        self._unsigned = ("type",) if self._type.headers else ()
        self.keeps: Sequence[str] = self._type.headers
        listed = [secrets] if isinstance(secrets, str | Secret) else list(secrets or ())
        public = [secret for secret in listed if _is_public(secret)]
        shared = [secret for secret in listed if not _is_public(secret)]
        self._shared = Keyring(source, shared, secret_bytes) if shared or not public else None
        self._public = Keyring(source, public, _public_bytes) if public else None
        self.signers = frozenset().union(*(one.signers for one in (self._shared, self._public) if one))

    def verify(self, request: Request, now: float) -> Event:
        message_id = request.headers.signed(f"{self._prefix}-id")
        stamp = request.headers.signed(f"{self._prefix}-timestamp")
        signatures = _read(request.headers.signed(f"{self._prefix}-signature"))
        check_time(seconds(stamp), now, past=self._tolerance, future=self._tolerance)
        signed = signed_text(message_id, stamp, request.body)
        secret = self._match(signed, signatures, now)
        return Event(message_id, self._type.read(request), secret, self._unsigned)

    def sign(self, sample: Sample, now: float) -> Signed:
        """As the standard has it: the data becomes the event's `data`. A public key (`whpk_...`) cannot sign."""
        if self._shared is None:
            raise ConfigurationError(f"webhook {self.source!r} has public keys only; signing needs a whsec_... secret")
        stamp, body = str(int(now)), json.dumps({"type": sample.type, "data": sample.data}).encode()
        signature = self._shared.sign(signed_text(sample.id, stamp, body), now)
        named = {"id": sample.id, "timestamp": stamp, "signature": f"v1,{base64.b64encode(signature).decode()}"}
        # `webhook-type` is where the type is when it is not read from the body.
        return Signed({f"{self._prefix}-{name}": value for name, value in {**named, "type": sample.type}.items()}, body)

    def _match(self, signed: bytes, signatures: dict[str, list[bytes]], now: float) -> str:
        if self._shared and signatures["v1"]:
            try:
                return self._shared.match(signed, signatures["v1"], now)
            except NotAuthentic:
                if not (self._public and signatures["v1a"]):
                    raise
        if self._public and signatures["v1a"]:
            return self._public.verified(
                lambda key: any(_ed25519(key, signature, signed) for signature in signatures["v1a"]), now
            )
        raise NotAuthentic("there is no signature of a kind that the secrets can check")


def _read(header: str) -> dict[str, list[bytes]]:
    """The signatures by version; versions that are not known (yet) are left alone, as the standard asks."""
    found: dict[str, list[bytes]] = {version: [] for version in _SIZES}
    parts = header.split(" ")
    if len(parts) > MAX_SIGNATURES:
        raise NotAuthentic(f"there are more than {MAX_SIGNATURES} signatures")
    for part in parts:
        version, _, value = part.partition(",")
        if not _VERSION.fullmatch(version) or not value:
            raise NotAuthentic("the signature header is not a list of version,signature")
        if version in _SIZES:
            found[version].append(base64_bytes(value, _SIZES[version]))
    return found


def _is_public(secret: object) -> bool:
    value = secret.value if isinstance(secret, Secret) else secret
    return isinstance(value, str) and value.startswith(PUBLIC)


def _public_bytes(secret: str) -> bytes:
    try:
        import cryptography  # noqa: F401, PLC0415 - an extra, needed for this kind of secret alone
    except ImportError as error:
        raise ConfigurationError("public keys (whpk_...) need: pip install 'onceward[webhooks]'") from error
    try:
        key = base64.b64decode(secret.removeprefix(PUBLIC), validate=True)
    except ValueError as error:
        raise ConfigurationError("a public key must be whpk_ and base64") from error
    if len(key) != 32:  # noqa: PLR2004 - the size of an Ed25519 key
        raise ConfigurationError("an Ed25519 public key has 32 bytes")
    return key


def _ed25519(key: bytes, signature: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True
