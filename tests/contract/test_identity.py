"""Which deliveries are the same message (R01, R06; HZ-02, HZ-12, HZ-13)."""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Any
from uuid import UUID

import pytest

from onceward import InvalidMessage
from tests.contract.harness import Shop, arguments

_UUID = "0b5f1e4a-8c1d-4f6e-9a57-3f2b1c0d9e8f"
_PRINTABLE_UUID = str(UUID(bytes=b"abcdefghijklmnop"))
_LONG = "x" * 1023

# Each of these is a message of its own; a comparison that folds, trims, cuts or hashes carelessly merges two.
DIFFERENT_IDS = [
    *("a", "A", "a ", " a", "a  ", "a\u00a0", "a\u200b", "\uff41", "1", "01", "1.0", "null", "None"),
    *(unicodedata.normalize("NFC", "caf\u00e9"), unicodedata.normalize("NFD", "caf\u00e9"), "cafe"),
    *("\u00df", "ss", "\u0130", "i", "\u0131", "\u1e9e", "\u05d0", "\u202eabc", "\ufffe", "\ufffd"),
    *("\U0001f600", "\U0001f601", "\U0001f469\u200d\U0001f680", "\U0001f469\U0001f680"),
    *(_LONG + "a", _LONG + "b", "\u00e9" * 512, "x" * 199, "x" * 200, "x" * 201),
    *(_UUID, _UUID.upper(), _UUID.replace("-", ""), "{" + _UUID + "}", "urn:uuid:" + _UUID),
    *(_PRINTABLE_UUID, "abcdefghijklmnop", "uabcdefghijklmnop", "rabcdefghijklmnop", "ra"),
    *("sha256:" + hashlib.sha256((_LONG + "a").encode()).hexdigest(), "d" + "x" * 32),
    *("' OR 1=1", "'; DROP TABLE effects; --", "%s", "%(id)s", ":id", "?", "\\", "\\x00", "{}", '"', "$1"),
]

NO_IDS: list[Any] = [
    *("", "\x00", "a\x00b", "a\nb", "a\r\n", "\t", "\x1b[31m", "\x7f", "\x85"),
    *("\ud800", "a\udfff", "x" * 1025, "\u00e9" * 513, "\U0001f600" * 257),
    *(None, 7, 7.0, True, b"bytes", ["list"], object()),
]


def test_a_duplicate_is_accepted_once_and_runs_once(shop: Shop) -> None:
    """R01: the first writer wins; every later copy is a duplicate, before and after the run."""
    shop.handle()
    first, second = shop.receive("m1"), shop.receive("m1")
    shop.drain()
    third = shop.receive("m1")
    shop.drain()
    assert [first.status, second.status, third.status] == ["accepted", "duplicate", "duplicate"]
    assert first.seq == second.seq == third.seq
    assert [first.finished, second.finished, third.finished] == [False, False, True]
    assert shop.effects() == ["m1"]
    assert (shop.story("m1").duplicates, shop.inbox.admin.stats().duplicates) == (2, 2)


def test_the_same_id_of_another_source_is_another_message(shop: Shop) -> None:
    """R01, HZ-13: one sender cannot use up another's ids."""
    shop.handle()
    receipts = [shop.receive("m1", source=source) for source in ("stripe", "Stripe", "paypal")]
    shop.drain()
    assert [receipt.status for receipt in receipts] == ["accepted"] * 3
    assert len({receipt.seq for receipt in receipts}) == 3
    assert shop.runs["m1"] == 3
    shop.sql("DELETE FROM effects")  # three messages of one id look doubled to the health check


def test_the_same_message_of_another_service_is_another_message(shop: Shop) -> None:
    """R02: the service is the default dedupe scope; two services on one database do not hide each other's messages."""
    other = shop.another(service="warehouse")
    for each in (shop, other):
        each.handle()
        each.drain()
    assert [each.receive("m1").status for each in (shop, other)] == ["accepted", "duplicate"]
    for each in (shop, other):
        each.drain()
    assert shop.notes() == [("m1", "default"), ("m1", "warehouse")]


def test_ids_are_compared_byte_by_byte(shop: Shop) -> None:
    """R01, HZ-12: nothing is folded, trimmed, cut or taken for another id's stored form."""
    assert len(set(DIFFERENT_IDS)) == len(DIFFERENT_IDS)
    shop.handle()
    deliveries = [arguments(message_id, more={"data": 0}) for message_id in DIFFERENT_IDS]
    firsts, copies = shop.receive_many(deliveries), shop.receive_many(deliveries)
    shop.drain()
    assert [receipt.status for receipt in firsts] == ["accepted"] * len(DIFFERENT_IDS)
    assert [receipt.status for receipt in copies] == ["duplicate"] * len(DIFFERENT_IDS)
    assert [receipt.seq for receipt in firsts] == [receipt.seq for receipt in copies]
    assert shop.effects() == sorted(DIFFERENT_IDS)
    assert [shop.story(receipt.seq).id for receipt in firsts] == DIFFERENT_IDS


