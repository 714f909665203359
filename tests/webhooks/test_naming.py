"""The names that an event is stored under, and what is said where they are not the sender's own."""

from __future__ import annotations

import pytest

from onceward.domain import identity
from onceward.webhooks.naming import Names, named
from onceward.webhooks.verifier import Event

BODY = b'{"amount":1}'


def names(message_id: str | None, kind: str | None, body: bytes = BODY) -> Names:
    return named(Event(message_id, kind, "secret"), body)


def test_good_names_are_the_senders_and_nothing_is_said() -> None:
    assert names("evt_1", "paid") == Names("evt_1", "paid", "")


@pytest.mark.parametrize("bad", ["", "x" * 2000, "evt\ud800"])
def test_an_id_that_cannot_be_stored_is_replaced_by_its_digest_with_the_reason(bad: str) -> None:
    found = names(bad, "paid")
    assert identity.check_id(found.id) == found.id != bad
    assert found.id != names("another\ud800", "paid").id
    assert found.type == "paid"
    assert found.reason


@pytest.mark.parametrize("bad", ["", "x" * 2000, "paid\ud800"])
def test_a_type_that_cannot_be_stored_is_unidentified_with_the_reason(bad: str) -> None:
    found = names("evt_1", bad)
    assert (found.id, found.type) == ("evt_1", identity.UNIDENTIFIED)
    assert found.reason


@pytest.mark.parametrize(
    ("message_id", "kind", "missing"),
    [(None, "paid", "no id"), ("evt_1", None, "no type"), (None, None, "no id and no type")],
)
def test_what_is_missing_is_named(message_id: str | None, kind: str | None, missing: str) -> None:
    found = names(message_id, kind)
    assert found.reason == f"the event has {missing} that can be read"
    assert found.type == (kind or identity.UNIDENTIFIED)
    assert identity.check_id(found.id) == found.id


def test_of_a_body_that_is_no_json_that_is_the_reason() -> None:
    assert names(None, "paid", b"{").reason != names(None, "paid").reason
    assert names(None, "paid", b"{").reason


def test_every_reason_is_said_in_a_text_of_limited_length() -> None:
    of_id, of_type = names("", "paid").reason, names("evt_1", "").reason
    assert names("", "").reason == f"{of_id}; {of_type}"
    assert len(names("\ud800" * 150, "\ud800" * 150).reason) <= 300
