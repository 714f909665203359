"""Which id a delivery of a broker gets: CloudEvents are named by their source and id together (D04)."""

from __future__ import annotations

import json

import pytest

from onceward.brokers.envelope import Envelope
from onceward.brokers.protocol import Arrival
from onceward.domain.identity import UNIDENTIFIED
from onceward.errors import ConfigurationError
from onceward.webhooks.generic import Hmac


def structured(**attributes: object) -> Arrival:
    """An event that is all in the body."""
    event = {"specversion": "1.0", "type": "t", "data": {}, **attributes}
    headers = {"Content-Type": "application/cloudevents+json"}
    return Arrival(json.dumps(event).encode(), headers, handle=None, position="p")


def binary(prefix: str, **attributes: str) -> Arrival:
    """An event whose attributes are headers."""
    headers = {f"{prefix}specversion": "1.0", f"{prefix}type": "t"}
    headers |= {f"{prefix}{name}": value for name, value in attributes.items()}
    return Arrival(b"{}", headers, handle=None, position="p")


EVENTS = [("/a", "1"), ("/b", "1"), ("/a", "2"), ("/a:1", "1"), ("/a", "1:1"), ("", "1"), ("/" + "x" * 2000, "1")]


@pytest.mark.parametrize("prefix", [None, "ce-", "Ce_", "cloudEvents:"])
def test_source_and_id_together_are_the_identity(prefix: str | None) -> None:
    """Distinct events are never one, in either mode; the same event is the same in both."""
    ids = []
    for source, event_id in EVENTS:
        attributes = {"source": source, "id": event_id}
        arrival = structured(**attributes) if prefix is None else binary(prefix, **attributes)
        found = Envelope("broker").message(arrival)
        assert found["type"] == "t"
        assert found["id"] == Envelope("broker").message(structured(**attributes))["id"]
        ids.append(found["id"])
    assert len(set(ids)) == len(EVENTS)
    assert ids[0] == "2:/a:1"


def test_what_is_no_text_names_nothing() -> None:
    """It is kept for a person, as everything without a usable id is."""
    for attributes in ({"source": "/a"}, {"source": 1, "id": "1"}, {"source": "/a", "id": 1}):
        assert Envelope("broker").message(structured(**attributes))["type"] == UNIDENTIFIED


@pytest.mark.parametrize("path", ["header:ce-id", "header:Ce_Id", "header:cloudEvents:id"])
def test_the_id_alone_is_refused(path: str) -> None:
    """It is not unique: said where it is set up."""
    with pytest.raises(ConfigurationError, match="does not identify a CloudEvent"):
        Envelope("broker", id=path)


def test_a_webhook_names_both_parts() -> None:
    """Both headers, or none of them."""
    with pytest.raises(ConfigurationError, match=r'id=\["header:ce-source", "header:ce-id"\]'):
        Hmac("shop", ["at-least-something"], header="x-signature", id="header:ce-id", type="header:ce-type")
    Hmac("shop", ["at-least-something"], header="x-s", id=["header:ce-source", "header:ce-id"], type="header:ce-type")
