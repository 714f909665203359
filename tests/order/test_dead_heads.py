"""A dead message at the head of its key: the key waits or goes on, and one command resolves the chain (R18)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceward import ConfigurationError, InvalidMessage
from tests.contract.harness import LATER, Shop
from tests.nursery import Nursery
from tests.order.conftest import everywhere
from tests.order.ledger import Clerk, Marks, handle_all, journal, receive, statuses

DEATHS: dict[str, dict[str, Any]] = {
    "rejected": {"data": {"k": "k", "reject": True}},
    "out of budget": {"data": {"k": "k", "fail": 99}},
    "unreadable": {"body": b"{not json", "key": "k"},
    "of an unknown version": {"data": {"k": "k"}, "version": 9},
}


@pytest.fixture(params=DEATHS)
def death(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What makes a message die."""
    return DEATHS[request.param]


def test_a_dead_head_blocks_its_key(shop: Shop, clerk: Clerk, death: dict[str, Any]) -> None:
    """The default: successors wait and are listed so, new ones too; other keys go on."""
    handle_all(shop, clerk, retry=LATER)
    shop.receive("m1", "opened", **death)
    receive(shop, "m2", "m3", message_type="changed")
    receive(shop, "other", key="other")
    shop.finish()
    receive(shop, "m4")
    shop.drain()
    assert statuses(shop, ["m1", "m2", "m3", "m4", "other"]) == {
        "m1": "dead",
        "m2": "waiting",
        "m3": "waiting",
        "m4": "waiting",
        "other": "done",
    }
    assert (shop.inbox.admin.stats().dead, shop.inbox.admin.stats().waiting) == (1, 3)
    assert [row.id for row in shop.inbox.admin.messages(status="waiting", key="k")] == ["m4", "m3", "m2"]


def test_a_key_continues_without_a_dead_message(shop: Shop, clerk: Clerk, death: dict[str, Any]) -> None:
    """`on_dead="continue"`: however it died, it stays to be seen and holds nobody up."""
    handle_all(shop, clerk, on_dead="continue", retry=LATER)
    shop.receive("m1", "opened", **death)
    receive(shop, "m2", "m3", message_type="changed")
    shop.finish()
    receive(shop, "m4")
    shop.drain()
    assert shop.status("m1") == "dead"
    assert journal(shop) == ["m2", "m3", "m4"]
    assert shop.inbox.admin.stats().waiting == 0


def test_a_key_continues_without_a_message_that_died_inline(shop: Shop, clerk: Clerk, death: dict[str, Any]) -> None:
    """R03, R18: the same rule for a message that was handled in its caller's process."""
    handle_all(shop, clerk, on_dead="continue", retry=LATER)
    assert not shop.process("m1", "opened", **death).finished
    shop.finish()
    assert shop.status("m1") == "dead"
    receive(shop, "m2")
    shop.drain()
    assert shop.process("m3", "changed", data={"k": "k"}).finished
    assert journal(shop) == ["m2", "m3"]


@everywhere
@pytest.mark.parametrize("on_dead", ["block", "continue"])
def test_a_message_that_kills_its_process_is_a_dead_head_too(  # noqa: PLR0913, PLR0917 - fixtures
    shop: Shop, clerk: Clerk, marks: Marks, nursery: Nursery, tmp_path: Path, on_dead: str
) -> None:
    """R16, R18: dead after its third crash; then its key waits or goes on."""
    handle_all(shop, clerk, on_dead=on_dead)
    receive(shop, "m1", data={"die": "before"})
    receive(shop, "m2", "m3")
    arguments = {"url": shop.url, "kind": shop.kind, "marks": marks.path, "folder": str(tmp_path)}
    for crash in range(3):
        name = f"victim-{crash}"
        options = {"on_dead": on_dead, "group": 1}
        child = nursery.start("tests.order.program:work", tmp_path, **arguments, process=name, options=options)
        assert child.end() == 1, child.errors
        marks.died(child.pid)
        shop.declare_dead(name)
    shop.drain()
    assert shop.detail("m1").crashes == 3
    left = "waiting" if on_dead == "block" else "done"
    assert statuses(shop, ["m1", "m2", "m3"]) == {"m1": "dead", "m2": left, "m3": left}
    assert marks.overlaps() == []


@pytest.fixture
def blocked(shop: Shop, clerk: Clerk) -> Shop:
    """A shop in which m1 is dead and m2 and m3 wait behind it."""
    handle_all(shop, clerk, retry=LATER)
    receive(shop, "m1", data={"fail": 3})
    receive(shop, "m2", "m3")
    shop.finish()
    assert statuses(shop, ["m1", "m2", "m3"]) == {"m1": "dead", "m2": "waiting", "m3": "waiting"}
    return shop


def test_redriving_the_head_resolves_the_chain(blocked: Shop) -> None:
    """It has a new budget, its old place and its history; a second click changes nothing."""
    blocked.sql(f"UPDATE {blocked.prefix}body SET body = %s WHERE id = 'm1'", b'{"k": "k"}')
    assert blocked.inbox.admin.redrive(blocked.seqs["m1"], reason="the cause is gone", actor="ann") == 1
    assert blocked.inbox.admin.redrive(blocked.seqs["m1"]) == 0
    receive(blocked, "m4")
    blocked.drain()
    assert journal(blocked) == ["m1", "m2", "m3", "m4"]
    detail = blocked.detail("m1")
    assert [entry.attempt for entry in detail.history] == [1, 2, 3]
    assert [(entry.actor, entry.action, entry.reason) for entry in detail.actions] == [
        ("ann", "redrive", "the cause is gone")
    ]


