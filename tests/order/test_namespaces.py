"""Which key a message has: its name and its namespace, found in the data that its handler sees (R17, R18)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from onceward import ConfigurationError, Message
from onceward.admin.doctor import examine
from onceward.domain import identity
from tests.contract.behaviour import Steps, wrote
from tests.contract.harness import LATER, TYPE, Shop
from tests.order.ledger import Clerk, journal

GAP = timedelta(hours=1)


def statuses(shop: Shop) -> dict[str, str]:
    """What became of each message."""
    return {row.id: row.status for row in shop.inbox.admin.messages()}


def test_two_keys_with_one_hash_only_wait_for_each_other(
    shop: Shop, clerk: Clerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D10: nothing is skipped, held back or refused because of another key's numbers."""
    monkeypatch.setattr(identity, "key_hash", lambda *_: 42)
    shop.handle("opened", clerk, key="k", sequence="n", gap=GAP, retry=LATER)
    for key, number in (("a", 1), ("a", 2), ("b", 1), ("b", 2)):
        shop.receive(f"{key}{number}", "opened", data={"k": key, "n": number})
    shop.drain()
    assert [journal(shop, key) for key in "ab"] == [["a1", "a2"], ["b1", "b2"]]
    assert shop.inbox.admin.stats().skipped == 0
    for key in "ab":
        shop.receive(f"{key}3", "opened", data={"k": key, "n": 3, "reject": True})
    shop.drain()
    assert (shop.status("a3"), shop.status("b3")) == ("dead", "waiting")
    assert shop.inbox.admin.discard(shop.seqs["b3"]) == 1  # the first of its own key
    assert shop.inbox.admin.discard(shop.seqs["a3"]) == 1


def test_types_share_their_keys_unless_they_have_an_aggregate(shop: Shop, clerk: Clerk) -> None:
    """D17: dead order 3 holds customer 3 only where they are of one namespace; whoever is in the way is named."""
    for kind, aggregate in (("opened", None), ("changed", None), ("closed", "customer")):
        shop.handle(kind, clerk, key="k", sequence="n", gap=GAP, retry=LATER, aggregate=aggregate)
    shop.receive("order", "opened", data={"k": "3", "n": 1, "reject": True})
    receiver = shop.another()  # has no handlers
    receiver.receive("customer", "closed", data={"k": "3", "n": 1})
    shop.process("again", "closed", data={"k": "3", "n": 2})
    shop.receive("third", "closed", data={"k": "3", "n": 4, "reject": True})
    shop.receive("same", "changed", data={"k": "3", "n": 2})
    shop.drain()
    assert statuses(shop) == {
        "order": "dead",
        "customer": "done",
        "again": "done",
        "third": "waiting",
        "same": "waiting",
    }
    explained = shop.inbox.admin.explain(shop.seqs["same"])
    assert explained is not None
    assert [one.what for one in explained.events if one.kind == "next"] == [
        "waits behind an earlier message of its key (opened), which is dead:"
    ]
    assert shop.process("before third", "closed", data={"k": "3", "n": 3}).seq
    shop.drain()
    assert shop.status("third") == "dead"
    assert shop.inbox.admin.redrive(shop.seqs["third"]) == 1  # it stands in its own key still
    assert shop.inbox.admin.discard(shop.seqs["third"], shop.seqs["order"]) == 2


def test_the_doctor_lists_types_that_share_keys_under_different_paths(shop: Shop, clerk: Clerk) -> None:
    """D17: where that is not meant, one of them gets an aggregate."""
    shop.handle("opened", clerk, key="order_id")
    shop.handle("changed", clerk, key="customer_id")
    shop.handle("closed", clerk, key="customer_id", aggregate="customer")
    shop.drain()
    (found,) = [one for one in examine(shop.inbox) if "share their keys" in one.what]
    assert (found.level, "changed (customer_id), opened (order_id)" in found.what) == ("warning", True)
    assert "aggregate=" in found.advice


