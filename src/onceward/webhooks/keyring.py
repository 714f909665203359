"""Secrets that may be replaced without a pause: several at a time, each with a name and perhaps an end.

Invariant: there is no way to make a keyring without a usable secret, and no way to see a value in a log or a repr.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from onceward.errors import ConfigurationError
from onceward.webhooks.request import NotAuthentic

Digest = Literal["sha256", "sha384", "sha512"]


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret with a name for the log, and the time from which it is no longer accepted."""

    value: str = field(repr=False)
    name: str = ""
    until: datetime | None = None

    def ended(self, now: float) -> bool:
        """Whether it is no longer accepted."""
        return self.until is not None and now >= self.until.timestamp()


Secrets = str | Secret | Sequence[str | Secret]


@dataclass(frozen=True, slots=True)
class Key:
    """A secret, ready to be used."""

    secret: Secret
    value: bytes = field(repr=False)


class Keyring:
    """The secrets of one source."""

    def __init__(self, source: str, secrets: Secrets, read: Callable[[str], bytes] = str.encode) -> None:
        self._source = source
        listed = [secrets] if isinstance(secrets, str | Secret) else list(secrets or ())
        if not listed:
            raise ConfigurationError(f"webhook {source!r} has no secret; without one, forged events would be accepted")
        self._keys = [self._key(number, secret, read) for number, secret in enumerate(listed, start=1)]
        if not self._active(time.time()):
            raise ConfigurationError(f"every secret of webhook {source!r} has ended; add the one that is in use now")

    @property
    def signers(self) -> frozenset[str]:
        """What is equal for keyrings with the same secrets, and tells nothing about them."""
        return frozenset(hashlib.sha256(key.value).hexdigest() for key in self._keys)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(key.secret.name for key in self._keys)})"

    def _key(self, number: int, given: str | Secret, read: Callable[[str], bytes]) -> Key:
        secret = given if isinstance(given, Secret) else Secret(given)
        value: object = secret.value
        who = f"secret {secret.name or number} of webhook {self._source!r}"
        if not isinstance(value, str) or not value.strip():
            raise ConfigurationError(f"{who} is empty; is its environment variable set?")
        if value != value.strip():
            raise ConfigurationError(f"{who} begins or ends with white space; was it read with its line end?")
        if secret.until is not None and secret.until.tzinfo is None:
            raise ConfigurationError(f"{who} ends at a time without a zone; use datetime(..., tzinfo=UTC)")
        named = Secret(value, secret.name or f"secret {number}", secret.until)
        return Key(named, read(value))

    def _active(self, now: float) -> list[Key]:
        return [key for key in self._keys if not key.secret.ended(now)]

    def sign(self, text: bytes, now: float, digest: Digest = "sha256") -> bytes:
        """A signature by the newest secret that is in use, for test messages."""
        active = self._active(now)
        if not active:
            raise ConfigurationError(
                f"every secret of webhook {self._source!r} has ended; add the one that is in use now"
            )
        return hmac.digest(active[-1].value, text, digest)

    def match(self, signed: bytes, signatures: Iterable[bytes], now: float, digest: Digest = "sha256") -> str:
        """The name of the secret that made one of the signatures; every one is compared, in constant time."""
        offered = list(signatures)

        def made(key: bytes) -> bool:
            expected = hmac.digest(key, signed, digest)
            return any([hmac.compare_digest(expected, signature) for signature in offered])  # noqa: C419 - no early end

        return self.verified(made, now)

    def verified(self, check: Callable[[bytes], bool], now: float) -> str:
        """The name of the secret for which the check holds; all are tried."""
        active = self._active(now)
        if not active:
            raise NotAuthentic(f"every secret of {self._source!r} has ended")
        matching = [key.secret.name for key in active if check(key.value)]
        if not matching:
            raise NotAuthentic("no secret made this signature")
        return matching[0]