def test_discarding_the_head_resolves_the_chain(blocked: Shop) -> None:
    """It never runs, and says who decided so."""
    assert blocked.inbox.admin.discard(blocked.seqs["m1"], reason="order cancelled", actor="ann") == 1
    assert blocked.inbox.admin.discard(blocked.seqs["m1"]) == 0
    blocked.drain()
    assert journal(blocked) == ["m2", "m3"]
    assert blocked.status("m1") == "discarded"
    assert [entry.action for entry in blocked.detail("m1").actions] == ["discard"]


def test_unblocking_the_head_resolves_the_chain(blocked: Shop) -> None:
    """It stays dead, and its key goes on without it."""
    assert blocked.inbox.admin.unblock(blocked.seqs["m1"], reason="fixed by hand", actor="ann") == 1
    assert blocked.inbox.admin.unblock(blocked.seqs["m1"]) == 0
    blocked.drain()
    assert journal(blocked) == ["m2", "m3"]
    assert blocked.status("m1") == "dead"
    assert [(entry.action, entry.reason) for entry in blocked.detail("m1").actions] == [("unblock", "fixed by hand")]


@pytest.mark.parametrize("command", ["redrive", "discard", "unblock"])
def test_a_chain_is_resolved_by_its_key(blocked: Shop, command: str) -> None:
    """One command, without looking up a number."""
    assert getattr(blocked.inbox.admin, command)(key="other", reason="no such key") == 0
    assert getattr(blocked.inbox.admin, command)(key="k", reason="all of them") == 1
    blocked.finish()
    expected = "waiting" if command == "redrive" else "done"  # redriven, it dies again
    assert statuses(blocked, ["m2", "m3"]) == {"m2": expected, "m3": expected}


def test_only_a_dead_message_that_holds_a_key_is_unblocked(shop: Shop, clerk: Clerk) -> None:
    """Not one that is done, backs off, waits, or has no key."""
    handle_all(shop, clerk, retry=LATER)
    shop.handle("free", clerk)
    receive(shop, "done", key="done")
    receive(shop, "head", data={"fail": 1})
    receive(shop, "behind")
    shop.receive("keyless", "free", data={"reject": True})
    shop.drain()
    for message_id in ("done", "head", "behind", "keyless"):
        assert shop.inbox.admin.unblock(shop.seqs[message_id]) == 0
    assert shop.inbox.admin.unblock(999_999) == 0
    assert shop.count("audit") == 0
    shop.finish()


@pytest.mark.parametrize("left", ["unblocked", "continued"])
def test_a_message_that_its_key_left_behind_is_redriven_only_out_of_order(shop: Shop, clerk: Clerk, left: str) -> None:
    """HZ-42: later ones may have run; a person says that this is meant, and it takes its old place among the rest."""
    handle_all(shop, clerk, on_dead="continue" if left == "continued" else "block", retry=LATER)
    receive(shop, "m1", data={"fail": 3})
    receive(shop, "m2")
    shop.finish()
    shop.inbox.admin.unblock(shop.seqs["m1"])
    shop.drain()
    receive(shop, "m3", data={"fail": 1})
    receive(shop, "m4")
    shop.drain()
    assert statuses(shop, ["m1", "m2", "m3", "m4"]) == {"m1": "dead", "m2": "done", "m3": "retrying", "m4": "waiting"}
    with pytest.raises(ConfigurationError, match=r"left behind by its key 'k'.*out_of_order=True"):
        shop.inbox.admin.redrive(shop.seqs["m1"])
    assert shop.status("m1") == "dead"
    shop.sql(f"UPDATE {shop.prefix}body SET body = %s WHERE id = 'm1'", b'{"k": "k"}')
    assert shop.inbox.admin.redrive(shop.seqs["m1"], out_of_order=True) == 1
    shop.finish()
    assert journal(shop) == ["m2", "m1", "m3", "m4"]


def test_a_redriven_message_holds_its_key_again(shop: Shop, clerk: Clerk) -> None:
    """R18: back in its place, it is a head like any other; nobody of its key runs while it backs off."""
    handle_all(shop, clerk, retry=LATER)
    receive(shop, "m1", data={"fail": 3})
    shop.finish()
    shop.inbox.admin.unblock(shop.seqs["m1"])
    shop.inbox.admin.redrive(shop.seqs["m1"], out_of_order=True)
    receive(shop, "m2")
    shop.drain()
    assert statuses(shop, ["m1", "m2"]) == {"m1": "retrying", "m2": "waiting"}
    shop.finish()
    assert statuses(shop, ["m1", "m2"]) == {"m1": "dead", "m2": "waiting"}


def test_a_wrong_word_for_on_dead_is_refused(shop: Shop, clerk: Clerk) -> None:
    """A spelling mistake must not mean "block"."""
    with pytest.raises(ConfigurationError, match="on_dead='skip'"):
        handle_all(shop, clerk, on_dead="skip")
    with pytest.raises(InvalidMessage):
        shop.receive("m1", "opened", data={}, position="7")
