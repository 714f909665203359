"""Which deliveries are the same message (R01, R06; HZ-02, HZ-12, HZ-13)."""

from __future__ import annotations

from typing import Any

import pytest

from onceward import InvalidMessage
from tests.contract.harness import Shop, arguments

NO_IDS: list[Any] = [
    *("", "\x00", "a\x00b", "a\nb", "a\r\n", "\t", "\x1b[31m", "\x7f", "\x85"),
    *("\ud800", "a\udfff", "x" * 1025, "\u00e9" * 513, "\U0001f600" * 257),
    *(None, 7, 7.0, True, b"bytes", ["list"], object()),
]


def test_the_same_id_of_another_source_is_another_message(shop: Shop) -> None:
    """R01, HZ-13: one sender cannot use up another's ids."""
    shop.handle()
    receipts = [shop.receive("m1", source=source) for source in ("stripe", "Stripe", "paypal")]
    shop.drain()
    assert [receipt.status for receipt in receipts] == ["accepted"] * 3
    assert len({receipt.seq for receipt in receipts}) == 3
    assert shop.runs["m1"] == 3
    shop.sql("DELETE FROM effects")  # three messages of one id look doubled to the health check


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
    *(({"version": wrong}, "version") for wrong in (-1, 2**31, True, "1", 1.0)),
    *(({"headers": wrong}, "header") for wrong in ({"trace": 7}, {7: "seven"}, {"trace": None}, {"trace": b"x"})),
    *(({"data": wrong}, "JSON") for wrong in (float("nan"), {"when": object()}, {object()}, b"bytes", "\ud800")),
    ({"data": {}, "body": b"{}"}, "not both"),
    ({"body": "text"}, "body must be bytes"),
]


def test_an_unusable_part_is_refused_by_name(sqlite_shop: Shop) -> None:
    """R06: everything wrong with a call is said before anything is stored, always as InvalidMessage."""
    for wrong, words in UNUSABLE:
        with pytest.raises(InvalidMessage, match=words):
            sqlite_shop.receive("m1", **wrong)
    assert sqlite_shop.count("ledger") == 0
