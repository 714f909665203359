"""What came in is checked before anything is stored; what travels is frozen."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceward.domain import identity
from onceward.errors import ContractViolation, InvalidMessage
from onceward.message import Delivery, Failure, Message, Outgoing, Receipt, moment, passed_on
from tests.unit.builders import NOW, delivery, message


def test_a_delivery_holds_what_was_passed() -> None:
    """Data becomes bytes, a key becomes text, and the hash is of the bytes."""
    one = delivery(data={"order": 7}, key=7, headers={"trace": "t"}, version=3)
    assert (one.source, one.id, one.type, one.version, one.key) == ("shop", "e1", "paid", 3, "7")
    assert one.body == b'{"order":7}'
    assert one.hash == identity.body_hash(one.body)
    assert dict(one.headers) == {"trace": "t"}


@pytest.mark.parametrize("raw", [b"\xff\x00", bytearray(b"\xff\x00"), memoryview(b"\xff\x00")])
def test_a_raw_body_is_kept_byte_by_byte(raw: Any) -> None:
    """Bytes are stored as they came, whatever they are and whatever holds them."""
    one = delivery(data=None, body=raw)
    assert one.body == b"\xff\x00"
    assert type(one.body) is bytes


def test_nothing_is_null() -> None:
    """Without data and body the body is JSON's null; an empty body is a body."""
    assert delivery(data=None).body == b"null"
    assert delivery(data=None, body=b"").body == b""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source": ""}, "source is empty"),
        ({"source": 7}, "source must be text, not int"),
        ({"source": "a\nb"}, "source 'a\\nb' holds"),
        ({"id": ""}, "id is empty"),
        ({"id": None}, "id must be text"),
        ({"id": "x" * 1025}, "1025 bytes"),
        ({"type": ""}, "type is empty"),
        ({"type": "\x00"}, "type '\\x00' holds"),
        ({"version": -1}, "version must be a whole number"),
        ({"version": 2**31}, "version must be a whole number"),
        ({"version": True}, "version must be a whole number"),
        ({"version": "1"}, "version must be a whole number"),
        ({"version": 1.0}, "version must be a whole number"),
        ({"position": "1"}, "position must be a whole number"),
        ({"position": True}, "position must be a whole number"),
        ({"position": 2**63}, "position must be a whole number"),
        ({"destination": ""}, "to is empty"),
        ({"destination": 7}, "to must be text"),
        ({"body": b"1"}, "data= or body=, not both"),
        ({"data": None, "body": "text"}, "body must be bytes, not str"),
        ({"data": None, "body": 7}, "body must be bytes, not int"),
        ({"data": object()}, "data cannot be written as JSON"),
        ({"headers": {"a": 1}}, "header 'a' must be text with a text value, not int"),
        ({"headers": {1: "a"}}, "header 1 must be text"),
        ({"headers": {"x": None}}, "header 'x' must be text with a text value, not NoneType"),
    ],
)
def test_what_is_wrong_is_said_with_its_name(changes: dict[str, Any], reason: str) -> None:
    """The error text names the field and what is wrong with it."""
    with pytest.raises(InvalidMessage) as caught:
        delivery(**changes)
    assert reason in str(caught.value)


@pytest.mark.parametrize("key", [object(), {1, 2}, float("nan"), b"k", {"at": datetime(2024, 1, 1, tzinfo=UTC)}])
def test_a_key_that_cannot_be_text_is_refused_by_name(key: Any) -> None:
    """A key without a text form is an `InvalidMessage` that names the key, like every other wrong field."""
    with pytest.raises(InvalidMessage, match="key"):
        delivery(key=key)


def test_a_delivery_does_not_follow_its_caller() -> None:
    """What the caller changes afterwards changes nothing here."""
    headers, raw = {"a": "1"}, bytearray(b"1")
    one = delivery(data=None, body=raw, headers=headers)
    headers["a"] = "2"
    raw[0] = 0
    assert one.headers["a"] == "1"
    assert one.body == b"1"
    with pytest.raises(TypeError):
        one.headers["a"] = "3"  # type: ignore[index] # that is the point


@pytest.mark.parametrize("one", [delivery(), message(), Receipt("accepted", 1)])
def test_everything_that_travels_is_frozen(one: Any) -> None:
    """No field can be set, and none can be added."""
    for name in [*getattr(one, "_fields", one.__slots__), "extra"]:
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
            setattr(one, name, None)


def test_a_message_does_not_print_its_body() -> None:
    """Bodies and headers stay out of logs that print a message."""
    text = repr(message(data=None, body=b"secret-body", headers={"authorization": "secret-header"}))
    assert "secret" not in text


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PARTS = st.tuples(TEXTS, TEXTS, TEXTS, TEXTS)


def idempotency_key(parts: tuple[str, str, str, str], **changes: Any) -> str:
    consumer, source, message_id, name = parts
    return message(consumer=consumer, source=source, id=message_id, **changes).idempotency_key(name)


@given(PARTS, PARTS)
@example(("ab", "c", "", ""), ("a", "bc", "", ""))
@example(("a", "b", "1:c", "d"), ("a", "b1:", "c", "d"))
@example(("1:a", "", "", ""), ("", "1:a", "", ""))
@example(("", "", "", "0:"), ("", "", "0:", ""))
def test_idempotency_keys_never_collide(one: tuple[str, str, str, str], other: tuple[str, str, str, str]) -> None:
    """Each (consumer, source, id, name) has a key of its own: the parts carry their lengths."""
    assert (idempotency_key(one) == idempotency_key(other)) == (one == other)


