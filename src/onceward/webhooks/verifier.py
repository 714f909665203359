"""What a verifier is: it says whether a request is authentic, and which event it brings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Protocol

from onceward.errors import ConfigurationError
from onceward.registry import key_at
from onceward.webhooks.request import Refusal, Request, json_object, text_of

TOLERANCE = timedelta(minutes=5)
"""How old, or how far in the future, a signed time may be."""

Path = str
"""Where something is: a field, a dotted path, or `header:NAME`."""


@dataclass(frozen=True, slots=True)
class Event:
    """What an authentic request brings."""

    id: str
    type: str
    signer: str
    """The name of the secret that signed it."""
    unsigned: tuple[str, ...] = ()
    """What the signature does not cover: "id", "type", "body" (where only a checksum is signed)."""
    challenge: str | None = None
    """A handshake: the text to answer with. Nothing is stored."""


class Verifier(Protocol):
    """One sender's way of signing."""

    @property
    def source(self) -> str:
        """The name in the ledger; part of a message's identity, so it comes from here and never from a request."""

    @property
    def redelivery(self) -> timedelta:
        """How late the sender may deliver an event again."""

    @property
    def waits(self) -> bool:
        """Whether verifying may wait for somebody else, such as a certificate's server."""

    @property
    def keeps(self) -> Sequence[str]:
        """Headers that are stored beside the usual ones, in lower case."""

    def verify(self, request: Request, now: float) -> Event:
        """Answer the event, or raise `NotAuthentic`, or another `Refusal` for an authentic one without id or type."""


def checked_tolerance(tolerance: timedelta) -> float:
    """A tolerance in seconds; zero would mean "never" to one reader and "always" to another."""
    if tolerance <= timedelta(0):
        raise ConfigurationError(f"tolerance={tolerance} must be above zero; it cannot be switched off")
    return tolerance.total_seconds()


def body_id(body: bytes) -> str:
    """An identity from the signed bytes alone: equal bodies are then the same event."""
    return "sha256:" + hashlib.sha256(body).hexdigest()


class Reader:
    """Finds the id and the type of an authentic request by paths; reads the body only when a path leads there."""

    def __init__(self, what: str, path: Path | Sequence[Path] | Callable[[Any], str]) -> None:
        self._what, self._path = what, path
        paths = [path] if isinstance(path, str) else path
        if not callable(paths) and (not paths or not all(paths)):
            raise ConfigurationError(f"{what}= is empty; name the field or header that holds it")

    @property
    def headers(self) -> list[str]:
        """The headers it reads."""
        if callable(self._path):
            return []
        paths = [self._path] if isinstance(self._path, str) else self._path
        return [path.removeprefix("header:").lower() for path in paths if path.startswith("header:")]

    def read(self, request: Request) -> str:
        """The text at the path; several parts are joined with their lengths, so that no two combinations are equal."""
        if callable(self._path):
            return self._called(self._path, request)
        if isinstance(self._path, str):
            return self._part(self._path, request)
        parts = [self._part(path, request) for path in self._path]
        joined = "".join(f"{len(part.encode())}:{part}" for part in parts)
        return "sha256:" + hashlib.sha256(joined.encode()).hexdigest()

    def _part(self, path: Path, request: Request) -> str:
        if path.startswith("header:"):
            return request.headers.needed(path.removeprefix("header:").lower())
        return text_of(key_at(path, json_object(request.body), {}), self._what)

    def _called(self, function: Callable[[Any], str], request: Request) -> str:
        data = json_object(request.body)
        try:
            return text_of(function(data), self._what)
        except Exception as error:
            if isinstance(error, Refusal):
                raise
            reason = f"the function for the {self._what} raised {type(error).__name__}"
            raise Refusal(HTTPStatus.BAD_REQUEST, f"the event has no {self._what}", reason=reason) from error
