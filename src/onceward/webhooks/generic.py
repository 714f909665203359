"""HMAC for senders without a verifier of their own: name the header, what is signed, and where the id is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal

from onceward.errors import ConfigurationError
from onceward.webhooks.keyring import Digest, Keyring, Secrets
from onceward.webhooks.request import NotAuthentic, Request, base64_bytes, check_time, hex_bytes, seconds
from onceward.webhooks.verifier import TOLERANCE, Event, Path, Reader, checked_tolerance, digest_id

_FIELD = re.compile(r"\{([^{}]*)\}")
_DIGESTS = ("sha256", "sha384", "sha512")


class Hmac:
    """A signature in one header.

    >>> shop = Hmac("old-shop", ["at-least-something"], header="x-signature", id="header:x-event-id", type="event",
    ...             signed="{x-event-id}.{timestamp}.{body}", timestamp="x-timestamp")
    >>> shop.source
    'old-shop'

    `signed` is the signed text: `{body}` once, `{timestamp}`, and headers by name. `id` and `type` are a field, a
    dotted path, `header:NAME` or a function of the data; `id` may be several of these together, or "body" for the
    body's hash (equal events are then one). A header that is not part of `signed` is marked as unsigned.
    """

    waits = False

    def __init__(  # noqa: PLR0913 - each is a property of the sender
        self,
        source: str,
        secrets: Secrets,
        *,
        header: str,
        id: Path | Sequence[Path] | Callable[[Any], str],  # noqa: A002 - the words every sender uses
        type: Path | Callable[[Any], str],  # noqa: A002
        signed: str = "{body}",
        timestamp: str | None = None,
        tolerance: timedelta = TOLERANCE,
        prefix: str = "",
        encoding: Literal["hex", "base64"] = "hex",
        digest: Digest = "sha256",
        redelivery: timedelta = timedelta(days=7),
    ) -> None:
        if digest not in _DIGESTS:
            raise ConfigurationError(f"digest={digest!r} is not one of {', '.join(_DIGESTS)}; weaker ones are refused")
        if encoding not in ("hex", "base64"):
            raise ConfigurationError(f"encoding={encoding!r} must be 'hex' or 'base64'")
        self.source, self.redelivery = source, redelivery
        self._keys, self._digest, self._tolerance = Keyring(source, secrets), digest, checked_tolerance(tolerance)
        self.signers = self._keys.signers
        self._header, self._prefix, self._encoding = header.lower(), prefix, encoding
        self._timestamp = timestamp.lower() if timestamp else None
        # Literal text and field names, in turn.
        self._parts = [part.lower() if place % 2 else part for place, part in enumerate(_FIELD.split(signed))]
        self._check_template(signed)
        self._id = None if id == "body" else Reader("id", id)
        self._type = Reader("type", type)
        self.keeps: Sequence[str] = self._type.headers
        covered = set(self._parts[1::2])
        uncovered = {"id": self._id.headers if self._id else [], "type": self._type.headers}
        self._unsigned = tuple(what for what, names in uncovered.items() if set(names) - covered)

    def _check_template(self, signed: str) -> None:
        fields = self._parts[1::2]
        if fields.count("body") != 1:
            raise ConfigurationError(f"signed={signed!r} must have {{body}} once: what is not signed cannot be trusted")
        if (self._timestamp is not None) != ("timestamp" in fields):
            raise ConfigurationError(
                f"signed={signed!r} and timestamp={self._timestamp!r}: a time is checked only where it is signed"
            )

    def verify(self, request: Request, now: float) -> Event:
        text = request.headers.signed(self._header)
        if not text.startswith(self._prefix):
            raise NotAuthentic("the signature does not begin as it should")
        signature = self._decoded(text.removeprefix(self._prefix))
        if self._timestamp is not None:
            stamp = seconds(request.headers.signed(self._timestamp))
            check_time(stamp, now, past=self._tolerance, future=self._tolerance)
        secret = self._keys.match(self._signed(request), [signature], now, self._digest)
        message_id = self._id.read(request) if self._id else digest_id(request.body)
        return Event(message_id, self._type.read(request), secret, self._unsigned)

    def _decoded(self, text: str) -> bytes:
        size = hashlib.new(self._digest).digest_size
        return hex_bytes(text, size) if self._encoding == "hex" else base64_bytes(text, size)

    def _signed(self, request: Request) -> bytes:
        pieces = []
        for place, part in enumerate(self._parts):
            if place % 2 == 0:
                pieces.append(part.encode())
            elif part == "body":
                pieces.append(request.body)
            else:
                name = self._timestamp if part == "timestamp" and self._timestamp else part
                pieces.append(request.headers.signed(name).encode())
        return b"".join(pieces)
