"""`process` keeps the order of a key: a message that is not next is queued, and none runs beside another (R03, R17)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceward import Message
from tests.contract.behaviour import Steps, Until, wrote
from tests.contract.harness import LATER, Shop, arguments, in_threads
from tests.order.background import meanwhile
from tests.order.conftest import on_every_store
from tests.order.ledger import (
    Clerk,
    Marks,
    assert_each_saw_its_predecessors,
    handle_all,
    journal,
    receive,
    statuses,
)
from tests.waiting import wait_until


@on_every_store
@pytest.mark.parametrize(("data", "status"), [({"fail": 1}, "retrying"), ({"reject": True}, "dead")])
def test_behind_an_unfinished_message_it_is_queued(
    shop: Shop, clerk: Clerk, data: dict[str, object], status: str
) -> None:
    """R03, R17: the receipt says that it is not finished; other keys are handled at once."""
    handle_all(shop, clerk, retry=LATER)
    receive(shop, "m1", data=data)
    shop.drain()
    assert shop.status("m1") == status
    receipt = shop.process("m2", "changed", data={"k": "k"})
    assert (receipt.status, receipt.finished) == ("accepted", False)
    assert shop.process("other", "changed", data={"k": "other"}).finished
    assert not shop.process("m2", "changed", data={"k": "k"}).finished
    shop.drain()
    assert statuses(shop, ["m1", "m2"]) == {"m1": status, "m2": "waiting"}
    if status == "dead":
        shop.inbox.admin.discard(shop.seqs["m1"])
    shop.finish()
    assert journal(shop, "k") == (["m2"] if status == "dead" else ["m1", "m2"])
    assert shop.process("m2", "changed", data={"k": "k"}).finished


def test_behind_a_message_that_nobody_has_begun_it_is_queued(shop: Shop, clerk: Clerk) -> None:
    """R17: received before it means handled before it."""
    handle_all(shop, clerk)
    receive(shop, "m1")
    assert not shop.process("m2", "changed", data={"k": "k"}).finished
    shop.drain()
    assert shop.process("m3", "closed", data={"k": "k"}).finished
    assert journal(shop) == ["m1", "m2", "m3"]


def test_a_failed_inline_message_holds_its_key(shop: Shop, clerk: Clerk) -> None:
    """R03, R17: stored for retry, it is the head of its key."""
    handle_all(shop, clerk, retry=LATER)
    assert not shop.process("m1", "opened", data={"k": "k", "fail": 1}).finished
    assert not shop.process("m2", "opened", data={"k": "k"}).finished
    shop.finish()
    assert journal(shop) == ["m1", "m2"]


def test_beside_a_worker_it_is_queued(postgres_shop: Shop, clerk: Clerk, marks: Marks, tmp_path: Path) -> None:
    """R17: a worker is inside a message of its key."""
    shop = postgres_shop
    handle_all(shop, Clerk(marks, str(tmp_path), victim=True))
    other = shop.another()
    handle_all(other, clerk)
    receive(shop, "m1", data={"hold": "after"})
    with meanwhile(shop.inbox.drain):
        wait_until(marks.inside, message="the worker inside its handler")
        assert not other.process("m2", "opened", data={"k": "k"}).finished
        assert other.process("free", "opened", data={"k": "free"}).finished
        (tmp_path / "release").touch()
    shop.drain()
    assert journal(shop, "k") == ["m1", "m2"]
    assert marks.overlaps() == []


def test_beside_another_inline_message_it_is_queued(postgres_shop: Shop, marks: Marks, tmp_path: Path) -> None:
    """R17: the second caller does not wait for the first one's handler."""
    shop = postgres_shop
    handle_all(shop, Clerk(marks, str(tmp_path), victim=True))
    first = arguments("m1", "opened", more={"data": {"k": "k", "hold": "after"}})
    with meanwhile(lambda: shop.inbox.process(**first)) as receipts:
        wait_until(marks.inside, message="the first one inside its handler")
        assert not shop.process("m2", "opened", data={"k": "k"}).finished
        (tmp_path / "release").touch()
    assert receipts[0].finished
    shop.drain()
    assert journal(shop) == ["m1", "m2"]
    assert marks.overlaps() == []


@on_every_store
def test_inline_messages_of_a_key_never_overlap(shop: Shop, clerk: Clerk, marks: Marks) -> None:
    """R17: eight callers at once and a worker among them; each message takes effect once, none beside another."""
    handle_all(shop, clerk)
    shop.process("first", "opened", data={"k": "first"})
    calls = [arguments(f"m{number}", "opened", more={"data": {"k": "k"}}) for number in range(8)]
    # How many of them finish inline is a matter of luck: whoever finds another one of the key unfinished is queued.
    in_threads(*(lambda call=call: shop.inbox.process(**call) for call in calls), shop.inbox.drain)
    shop.drain()
    assert sorted(journal(shop, "k")) == [f"m{number}" for number in range(8)]
    assert marks.overlaps() == []
    assert_each_saw_its_predecessors(shop)


def test_callers_at_once_are_one_process(shop: Shop, clerk: Clerk) -> None:
    """R12: one row in `worker` for a process, whatever its first calls were; a second one never deregisters."""
    handle_all(shop, clerk)
    calls = [arguments(f"m{number}", "opened", more={"data": {"k": number}}) for number in range(8)]
    shop.at_once("process", calls)
    assert shop.count("worker") == 1


@pytest.mark.parametrize(
    "key", ["k", "header:k", lambda message: message.data["k"]], ids=["field", "header", "function"]
)
def test_a_handler_sees_its_key_however_it_is_called(shop: Shop, key: Any) -> None:
    """R05, R17: inline and at a worker, `message.key` is the key by which the message was ordered."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message, f"key {message.key}")

    shop.handle(behaviour=behaviour, key=key)
    shop.process("inline", data={"k": "seven"}, headers={"k": "seven"})
    shop.receive("stored", data={"k": "seven"}, headers={"k": "seven"})
    shop.drain()
    assert shop.notes() == [("inline", "key seven"), ("stored", "key seven")]


def test_inline_messages_of_two_keys_run_at_the_same_time(postgres_shop: Shop) -> None:
    """R17: each handler waits until the other one is inside."""
    shop = postgres_shop
    inside: set[str] = set()

    def behaviour(message: Message) -> Steps:
        inside.add(message.id)
        yield Until(lambda: len(inside) == 2)
        yield wrote(message)

    handle_all(shop, behaviour)
    inside.add("b")
    shop.process("first", "opened", data={"k": "first"})
    inside.clear()
    calls = [arguments(key, "opened", more={"data": {"k": key}}) for key in "ab"]
    receipts = shop.at_once("process", calls)
    assert [receipt.finished for receipt in receipts] == [True, True]
