"""How a message's names and headers travel through brokers and HTTP, which carry text or bytes."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from onceward.message import Message

_PLAIN = "".join(map(chr, range(0x20, 0x7F)))
"""What a header may hold as it is."""


def header_text(value: str) -> str:
    """Return a text as a header can carry it: as it is, or percent-encoded where it is more than plain ASCII."""
    return value if set(value) <= set(_PLAIN) else quote(value, safe=_PLAIN.replace("%", ""), errors="replace")


def fields_of(message: Message) -> dict[str, str]:
    """Return headers, id and type as one mapping, for brokers that know nothing but fields."""
    return {"content-type": "application/json", **message.headers, "id": message.id, "type": message.type}


def text_of(value: Any) -> str:
    """Return what a broker hands over as a header's value as text; bytes that are not UTF-8 are escaped."""
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="backslashreplace")
    return "" if value is None else str(value)