@given(PARTS, st.integers(1, 100), st.integers(1, 10**9))
def test_an_idempotency_key_is_the_same_on_every_retry(
    parts: tuple[str, str, str, str], attempt: int, seq: int
) -> None:
    """Attempt, time, number and content do not matter: only which message, and which call."""
    later = moment(NOW) + timedelta(days=1)
    again = idempotency_key(parts, attempt=attempt, seq=seq, received_at=later, data=None, version=9, key="k")
    assert idempotency_key(parts) == again
    assert len(again) == 64


def test_an_idempotency_key_is_pinned() -> None:
    """The other side remembers it: changing how it is made would repeat calls across an upgrade."""
    expected = "1e169cb885921e8cc8e313275f2444f251c608b45a971c49302b28f032783c79"
    assert message().idempotency_key("charge") == expected


@given(st.integers(-(10**15), 10**16))
def test_a_moment_is_exact(microseconds: int) -> None:
    """A stored time comes back to the microsecond, in UTC."""
    one = moment(microseconds)
    assert one.tzinfo is UTC
    assert one - datetime(1970, 1, 1, tzinfo=UTC) == timedelta(microseconds=microseconds)


def open_outbox() -> Outgoing:
    outbox = Outgoing("service")
    outbox.begin()
    return outbox


def test_what_is_sent_is_kept_for_the_commit() -> None:
    """An id of its own that is the same on every retry, the service as its source, this message as its cause."""
    outbox = open_outbox()
    one = message(seq=9, outbox=outbox, headers={"Traceparent": "t", "secret": "s"})
    first = one.send("shipped", {"order": 7}, key=7, to="warehouse", version=2, headers={"x": "y"})
    second = one.send("mailed", body=b"raw")
    assert [each.id for each in outbox.deliveries] == [first, second]
    assert first == one.idempotency_key("send 0") != second
    sent = outbox.deliveries[0]
    assert (sent.source, sent.type, sent.version, sent.key, sent.destination, sent.cause) == (
        "service",
        "shipped",
        2,
        "7",
        "warehouse",
        9,
    )
    assert dict(sent.headers) == {"correlation-id": "e1", "causation-id": "e1", "traceparent": "t", "x": "y"}
    assert outbox.deliveries[1].body == b"raw"
    outbox.begin()
    assert outbox.deliveries == []
    assert one.send("shipped", {"order": 7}) == first


def test_sending_is_over_when_the_handler_is() -> None:
    """What comes too late, or from outside, is refused: it would not be in the transaction."""
    outbox = open_outbox()
    outbox.end()
    with pytest.raises(ContractViolation, match="its transaction is over"):
        message(outbox=outbox).send("shipped")
    with pytest.raises(ContractViolation, match=r"use inbox\.send"):
        message().send("shipped")
    with pytest.raises(ContractViolation, match="inside a handler"):
        message().once("charge", list)


def test_a_wrong_message_is_refused_where_it_is_sent() -> None:
    """The handler hears of it at its own line, and nothing of it is kept."""
    outbox = open_outbox()
    with pytest.raises(InvalidMessage, match="type is empty"):
        message(outbox=outbox).send("")
    assert outbox.deliveries == []


def test_once_asks_the_runtime() -> None:
    """The message passes itself, the name, the call, and whether the other side can tell repetitions."""
    one = message(effects=lambda *parts: parts)
    assert one.once("charge", list) == (one, "charge", list, False)
    assert one.once("mail", list, idempotent=True) == (one, "mail", list, True)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, {"correlation-id": "e1", "causation-id": "e1"}),
        ({"Correlation-Id": "c"}, {"correlation-id": "c", "causation-id": "e1"}),
        (
            {"traceparent": "p", "tracestate": "s", "authorization": "a"},
            {"correlation-id": "e1", "causation-id": "e1", "traceparent": "p", "tracestate": "s"},
        ),
    ],
)
def test_a_sent_message_inherits_its_origin(headers: dict[str, str], expected: dict[str, str]) -> None:
    """Who started it, what caused it, and the trace; nothing else of the incoming headers."""
    assert passed_on("e1", headers) == expected


@pytest.mark.parametrize(
    ("receipt", "outcome"),
    [
        (Receipt("accepted", 1, finished=True), "done"),
        (Receipt("accepted", 1, error=Failure("E", "x")), "retrying"),
        (Receipt("accepted", 1, error=Failure("E", "x", final=True)), "dead"),
        (Receipt("duplicate", 1, finished=True), "duplicate"),
        (Receipt("mismatch", 1), "mismatch"),
        (Receipt("spooled", 0), "spooled"),
    ],
)
def test_the_outcome_says_what_became_of_it(receipt: Receipt, outcome: str) -> None:
    """D47: failed, queued and dead are three things."""
    assert receipt.outcome == outcome


def test_a_receipt_by_default() -> None:
    """A receipt promises no more than it knows."""
    one = Receipt("accepted", 7)
    assert (one.finished, one.result, one.error, one.outcome) == (False, None, None, "queued")
    assert isinstance(message(), Message)
    assert isinstance(delivery(), Delivery)
