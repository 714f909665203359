"""A message is known by its identity: one ledger row, one effect, however often it comes."""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Any
from uuid import UUID

from onceward import InvalidMessage
from onceward.steps.adopt import HandledId, adopt
from onceward.testing.store_suite.shop import Shop, arguments

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


class Identity:
    """A message is known by its identity: one ledger row, one effect, however often it comes."""

    def test_a_duplicate_is_accepted_once_and_runs_once(self, shop: Shop) -> None:
        """The first writer wins; every later copy is a duplicate, before and after the run."""
        shop.handle()
        first, second = shop.receive("m1"), shop.receive("m1")
        shop.drain()
        third = shop.receive("m1")
        shop.drain()
        assert [first.status, second.status, third.status] == ["accepted", "duplicate", "duplicate"]
        assert first.seq == second.seq == third.seq
        assert [first.finished, second.finished, third.finished] == [False, False, True]
        assert shop.effects() == ["m1"]
        assert (shop.detail("m1").duplicates, shop.inbox.admin.stats().duplicates) == (2, 2)

    def test_the_same_message_of_another_service_is_another_message(self, shop: Shop) -> None:
        """The service is the default dedupe scope; two services on one database do not hide each other's messages."""
        other = shop.another(service="warehouse")
        for each in (shop, other):
            each.handle()
            each.drain()
        assert [each.receive("m1").status for each in (shop, other)] == ["accepted", "duplicate"]
        for each in (shop, other):
            each.drain()
        assert shop.notes() == [("m1", "default"), ("m1", "warehouse")]

    def test_ids_are_compared_byte_by_byte(self, shop: Shop) -> None:
        """Nothing is folded, trimmed, cut or taken for another id's stored form."""
        assert len(set(DIFFERENT_IDS)) == len(DIFFERENT_IDS)
        shop.handle()
        deliveries = [arguments(message_id, more={"data": 0}) for message_id in DIFFERENT_IDS]
        firsts, copies = shop.receive_many(deliveries), shop.receive_many(deliveries)
        shop.drain()
        assert [receipt.status for receipt in firsts] == ["accepted"] * len(DIFFERENT_IDS)
        assert [receipt.status for receipt in copies] == ["duplicate"] * len(DIFFERENT_IDS)
        assert [receipt.seq for receipt in firsts] == [receipt.seq for receipt in copies]
        assert shop.effects() == sorted(DIFFERENT_IDS)
        assert [shop.detail(receipt.seq).id for receipt in firsts] == DIFFERENT_IDS

    def test_equal_bodies_under_two_ids_are_two_messages(self, shop: Shop) -> None:
        """Two payments of the same amount are two payments; what a message says is not who it is."""
        shop.handle()
        payment = {"order": 7, "amount": 10}
        assert [shop.receive(one, data=payment).status for one in ("p1", "p2")] == ["accepted"] * 2
        assert shop.process("p3", data=payment).status == "accepted"
        shop.drain()
        assert shop.effects() == ["p1", "p2", "p3"]
        assert len({shop.detail(one).hash for one in ("p1", "p2", "p3")}) == 1

    def test_headers_arrive_as_they_were_sent(self, shop: Shop) -> None:
        """Header values are text of any kind; odd ones neither fail the message nor hide it from its reader."""
        headers = {
            "trace": "00-ab-01",
            "": "empty name",
            "Ünï": "\U0001f600",
            "odd": "a\r\nb\x00c\x1b",
            "half": "\ud800",
        }
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
            assert shop.detail(name or "empty").headers == {name: value}
        assert seen["trace"] == {"trace": "00-ab-01"}

    def test_equal_data_is_a_copy_in_whatever_order_its_fields_come(self, shop: Shop) -> None:
        """`data=` is written in one way; raw bytes stay as they came."""
        assert shop.receive("m1", data={"a": 1, "b": {"c": [1], "d": None}}).status == "accepted"
        assert shop.receive("m1", data={"b": {"d": None, "c": [1]}, "a": 1}).status == "duplicate"
        assert shop.receive("m1", body=b'{"b":{"c":[1],"d":null},"a":1}').status == "mismatch"
        assert shop.receive("m2", data={1: "a", "b": 2, None: 3}).status == "accepted"  # names of several kinds
        assert shop.receive("m2", data={"b": 2, None: 3, 1: "a"}).status == "duplicate"

    def test_an_imported_id_is_finished(self, shop: Shop) -> None:
        """One that was handled elsewhere is known as finished, imported once; what was received stays as it is."""
        shop.handle()
        shop.receive("live")
        ids = [HandledId("old", 0), HandledId("live", 0)]
        assert [shop.step(adopt(shop.inbox.context, "stripe", ["default"], ids)) for _ in range(2)] == [1, 0]
        copy = shop.receive("old")
        shop.drain()
        assert (copy.status, copy.finished, shop.effects()) == ("duplicate", True, ["live"])
