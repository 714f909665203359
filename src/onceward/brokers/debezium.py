"""Events that Debezium's outbox event router has published, as messages: `envelope="debezium-outbox"`.

The id is the header `id`, which the router takes from the outbox table: what a connector publishes again keeps it. The
type is the header `eventType` or `type`, if the connector is told to place it there, else the topic.

Invariant: bodies and keys are the application's own, whatever converter the connector has wrapped them with; what is
not wrapped stays byte for byte as it came.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onceward.brokers.protocol import Arrival
from onceward.domain import payload
from onceward.errors import InvalidMessage

ENVELOPE = "debezium-outbox"
_KEY = "kafka-key"
_TYPES = ("eventtype", "type")
_WRAPPING = {"schema", "payload"}
"""What the JSON converter makes of a value when its schemas are enabled."""


def outbox_event(arrival: Arrival) -> Arrival:
    """The event as the application wrote it into its outbox table."""
    headers = {name.lower(): value for name, value in arrival.headers.items()}
    kinds = [text(headers[name]) for name in _TYPES if name in headers]
    if _KEY in headers:
        headers[_KEY] = text(headers[_KEY])
    return replace(
        arrival,
        body=_body(arrival.body),
        headers=headers,
        id=text(headers["id"]) if "id" in headers else None,
        type=kinds[0] if kinds else headers.get("kafka-topic"),
    )


def text(written: str) -> str:
    """A header or a key without what the JSON converter has put around it."""
    found = _unwrapped(_read(written.encode()))
    return found if isinstance(found, str) else written


def _body(body: bytes) -> bytes:
    found = _read(body)
    inside = _unwrapped(found)
    if isinstance(inside, str) and isinstance(_read(inside.encode()), dict | list):
        return inside.encode()  # a JSON column, which the converter has written as a text
    return body if inside is found else payload.encode(inside)


def _unwrapped(value: Any) -> Any:
    wrapped = isinstance(value, dict) and value.keys() == _WRAPPING and isinstance(value["schema"], dict)
    return value["payload"] if wrapped else value


def _read(body: bytes) -> Any:
    """What the bytes are as JSON; None where they are something else."""
    try:
        return payload.decode(body)
    except InvalidMessage:
        return None
