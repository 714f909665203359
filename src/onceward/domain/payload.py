"""JSON, read strictly: what two parsers could read differently is refused, with a reason that can be understood.

A body is stored as the bytes that came; this module is only asked when a reader wants to *read* it. It never
raises anything but `InvalidMessage`, whatever the bytes are.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, NoReturn

from onceward.errors import InvalidMessage

MAX_DEPTH = 64
LONGEST_SHOWN = 200_000


def _encodable(value: Any) -> Any:
    """What JSON has no form for: a model, a time, a decimal."""
    from onceward.models.encoding import encodable  # noqa: PLC0415 - most data has none of these

    return encodable(value)


# Made once: json.dumps makes one for every call that does not take its defaults.
_COMPACT: dict[str, Any] = {"allow_nan": False, "separators": (",", ":"), "default": _encodable}
_ENCODER = json.JSONEncoder(ensure_ascii=False, sort_keys=True, **_COMPACT)
_UNSORTED = json.JSONEncoder(ensure_ascii=False, **_COMPACT)
_ASCII_ENCODER = json.JSONEncoder(ensure_ascii=True, **_COMPACT)
_OF_KEYS = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True)

# A \u0000 escape that is really one: the backslash before it is not itself escaped.
_NUL_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def encode(data: Any) -> bytes:
    """Turn JSON-able data into the bytes that are stored and hashed, the same in whatever order its fields come."""
    if isinstance(data, bytes):  # inside of data they are base64
        raise InvalidMessage("data cannot be written as JSON: it is bytes; pass them as body=")
    try:
        return _ENCODER.encode(data).encode()
    except (TypeError, ValueError, RecursionError):
        # Names of several kinds (1 and "a") have no order before they are text; whatever else is wrong is said there.
        return _ENCODER.encode(decode(_encode_unsorted(data))).encode()


def _encode_unsorted(data: Any) -> bytes:
    try:
        return _UNSORTED.encode(data).encode()
    except (TypeError, ValueError, RecursionError) as error:
        message = f"data cannot be written as JSON: {error}; pass JSON-able data, or raw bytes as body="
        raise InvalidMessage(message) from error


def encode_text(data: Any) -> str:
    """Turn JSON-able data into ASCII text: storable in a text column of every database."""
    return _ASCII_ENCODER.encode(data)


def encode_key(data: Any) -> str:
    """As `encode_text`, the same in whatever order its fields come; beside JSON only UUID and Enum."""
    try:
        return _OF_KEYS.encode(data)
    except TypeError:
        from onceward.models.encoding import key_form  # noqa: PLC0415 - as above

        form = key_form(data)
        if form is None:
            raise
        return form if isinstance(form, str) else _OF_KEYS.encode(form)


def decode_text(text: str) -> Any:
    """Read back what `encode_text` wrote: our own text, so nothing about it is refused."""
    return json.loads(text)


def decode(body: bytes) -> Any:
    """Read a JSON body (UTF-8, as RFC 8259 asks), or raise `InvalidMessage` with the reason."""
    try:
        data = _DECODER.decode(body.decode())
    except InvalidMessage:
        raise
    except RecursionError:
        raise InvalidMessage(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeDecodeError as error:
        raise InvalidMessage(f"the body is not UTF-8 text: {error}") from None
    except ValueError as error:
        raise InvalidMessage(f"the body is not JSON: {error}") from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(data)
    if b"\\u" in body:
        _refuse_half_characters(data)
    if b"\\u0000" in body and _NUL_ESCAPE.search(body):
        raise InvalidMessage("the body holds the character \\u0000, which databases cannot keep in text")
    return data


def _refuse_half_characters(data: Any) -> None:
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise InvalidMessage(f"the body holds half a character, the lone surrogate {half}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidMessage(f"the body holds {name}, which is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InvalidMessage(f"the body holds the number {text[:40]}, which is too large to read exactly")
    return number


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InvalidMessage(f"the body names the field {twice[:80]!r} twice in one object")
    return fields


# Made once: `json.loads` would make one for every body.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique_fields)


def _check_depth(data: Any) -> None:
    level, depth = [data], 0
    while containers := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise InvalidMessage(f"the body is nested deeper than {MAX_DEPTH} levels")
        level = [inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)]


def readable(raw: bytes | None) -> str:
    """A body for people: JSON laid out, other text as it is, bytes as they are written in Python."""
    if raw is None:
        return "(not kept)"
    try:
        shown = json.dumps(decode(raw), indent=2, ensure_ascii=False)
    except InvalidMessage:
        try:
            shown = raw.decode()
        except UnicodeDecodeError:
            shown = repr(raw[:LONGEST_SHOWN])
    return shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}\n(cut; it has {len(raw):,} bytes)"
