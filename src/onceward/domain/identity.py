"""What makes two deliveries the same message: names, ids, keys and hashes, compared byte by byte.

An id is never changed, folded or cut. Only its stored form is made small: a canonical UUID takes 16 bytes,
other ids keep their bytes (so that ids which carry time stay in order in the index), and only long ones become
a digest.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any
from zlib import crc32

from onceward.deferred import hashlib
from onceward.domain import payload
from onceward.errors import ConfigurationError, InvalidMessage

MAX_ID_BYTES = 1024
MAX_NAME_BYTES = 255
_RAW_ID_BYTES = 200

UNIDENTIFIED = "onceward.unidentified"
"""The type of what came without a type that can be read or stored; no consumer handles it, so an operator sees it."""
REASON = "onceward-reason"
"""The stored header that says why an id or a type is not the sender's own."""

UNKNOWN_HASH = bytes(32)
"""In the place of a body's hash: an id that was imported, whose bytes onceward never saw. No bytes have this hash."""

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_CANONICAL_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PREFIX = re.compile("[a-z_][a-z0-9_]{0,30}")
_NOT_OURS = ("pg_", "sqlite_")
RESERVED = "onceward."
"""What the names of onceward's own consumers begin with."""


def check_prefix(prefix: Any) -> str:
    """Accept a table prefix: it is the only thing ever put into SQL text."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(
            f"prefix {prefix!r} must be lower-case letters, digits and underscores, not begin with a digit, "
            "and have at most 31 characters"
        )
    if prefix.startswith(_NOT_OURS):
        raise ConfigurationError(
            f"prefix {prefix!r} is reserved: names that begin with 'pg_' or 'sqlite_' belong to the database"
        )
    return str(prefix)


def check_service(name: Any) -> str:
    """Accept the name of a service."""
    if check_name("service", name).startswith(RESERVED):
        raise ConfigurationError(
            f"service {name!r} is reserved: names that begin with {RESERVED!r} belong to onceward itself"
        )
    return str(name)


def check_name(kind: str, name: Any) -> str:
    """Accept the name of a source, type or consumer."""
    return _checked_name(kind, name) if type(name) is str else _check_text(kind, name, MAX_NAME_BYTES)


@lru_cache(maxsize=1024)
def _checked_name(kind: str, name: str) -> str:
    """Names are few and come with every message."""
    return _check_text(kind, name, MAX_NAME_BYTES)


def check_id(message_id: Any) -> str:
    """Accept a message id: any text of 1 to 1024 bytes without control characters."""
    return _check_text("id", message_id, MAX_ID_BYTES)


def _check_text(kind: str, value: Any, limit: int) -> str:
    if not isinstance(value, str):
        raise InvalidMessage(f"{kind} must be text, not {type(value).__name__}: {value!r:.80}")
    if not value:
        raise InvalidMessage(f"{kind} is empty; every message needs one that its producer chose")
    found = _UNSAFE.search(value)
    if found:
        raise InvalidMessage(f"{kind} {value[:80]!r} holds the character {found.group()!r}, which is not allowed")
    size = len(value.encode())
    if size > limit:
        raise InvalidMessage(f"{kind} {value[:40]!r}... has {size} bytes; at most {limit} are allowed")
    return value


def new_id() -> str:
    """A new id: 128 random bits. Not a `uuid4()`, whose module takes longer to import than it is worth."""
    return os.urandom(16).hex()


def new_number() -> int:
    """A new number: 53 random bits, which every reader of JSON can hold."""
    return int.from_bytes(os.urandom(7), "big") >> 3 or new_number()


def stored_id(message_id: str, destination: str | None = None) -> bytes:
    """The ledger's form of an id: a kind byte and a canonical UUID's 16 bytes, the id's own bytes, or a digest.

    An outgoing message that names its destination is another one for each: NUL, which no id holds, and the name follow.
    """
    if destination is not None:
        return stored_id(message_id) + b"\x00" + destination.encode()
    if _CANONICAL_UUID.fullmatch(message_id):
        return b"u" + bytes.fromhex(message_id.replace("-", ""))
    raw = message_id.encode()
    if len(raw) <= _RAW_ID_BYTES:
        return b"r" + raw
    return b"d" + hashlib.sha256(raw).digest()


def stored_range(message_id: str) -> dict[str, bytes]:
    """Where the ledger has an id, for whatever destination: from the first up to, not including, the second."""
    stored = stored_id(message_id)
    return {"from_id": stored, "below_id": stored + b"\x01"}


def readable_id(stored: bytes) -> str:
    """The id behind its stored form; a digest can only be shown as one."""
    kind, rest = stored[:1], stored[1:]
    if kind == b"u":
        digits = rest[:16].hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    if kind == b"r":
        return rest.partition(b"\x00")[0].decode()
    return "sha256:" + rest[:32].hex()


def body_hash(body: bytes) -> bytes:
    """SHA-256 of the raw bytes: integrity, never identity."""
    return hashlib.sha256(body).digest()


@lru_cache(maxsize=1024)
def type_hash(message_type: str, version: int) -> int:
    """A signed 64-bit number for a type and its version, which the ledger remembers when the body is gone."""
    digest = hashlib.sha256(f"{version} {message_type}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def key_text(value: Any) -> str | None:
    """An ordering key as text that every database can store; None where there is no key."""
    if value is None:
        return None
    try:
        text = value if isinstance(value, str) else payload.encode_key(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"key {value!r:.80} has no text form: {error}") from error
    if _UNSAFE.search(text) or len(text.encode()) > MAX_ID_BYTES:
        return "sha256:" + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return text


def key_hash(prefix: str, consumer: str, key: str, aggregate: str | None = None) -> int:
    """A signed 64-bit number for the key of a consumer; a collision only makes two keys wait for each other."""
    whole = f"{prefix}\x00{consumer}\x00{key}" + ("" if aggregate is None else f"\x00{aggregate}")
    digest = hashlib.sha256(whole.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def slot(text: str) -> int:
    """The slot of a key, or of the id of a message without one: the first 12 bits of the CRC-32 of its UTF-8.

    Rows carry it, so it is the same for ever; nothing but the text is in it, so that every consumer of a key, every
    inbox and every other program come to the same number.
    """
    return crc32(text.encode()) >> 20


def effect_key(consumer: str, source: str, message_id: str, name: str) -> str:
    """The same for every attempt at a step of a message; lengths keep ("ab", "c") and ("a", "bc") apart."""
    parts = (consumer, source, message_id, name)
    return hashlib.sha256("".join(f"{len(part.encode())}:{part}" for part in parts).encode()).hexdigest()