def test_equal_bodies_under_two_ids_are_two_messages(shop: Shop) -> None:
    """C48, HZ-11: two payments of the same amount are two payments; what a message says is not who it is."""
    shop.handle()
    payment = {"order": 7, "amount": 10}
    assert [shop.receive(one, data=payment).status for one in ("p1", "p2")] == ["accepted"] * 2
    assert shop.process("p3", data=payment).status == "accepted"
    shop.drain()
    assert shop.effects() == ["p1", "p2", "p3"]
    assert len({shop.story(one).hash for one in ("p1", "p2", "p3")}) == 1


def test_an_unusable_id_is_refused_and_nothing_is_stored(shop: Shop) -> None:
    """R06, HZ-12: refused at the edge by name, whichever way it comes in."""
    shop.handle()
    for bad in NO_IDS:
        with pytest.raises(InvalidMessage, match=r"^id "):
            shop.receive(bad, data=0)
        with pytest.raises(InvalidMessage, match=r"^id "):
            shop.process(bad, data=0)
        with pytest.raises(InvalidMessage, match=r"^id "):
            shop.receive_many([arguments("fine"), arguments(bad, more={"data": 0})])
    assert shop.count("ledger") == shop.count("body") == shop.count("queue") == 0


def test_an_unusable_name_is_refused_and_nothing_is_stored(shop: Shop) -> None:
    """R01: names follow the same rules as ids, with a shorter limit."""
    for bad in [*NO_IDS, "x" * 256, "\u00e9" * 128]:
        with pytest.raises(InvalidMessage, match=r"^source "):
            shop.receive("m1", source=bad)
        with pytest.raises(InvalidMessage, match=r"^type "):
            shop.receive("m1", bad)
    assert shop.count("ledger") == 0
    for good in ("x" * 255, "\u00e9" * 127, "Ünïcode name with blanks "):
        assert shop.receive(good, good, good).status == "accepted"


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    *(({"version": wrong}, "version") for wrong in (-1, 2**31, True, "1", 1.0, None)),
    *(({"headers": wrong}, "header") for wrong in ({"trace": 7}, {7: "seven"}, {"trace": None}, {"trace": b"x"})),
    *(({"data": wrong}, "JSON") for wrong in (float("nan"), {"when": object()}, {1, 2}, b"bytes", "\ud800")),
    ({"data": {}, "body": b"{}"}, "not both"),
    ({"body": "text"}, "body must be bytes"),
]


def test_an_unusable_part_is_refused_by_name(sqlite_shop: Shop) -> None:
    """R06: everything wrong with a call is said before anything is stored, always as InvalidMessage."""
    for wrong, words in UNUSABLE:
        with pytest.raises(InvalidMessage, match=words):
            sqlite_shop.receive("m1", **wrong)
    assert sqlite_shop.count("ledger") == 0


def test_headers_arrive_as_they_were_sent(shop: Shop) -> None:
    """R09: header values are text of any kind; odd ones neither fail the message nor hide it from its reader."""
    headers = {"trace": "00-ab-01", "": "empty name", "Ünï": "\U0001f600", "odd": "a\r\nb\x00c\x1b", "half": "\ud800"}
    seen: dict[str, Any] = {}

    def look(message: Any) -> Any:
        seen[message.id] = dict(message.headers)
        yield from ()

    shop.handle(behaviour=look)
    for name, value in headers.items():
        try:
            shop.receive(name or "empty", headers={name: value})
        except InvalidMessage as refusal:  # saying so at the edge is as good as keeping it
            assert "header" in str(refusal)  # noqa: PT017 - both outcomes are right
            continue
        shop.drain()
        assert (shop.status(name or "empty"), seen[name or "empty"]) == ("done", {name: value})
        assert shop.story(name or "empty").headers == {name: value}
    assert seen["trace"] == {"trace": "00-ab-01"}


def test_equal_data_is_a_copy_in_whatever_order_its_fields_come(shop: Shop) -> None:
    """D62: `data=` is written in one way; raw bytes stay as they came."""
    assert shop.receive("m1", data={"a": 1, "b": {"c": [1], "d": None}}).status == "accepted"
    assert shop.receive("m1", data={"b": {"d": None, "c": [1]}, "a": 1}).status == "duplicate"
    assert shop.receive("m1", body=b'{"b":{"c":[1],"d":null},"a":1}').status == "mismatch"
    assert shop.receive("m2", data={1: "a", "b": 2, None: 3}).status == "accepted"  # names of several kinds
    assert shop.receive("m2", data={"b": 2, None: 3, 1: "a"}).status == "duplicate"
