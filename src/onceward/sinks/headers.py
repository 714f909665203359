"""How a message's names and headers travel where there is room for texts only."""

from __future__ import annotations

from urllib.parse import quote

from onceward.message import Message

_PLAIN = "".join(map(chr, range(0x20, 0x7F)))
"""What a header may hold as it is."""


def header_text(value: str) -> str:
    """A text as a header can carry it: as it is, or percent-encoded where it is more than plain ASCII."""
    return value if set(value) <= set(_PLAIN) else quote(value, safe=_PLAIN.replace("%", ""), errors="replace")


def fields_of(message: Message) -> dict[str, str]:
    """Headers, id and type as one mapping, for brokers that know nothing but fields."""
    return {"content-type": "application/json", **message.headers, "id": message.id, "type": message.type}
