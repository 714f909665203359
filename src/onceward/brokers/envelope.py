"""From a broker's delivery to a message: which id, which type, which body.

In this order: the paths that the user gave; CloudEvents, in binary or structured mode; the transport's own properties.
A delivery without a usable id or type is not lost and does not come back for ever: it is stored under its position, as
a type without a handler, for an operator to look at.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onceward.brokers import debezium
from onceward.brokers.protocol import Arrival
from onceward.domain import checks, payload
from onceward.domain.identity import MAX_ID_BYTES, REASON, UNIDENTIFIED
from onceward.domain.reference import HEADER
from onceward.errors import ConfigurationError, InvalidMessage
from onceward.message import Arguments, Delivery
from onceward.registry import key_at

POSITION = "position"
_STRUCTURED = "application/cloudevents+json"
_BINARY = ("ce-", "ce_", "cloudevents:", "cloudevents_")
UNSTABLE = ("delivery_tag", "delivery-tag", "receipt_handle", "receipthandle", "header:delivery-tag")


ENVELOPES: Mapping[str, Callable[[Arrival], Arrival]] = {debezium.ENVELOPE: debezium.outbox_event}
"""Conventions that producers share: what makes a delivery one with the id, the type and the body that they mean."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Where a source's messages carry their names."""

    source: str
    id: str | None = None
    """A field, a dotted path, `header:NAME`, or "position" for the place in the broker."""
    type: str | None = None
    """The same; or, with `=` before it, the type of every message."""
    convention: str | None = None
    """One of `ENVELOPES`, read before everything else."""

    def __post_init__(self) -> None:
        if self.convention is not None:
            checks.one_of("add_source()", "envelope", self.convention, ENVELOPES)
        if self.id is not None and self.id.lower() in UNSTABLE:
            raise ConfigurationError(f"id={self.id!r} changes with each delivery; a message must keep its id")
        if self.id is not None and self.id.lower() in [f"header:{prefix}id" for prefix in _BINARY]:
            raise ConfigurationError(
                f"id={self.id!r} alone does not identify a CloudEvent; leave id= out: source and id are taken together"
            )

    def message(self, arrival: Arrival) -> Arguments:
        """Return the arguments of `receive`; always acceptable."""
        if self.convention is not None:
            arrival = ENVELOPES[self.convention](arrival)
        headers = _headers(arrival)
        try:
            found = self._named(arrival, headers)
            Delivery.of(**found)
        except InvalidMessage as error:
            return self._unidentified(arrival, headers, str(error))
        return found

    def refused(self, arrival: Arrival, reason: str) -> Arguments:
        """Return the arguments of `receive` for a message that the database refuses: for an operator to look at."""
        return self._unidentified(arrival, _headers(arrival), reason)

    def _named(self, arrival: Arrival, headers: Mapping[str, str]) -> Arguments:
        event, body = _cloud_event(arrival, headers)
        message_id = _event_id(event) or arrival.id
        kind = event.get("type") or arrival.type
        if self.id == POSITION:
            message_id = arrival.position
        elif self.id is not None:
            message_id = _at(self.id, body, headers)
        if self.type is not None:
            kind = self.type[1:] if self.type.startswith("=") else _at(self.type, body, headers)
        if message_id is None or kind is None:
            missing = "id" if message_id is None else "type"
            raise InvalidMessage(f"the delivery has no {missing}; have the producer set one, or pass {missing}=")
        named: Arguments = {
            "source": self.source,
            "id": message_id,
            "type": kind,
            "body": body,
            "headers": dict(headers),
        }
        if arrival.place is not None:
            named["position"] = arrival.place
        return named

    def _unidentified(self, arrival: Arrival, headers: Mapping[str, str], reason: str) -> Arguments:
        digest = hashlib.sha256(arrival.position.encode()).hexdigest()
        return {
            "source": self.source,
            "id": f"position:{digest}",
            "type": UNIDENTIFIED,
            "body": arrival.body,
            "headers": {**headers, REASON: reason[:300]},
        }


def _headers(arrival: Arrival) -> dict[str, str]:
    headers = {name.lower(): value for name, value in arrival.headers.items()}
    headers.pop(HEADER, None)  # a sender's reference to a body is nothing that we have written
    return headers


def _at(path: str, body: bytes, headers: Mapping[str, str]) -> str | None:
    data = None if path.startswith("header:") else payload.decode(body)
    name = path.lower() if path.startswith("header:") else path
    value = key_at(name, data, headers)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _event_id(event: Mapping[str, Any]) -> str | None:
    """What makes a CloudEvent unique: source and id together; the length keeps ("a", "b:c") and ("a:b", "c") apart."""
    source, event_id = event.get("source") or "", event.get("id")
    if not event_id:
        return None
    if not isinstance(source, str) or not isinstance(event_id, str):
        raise InvalidMessage("the source and the id of a CloudEvent must be texts")
    both = f"{len(source)}:{source}:{event_id}"
    return both if len(both.encode()) <= MAX_ID_BYTES else "sha256:" + hashlib.sha256(both.encode()).hexdigest()


def _cloud_event(arrival: Arrival, headers: Mapping[str, str]) -> tuple[Mapping[str, Any], bytes]:
    """The attributes of a CloudEvent, and its data; without one, nothing and the body."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() == _STRUCTURED:
        event = payload.decode(arrival.body)
        if not isinstance(event, dict):
            raise InvalidMessage("the body is not a CloudEvent, though its content type says so")
        return event, _event_data(event, arrival.body)
    for prefix in _BINARY:
        if f"{prefix}specversion" in headers:
            return {name: headers.get(f"{prefix}{name}") for name in ("source", "id", "type")}, arrival.body
    return {}, arrival.body


def _event_data(event: Mapping[str, Any], body: bytes) -> bytes:
    """The data of an event that is all in the body; the body itself where it has none."""
    if "data_base64" in event:
        try:
            return base64.b64decode(event["data_base64"], validate=True)
        except (TypeError, ValueError) as error:
            raise InvalidMessage("data_base64 of the CloudEvent is not base64") from error
    return payload.encode(event["data"]) if "data" in event else body
