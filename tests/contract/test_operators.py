"""What people see and do: guarded, repeatable, written down; and right numbers (R09, R15, R43; HZ-54, HZ-55; I13)."""

from __future__ import annotations

import pytest

from onceward import ConfigurationError, Reject
from onceward.testing.store_suite.operators import dead, while_it_runs
from tests.contract.behaviour import raising
from tests.contract.harness import Shop, arguments


def test_a_message_that_is_done_or_unknown_is_left_alone(shop: Shop) -> None:
    """HZ-55: no state but the right one is touched."""
    shop.handle()
    shop.receive("m1")
    shop.drain()
    for action in (shop.inbox.admin.redrive, shop.inbox.admin.discard):
        assert action(shop.seqs["m1"]) == action(999_999) == action() == 0
    shop.receive("m2")
    assert shop.inbox.admin.redrive(shop.seqs["m2"]) == 0
    shop.drain()
    assert (shop.effects(), shop.count("audit")) == (["m1", "m2"], 0)


def test_a_running_message_is_left_to_its_worker(shop: Shop) -> None:
    """HZ-55: neither redrive nor discard takes a message out of a handler's hands."""
    with while_it_runs(shop, "m1") as seq:
        assert (shop.inbox.admin.redrive(seq), shop.inbox.admin.discard(seq)) == (0, 0)
        assert shop.status(seq) == "running"
    assert (shop.effects(), shop.count("audit")) == (["m1"], 0)


def test_dead_messages_are_chosen_by_filter(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """HZ-55: by type, key and source; only dead ones; more than one page of them."""
    monkeypatch.setattr("onceward.runtime.group_commit.SHARED", 5)
    many = [f"m{number}" for number in range(12)]
    shop.handle("doomed", behaviour=raising(lambda: Reject("no")))
    shop.receive_many(arguments(message_id, "doomed") for message_id in many)
    shop.drain()
    dead(shop, "other type", message_type="other")
    dead(shop, "other source", source="paypal")
    (keyed,) = dead(shop, "keyed", key="k")
    shop.receive("not dead", "doomed")
    assert shop.inbox.admin.redrive(type="doomed", key="k", reason="by key") == 1
    assert shop.status(keyed) == "due"
    assert shop.inbox.admin.discard(source="paypal") == 1
    assert shop.inbox.admin.redrive(type="doomed", source="stripe") == 12
    assert shop.inbox.admin.stats().dead == 1
    assert [row.id for row in shop.inbox.admin.messages(status="dead")] == ["other type"]


def test_an_action_names_its_actor(sqlite_shop: Shop) -> None:
    """I13: without a name it is the user of the process."""
    (seq,) = dead(sqlite_shop, "m1")
    sqlite_shop.inbox.admin.redrive(seq)
    assert sqlite_shop.detail(seq).actions[0].actor


# Numbers


@pytest.mark.parametrize("what", ["redrive", "discard"])
def test_a_wrong_filter_is_an_error(sqlite_shop: Shop, what: str) -> None:
    """HZ-55: a misspelt filter must not become "all of them"."""
    dead(sqlite_shop, "m1")
    with pytest.raises(ConfigurationError, match="has no argument typ="):
        getattr(sqlite_shop.inbox.admin, what)(typ="doomed")
    assert sqlite_shop.inbox.admin.stats().dead == 1


def test_what_is_changed_is_what_was_selected(shop: Shop) -> None:
    """Selected by filter, by number or by id; what comes between the look and the change is not changed with it."""
    seqs = dead(shop, "m1", "m2", "m3")
    found = shop.call(shop.inbox.admin, "select", type="doomed", limit=2)
    assert (found.seqs, found.more) == (tuple(seqs[1:]), True), "the newest"
    found = shop.call(shop.inbox.admin, "select", type="doomed")
    assert (found.seqs, found.more, sum(found.kinds.values())) == (tuple(seqs), False, 3)
    assert [kind[:2] for kind in found.kinds] == [("doomed", "stripe")]
    (later,) = dead(shop, "m4")
    assert shop.call(shop.inbox.admin, "discard", seqs[2], reason="by another operator") == 1
    applied = shop.call(shop.inbox.admin, "apply", "redrive", (*found.seqs, 999_999), reason="fixed", actor="ann")
    assert (applied.changed, applied.refused) == (seqs[:2], [])
    assert applied.left == {seqs[2]: "it is discarded", 999_999: "there is no such message"}
    assert [shop.status(seq) for seq in (*seqs, later)] == ["due", "due", "discarded", "dead"]
    assert [(a.actor, a.action, a.reason) for a in shop.detail(seqs[0]).actions] == [("ann", "redrive", "fixed")]
    by_id = shop.call(shop.inbox.admin, "select", source="stripe", id="m4")
    assert (by_id.seqs, shop.call(shop.inbox.admin, "select", later).seqs) == ((later,), (later,))
    assert shop.call(shop.inbox.admin, "select", source="stripe", id="m5").seqs == ()
    with pytest.raises(ConfigurationError, match="id= goes with source="):
        shop.call(shop.inbox.admin, "select", id="m4")


def test_a_refusal_keeps_nothing_else_from_being_changed(shop: Shop) -> None:
    """One that would run out of order is refused by name; the others of the selection are redriven."""
    behind, free = dead(shop, "m1", "m2")
    shop.handle("keyed", behaviour=raising(lambda: Reject("no")), key="order", on_dead="continue")
    left = shop.receive("m3", "keyed", data={"order": 1}).seq
    shop.drain()
    applied = shop.call(shop.inbox.admin, "apply", "redrive", (behind, left, free), reason="fixed")
    assert (applied.changed, applied.refused, list(applied.left)) == ([behind, free], [left], [left])
    assert "out_of_order=True" in applied.left[left]
    with pytest.raises(ConfigurationError, match="out_of_order=True"):
        shop.call(shop.inbox.admin, "redrive", left)
    assert shop.call(shop.inbox.admin, "redrive", type="keyed") == 0
    assert shop.call(shop.inbox.admin, "redrive", left, out_of_order=True) == 1
