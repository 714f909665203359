"""What a verifier is: it decides whether a request is authentic, and returns the event in it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, runtime_checkable

from onceward.errors import ConfigurationError
from onceward.registry import key_at
from onceward.webhooks.request import Request, fields_of, text_of

log = logging.getLogger("onceward")

TOLERANCE = timedelta(minutes=5)
"""How old, or how far in the future, a signed time may be."""

Path = str
"""Where something is: a field, a dotted path, or `header:NAME`."""


@dataclass(frozen=True, slots=True)
class Event:
    """What an authentic request brings."""

    id: str | None
    """None where the request has none that can be read: it is stored under a digest."""
    type: str | None
    """None likewise: it is stored as `onceward.unidentified`."""
    signer: str
    """The name of the secret that signed it."""
    unsigned: tuple[str, ...] = ()
    """What the signature does not cover: "id", "type", "body" (where only a checksum is signed)."""
    challenge: str | None = None
    """A handshake: the text to respond with. Nothing is stored."""


class Sample(NamedTuple):
    """A message to be sent for a test."""

    id: str
    type: str
    data: Any


class Signed(NamedTuple):
    """A test message as its provider would send it."""

    headers: Mapping[str, str]
    body: bytes


@runtime_checkable
class Signing(Protocol):
    """A verifier that can also make what it verifies (`onceward send --as`)."""

    def sign(self, sample: Sample, now: float) -> Signed:
        """The headers and the body that its provider would send."""


class Verifier(Protocol):
    """One sender's way of signing."""

    @property
    def source(self) -> str:
        """The name in the ledger; part of a message's identity, so it comes from here and never from a request."""

    @property
    def signers(self) -> frozenset[str]:
        """Whose signatures it accepts: equal for two verifiers of one sender. Secrets themselves are not shown."""

    @property
    def redelivery(self) -> timedelta:
        """How late the sender may deliver an event again."""

    @property
    def waits(self) -> bool:
        """Whether verifying may wait for another party, such as a certificate's server."""

    @property
    def keeps(self) -> Sequence[str]:
        """Headers that are stored beside the usual ones, in lower case."""

    def verify(self, request: Request, now: float) -> Event:
        """Return the event, or raise `NotAuthentic`; an authentic request is stored, whatever it holds."""


def checked_tolerance(tolerance: timedelta) -> float:
    """A tolerance in seconds; zero would mean "never" to one reader and "always" to another."""
    if tolerance <= timedelta(0):
        raise ConfigurationError(f"tolerance={tolerance} must be above zero; it cannot be switched off")
    return tolerance.total_seconds()


def digest_id(signed: bytes) -> str:
    """An identity from signed bytes alone: events with equal ones are then the same."""
    return "sha256:" + hashlib.sha256(signed).hexdigest()


class Reader:
    """Finds the id and the type of an authentic request by paths; reads the body only when a path leads there."""

    def __init__(self, what: str, path: Path | Sequence[Path] | Callable[[Any], str]) -> None:
        self._what, self._path = what, path
        paths = [path] if isinstance(path, str) else path
        if not callable(paths) and (not paths or not all(paths)):
            raise ConfigurationError(f"{what}= is empty; name the field or header that holds it")
        if what == "id" and self.headers == ["ce-id"]:
            raise ConfigurationError(
                'id="header:ce-id" alone does not identify a CloudEvent; use id=["header:ce-source", "header:ce-id"]'
            )

    @property
    def headers(self) -> list[str]:
        """The headers it reads."""
        if callable(self._path):
            return []
        paths = [self._path] if isinstance(self._path, str) else self._path
        return [path.removeprefix("header:").lower() for path in paths if path.startswith("header:")]

    def read(self, request: Request) -> str | None:
        """The text at the path; several parts are joined with their lengths, so that no two combinations are equal.

        None where there is none.
        """
        if callable(self._path):
            return self._called(self._path, request)
        if isinstance(self._path, str):
            return self._part(self._path, request)
        parts = [part for path in self._path if (part := self._part(path, request)) is not None]
        if len(parts) < len(self._path):
            return None
        joined = "".join(f"{len(part.encode())}:{part}" for part in parts)
        return "sha256:" + hashlib.sha256(joined.encode()).hexdigest()

    def _part(self, path: Path, request: Request) -> str | None:
        if path.startswith("header:"):
            return request.headers.get(path.removeprefix("header:").lower())
        return text_of(key_at(path, fields_of(request.body), {}))

    def _called(self, function: Callable[[Any], str], request: Request) -> str | None:
        try:
            return text_of(function(fields_of(request.body)))
        except Exception as error:  # noqa: BLE001 - of the user's; its text may quote the body
            log.warning("the function for the %s of a webhook raised %s", self._what, type(error).__name__)
            return None
