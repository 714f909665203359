"""The values that travel: `Delivery` (what came in), `Message` (what a handler sees), `Receipt` (what became of it).

All are frozen. A `Message` carries no transport and no connection, so nothing a handler does to it can acknowledge,
lose or repeat it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, Required, TypedDict

from onceward import identity, payload
from onceward.errors import InvalidMessage

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Arguments(TypedDict, total=False):
    """What `receive` and `process` take. `data` is JSON-able, `body` is raw bytes: one of them."""

    source: Required[str]
    id: Required[str]
    type: Required[str]
    data: Any
    body: bytes | None
    headers: Mapping[str, str] | None
    key: Any
    version: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """One arrival of a message, checked and ready to be stored."""

    source: str
    id: str
    type: str
    version: int
    key: str | None
    headers: Mapping[str, str]
    body: bytes
    hash: bytes

    @classmethod
    def of(  # noqa: PLR0913 - the fields of a message are what they are
        cls,
        *,
        source: str,
        id: str,  # noqa: A002 - the word every sender uses
        type: str,  # noqa: A002
        data: Any = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        key: Any = None,
        version: int = 1,
    ) -> Delivery:
        """Check what a caller passed; everything wrong is said here, before anything is stored."""
        if body is not None and data is not None:
            raise InvalidMessage("pass data= or body=, not both")
        if body is not None and not isinstance(body, bytes | bytearray | memoryview):
            raise InvalidMessage(f"body must be bytes, not {body.__class__.__name__}; use data= for JSON")
        if not _is_version(version):
            raise InvalidMessage(f"version must be a whole number from 0, not {version!r}")
        raw = payload.encode(data) if body is None else bytes(body)
        return cls(
            source=identity.check_name("source", source),
            id=identity.check_id(id),
            type=identity.check_name("type", type),
            version=version,
            key=identity.key_text(key),
            headers=_checked_headers(headers),
            body=raw,
            hash=identity.body_hash(raw),
        )


def _is_version(version: Any) -> bool:
    return isinstance(version, int) and not isinstance(version, bool) and 0 <= version < 2**31


def _checked_headers(headers: Mapping[Any, Any] | None) -> Mapping[str, str]:
    if not headers:
        return NO_HEADERS
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidMessage(f"header {name!r:.80} must be text with a text value, not {type(value).__name__}")
    return MappingProxyType(dict(headers))


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a handler sees it."""

    id: str
    source: str
    type: str
    version: int
    data: Any
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    key: str | None
    seq: int
    attempt: int
    received_at: datetime
    consumer: str

    def idempotency_key(self, name: str) -> str:
        """A key for an external call, the same on every retry of this message: `message.idempotency_key("charge")`.

        Pass it to the other side (`Idempotency-Key: ...`), so that a repeated attempt does not repeat the call.
        """
        parts = (self.consumer, self.source, self.id, name)
        text = "".join(f"{len(part.encode())}:{part}" for part in parts)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a delivery. Returned only after its transaction has been committed."""

    status: Literal["accepted", "duplicate", "mismatch"]
    """`accepted`: new. `duplicate`: known, nothing done. `mismatch`: known id with other bytes, in quarantine."""
    seq: int
    """The sequence number of the message (of the first copy, for a duplicate)."""
    finished: bool = False
    """The handler's effects are committed."""
    result: Any = None
    """What the handler returned, for a message that is finished."""


def moment(microseconds: int) -> datetime:
    """A time as stored (microseconds since 1970, UTC) as a datetime."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)
