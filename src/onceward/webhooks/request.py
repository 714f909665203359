"""A request that is not authenticated yet, and the strict ways to read it.

Invariant: nothing here trusts, folds or repairs. A header that is missing, repeated, too long or holds an odd character
is refused, numbers are ASCII digits, encodings have one spelling. Every refusal is a `Refusal` with an answer that says
nothing about secrets; the reason is for our own log.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from onceward.domain import payload
from onceward.errors import InvalidMessage

_PRINTABLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_HEXADECIMAL = re.compile(r"[0-9a-f]+")
_SECONDS = re.compile(r"[0-9]{1,12}")
MAX_VALUE = 4096
MAX_SIGNATURES = 16


class Refusal(Exception):
    """The request is refused; `status` and `text` are the response, `reason` is for the log."""

    def __init__(
        self, status: HTTPStatus, text: str, *, reason: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(reason or text)
        self.status, self.text, self.headers = status, text, dict(headers or {})


class NotAuthentic(Refusal):
    """The signature does not prove who sent this. The response is the same whatever was wrong."""

    def __init__(self, reason: str) -> None:
        super().__init__(HTTPStatus.UNAUTHORIZED, "the signature is missing, wrong or too old", reason=reason)


class TryLater(Refusal):
    """Nothing is wrong with the request; it cannot be stored now."""

    def __init__(self, text: str, *, reason: str = "", seconds: int = 5) -> None:
        headers = {"retry-after": str(seconds)}
        super().__init__(HTTPStatus.SERVICE_UNAVAILABLE, text, reason=reason, headers=headers)


class Ambiguous(Refusal):
    """Where the request ends can be read in two ways; the connection must not be used again."""

    def __init__(self) -> None:
        super().__init__(HTTPStatus.BAD_REQUEST, "send content-length or transfer-encoding, not both")


class Headers:
    """The headers of a request: names in lower case, every value of a name."""

    __slots__ = ("_values",)

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> str | None:
        """The value of a header that is there once with printable ASCII text; else None."""
        values = self._values.get(name, ())
        if len(values) != 1 or len(values[0]) > MAX_VALUE or not _PRINTABLE.fullmatch(values[0]):
            return None
        return values[0]

    def signed(self, name: str) -> str:
        """A header that the signature needs."""
        value = self.get(name)
        if value is None:
            raise NotAuthentic(f"header {name} is missing, repeated, too long or not plain text")
        return value


@dataclass(frozen=True, slots=True)
class Request:
    """What is verified: the headers, and the bytes of the body as they came."""

    headers: Headers
    body: bytes


def seconds(text: str) -> int:
    """A time in seconds since 1970: ASCII digits and nothing else."""
    if not _SECONDS.fullmatch(text):
        raise NotAuthentic("the timestamp is not a number of seconds")
    return int(text)


def check_time(stamp: float, now: float, *, past: float, future: float) -> None:
    """Refuse what was signed too long ago, or in the future."""
    if stamp < now - past:
        raise NotAuthentic(f"it was signed {now - stamp:.0f} s ago")
    if stamp > now + future:
        raise NotAuthentic(f"it was signed {stamp - now:.0f} s in the future; is a clock wrong?")


def hex_bytes(text: str, size: int) -> bytes:
    """Lower-case hexadecimal of exactly `size` bytes."""
    if len(text) != 2 * size or not _HEXADECIMAL.fullmatch(text):
        raise NotAuthentic(f"the signature is not {size} bytes in hexadecimal")
    return bytes.fromhex(text)


def base64_bytes(text: str, size: int | None = None) -> bytes:
    """Canonical base64, of exactly `size` bytes where given."""
    try:
        value = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (ValueError, binascii.Error):
        raise NotAuthentic("the signature is not base64") from None
    # Other spellings of the same bytes (unused bits set) would be other texts with the same meaning.
    if base64.b64encode(value).decode() != text or (size is not None and len(value) != size):
        raise NotAuthentic("the signature is not canonical base64 of the right length")
    return value


def fields_of(body: bytes) -> dict[str, Any]:
    """The fields of an authentic body; none where it is not a JSON object that can be read."""
    try:
        data = payload.decode(body)
    except InvalidMessage:
        return {}
    return data if isinstance(data, dict) else {}


def text_of(value: Any) -> str | None:
    """A value that is text, or a whole number as text; None where it is neither."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None