def test_an_aggregate_needs_keys(shop: Shop) -> None:
    """D17: and one for all versions of a type."""
    with pytest.raises(ConfigurationError, match="aggregate= is a namespace of keys, so it needs key="):
        shop.handle(aggregate="order")
    shop.handle(key="k", aggregate="order")
    with pytest.raises(ConfigurationError, match="must therefore have the same aggregate="):
        shop.handle(key="k", version=2)


@pytest.mark.parametrize("key", ["order.id", lambda message: message.data["order"]["id"]], ids=["path", "function"])
def test_keys_are_looked_for_in_the_data_that_the_handler_sees(shop: Shop, key: str | Callable[[Message], Any]) -> None:
    """D13: an older version is upcast first, so it keeps its place in the order."""
    handle_newest(shop, key)
    shop.receive("old", data={"order_id": 7, "fail": True}, version=1)
    shop.receive("new", data={"order": {"id": 7}}, version=2)
    assert [row.key for row in shop.inbox.admin.messages()] == ["7", "7"]
    shop.drain()
    assert statuses(shop) == {"old": "retrying", "new": "waiting"}
    shop.inbox.admin.discard(shop.seqs["old"])
    shop.drain()
    assert shop.effects() == ["new"]


def test_a_worker_moves_a_message_to_the_key_that_its_handler_finds(shop: Shop) -> None:
    """D13: a receiver without the handlers cannot upcast; the worker puts it in its place before anything runs."""
    handle_newest(shop, "order.id")
    shop.drain()
    receiver = shop.another()
    receiver.receive("old", data={"order_id": 7, "fail": True}, version=1)
    receiver.receive("new", data={"order": {"id": 7}}, version=2)
    receiver.receive("given", data={"order_id": 8}, version=1, key="mine")
    assert [row.key for row in shop.inbox.admin.messages()] == ["mine", "7", None]
    shop.seqs |= receiver.seqs
    shop.drain()
    assert statuses(shop) == {"old": "retrying", "new": "waiting", "given": "done"}
    detail = shop.detail("old")
    assert (detail.key, [action.action for action in detail.actions]) == ("7", ["move"])
    shop.inbox.admin.discard(shop.seqs["old"])
    shop.drain()
    assert shop.effects() == ["given", "new"]


def handle_newest(shop: Shop, key: Any) -> None:
    """A handler of version 2, which fails when told to, and what leads there."""

    def behaviour(message: Message) -> Steps:
        if message.data.get("fail"):
            raise RuntimeError("not yet")
        yield wrote(message)

    shop.handle(behaviour=behaviour, version=2, key=key)
    shop.inbox.upcast(TYPE, 1)(lambda data: {"order": {"id": data["order_id"]}, "fail": data.get("fail")})


@pytest.mark.parametrize("sequence", [None, "n"])
def test_a_message_without_its_key_is_dead_until_that_is_corrected(shop: Shop, sequence: str | None) -> None:
    """D16: it never runs out of order in silence; the reason names the path, and a redrive after the fix runs it."""
    shop.handle(key="order_id", sequence=sequence)
    shop.receive("m1", data={"order": 7, "n": 1})
    shop.process("m2", data={"order": 8, "n": 1})
    shop.drain()
    assert statuses(shop) == {"m1": "dead", "m2": "dead"}
    for message_id in ("m1", "m2"):
        assert "it has no key: nothing is at 'order_id'" in shop.error(message_id)
    with shop.visitor() as corrected:
        corrected.handle(key="order", sequence=sequence)
        assert corrected.inbox.admin.redrive(*shop.seqs.values()) == 2
        corrected.drain()
    assert (statuses(shop), shop.detail("m1").key) == ({"m1": "done", "m2": "done"}, "7")


def test_messages_may_be_without_a_key_where_the_handler_says_so(shop: Shop) -> None:
    """D16: then they run without order, and the doctor counts them."""
    shop.handle(key="order_id", key_required=False)
    shop.receive("m1", data={})
    shop.receive("m2", data={"order_id": 7})
    assert shop.process("m3", data={}).finished
    shop.drain()
    assert shop.effects() == ["m1", "m2", "m3"]
    (found,) = [one for one in examine(shop.inbox) if "without a key" in one.what]
    assert (found.level, found.what.startswith("2 of the newest messages of type order.paid")) == ("warning", True)
