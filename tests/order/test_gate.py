"""Numbers within a key: each waits for the one before it, up to a deadline; stale ones are skipped (R19; HZ-45)."""

from __future__ import annotations

import itertools
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onceward import ConfigurationError, Reject
from onceward.admin.doctor import examine
from tests.contract.behaviour import Steps, wrote
from tests.contract.harness import LATER, Shop, arguments
from tests.order.background import meanwhile
from tests.order.conftest import everywhere, on_every_store
from tests.order.ledger import Clerk, Marks, assert_each_saw_its_predecessors, handle_all, journal, statuses
from tests.waiting import wait_until

GAP = timedelta(hours=1)


@pytest.fixture
def counting(shop: Shop, clerk: Clerk) -> Shop:
    """A shop whose messages are counted within their key, in the field `n`."""
    count(shop, clerk)
    return shop


def count(shop: Shop, clerk: Clerk, **options: Any) -> None:
    handle_all(shop, clerk, **{"sequence": "n", "gap": GAP, "retry": LATER, **options})


def receive(shop: Shop, *numbers: Any, key: str = "k", copy: str = "", **data: Any) -> None:
    """Store the messages `k1`, `k2`, ... of a key."""
    for number in numbers:
        shop.receive(f"{key}{number}{copy}", "opened", data={"k": key, "n": number, **data})


def let_deadlines_pass(shop: Shop) -> None:
    """Make everything as old as its deadline allows, which is what the database's clock would do in time."""
    shop.sql(f"UPDATE {shop.prefix}body SET received_at = received_at - {GAP // timedelta(microseconds=1)}")
    shop.sql(f"UPDATE {shop.prefix}queue SET due_at = 0 WHERE state = 'waiting' AND due_at IS NOT NULL")


@everywhere
def test_shuffled_numbers_are_applied_in_order(counting: Shop, marks: Marks) -> None:
    """Three keys, a drain every now and then: whatever the order of arrival, each key is applied by number."""
    numbers = [(key, number) for key in "abc" for number in range(1, 21)]
    random.shuffle(numbers)
    for start in range(0, 60, 13):
        counting.receive_many(
            arguments(f"{key}{number}", "opened", more={"data": {"k": key, "n": number}})
            for key, number in numbers[start : start + 13]
        )
        counting.drain()
    for key in "abc":
        assert journal(counting, key) == [f"{key}{number}" for number in range(1, 21)]
    assert marks.overlaps() == []
    assert_each_saw_its_predecessors(counting)


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))), ids=str)
def test_every_order_of_arrival(sqlite_url: str, clerk: Clerk, order: tuple[int, ...]) -> None:
    """Three numbers, each drained as it comes."""
    with Shop(sqlite_url, "def") as shop:
        shop.sql("CREATE TABLE journal (n integer PRIMARY KEY, message_id text, account text, seen integer)")
        count(shop, clerk)
        for number in order:
            receive(shop, number)
            shop.drain()
        assert journal(shop) == ["k1", "k2", "k3"]


def test_a_number_may_come_as_text_or_in_a_header(shop: Shop, clerk: Clerk) -> None:
    """As brokers and their libraries write it."""
    shop.handle("opened", clerk, key="k", sequence="header:n", gap=GAP, retry=LATER)
    for number in (2, 1):
        shop.receive(f"k{number}", "opened", data={"k": "k"}, headers={"n": str(number)})
    shop.handle("deep", clerk, consumer="deep", key="k", sequence="event.n", gap=GAP, retry=LATER)
    for text in ("2", "1"):
        shop.receive(f"d{text}", "deep", data={"k": "d", "event": {"n": text}})
    shop.drain()
    assert journal(shop, "k") == ["k1", "k2"]
    assert journal(shop, "d") == ["d1", "d2"]


@on_every_store
def test_a_message_waits_visibly_for_the_number_before_it(counting: Shop) -> None:
    """Held, not run, not charged; when the missing one comes in time, all go on."""
    receive(counting, 1, 3, 4)
    counting.drain()
    assert statuses(counting, ["k1", "k3", "k4"]) == {"k1": "done", "k3": "waiting", "k4": "waiting"}
    assert counting.detail("k3").due_at is not None
    assert (counting.inbox.admin.stats().waiting, counting.count("attempt")) == (2, 0)
    receive(counting, 2)
    counting.drain()
    assert journal(counting) == ["k1", "k2", "k3", "k4"]


def test_a_held_message_is_in_order(counting: Shop) -> None:
    """I9: it has a deadline, so somebody will move it; the doctor finds nothing wrong."""
    receive(counting, 2)
    counting.drain()
    of_the_server = [what for _, what, _ in counting.inbox.store.findings()]  # such as fsync, off for tests
    found = [finding for finding in examine(counting.inbox) if finding.what not in of_the_server]
    receive(counting, 1)
    counting.drain()
    assert [finding.what for finding in found if finding.level == "error"] == []


@on_every_store
@pytest.mark.parametrize("number", [2, 7])
def test_a_message_whose_predecessor_never_comes_is_dead(counting: Shop, number: int) -> None:
    """After its deadline it is dead with that reason; what comes behind waits for a person."""
    receive(counting, number, number + 1)
    counting.drain()
    let_deadlines_pass(counting)
    counting.drain()
    assert statuses(counting, [f"k{number}", f"k{number + 1}"]) == {f"k{number}": "dead", f"k{number + 1}": "waiting"}
    assert "waited for number 1 of its key, which did not come in time" in counting.error(f"k{number}")
    assert counting.effects() == []


def test_a_late_predecessor_is_still_applied_and_then_its_successor(counting: Shop) -> None:
    """The missing number comes after the deadline: it runs, and a redrive of the dead one completes the key."""
    receive(counting, 2, 3)
    counting.drain()
    let_deadlines_pass(counting)
    counting.drain()
    assert counting.status("k2") == "dead"
    receive(counting, 1)
    counting.drain()
    assert journal(counting) == ["k1"]
    assert counting.inbox.admin.redrive(counting.seqs["k2"]) == 1
    counting.drain()
    assert journal(counting) == ["k1", "k2", "k3"]


@pytest.mark.parametrize("command", ["discard", "unblock"])
def test_giving_up_the_holder_of_a_gap_lets_its_key_go_on(counting: Shop, command: str) -> None:
    """It counts as applied: n+1 goes on, and what is missing before it is stale when it comes after all."""
    receive(counting, 2, 3)
    counting.drain()
    let_deadlines_pass(counting)
    counting.drain()
    assert getattr(counting.inbox.admin, command)(counting.seqs["k2"]) == 1
    counting.drain()
    assert journal(counting) == ["k3"]
    receive(counting, 1, 4)
    counting.drain()
    assert journal(counting) == ["k3", "k4"]
    assert counting.status("k1") == "skipped"


def test_a_key_continues_over_a_gap(shop: Shop, clerk: Clerk) -> None:
    """R18, R19: `on_dead="continue"` gives up the one that waited too long, and its successors go on."""
    count(shop, clerk, on_dead="continue")
    receive(shop, 3, 4)
    shop.drain()
    let_deadlines_pass(shop)
    shop.drain()
    receive(shop, 5)
    shop.drain()
    assert shop.status("k3") == "dead"
    assert journal(shop) == ["k4", "k5"]


def test_discarding_a_held_message_counts_it_as_applied(counting: Shop) -> None:
    """A person does not wait for the deadline."""
    receive(counting, 1, 3, 4)
    counting.drain()
    assert counting.inbox.admin.discard(counting.seqs["k3"]) == 1
    counting.drain()
    assert journal(counting) == ["k1", "k4"]


def test_discarding_a_successor_does_not_skip_the_head(counting: Shop) -> None:
    """R18, R19: number 2 is unfinished; giving up 3 would make it stale, so that is refused until 3 is the first."""
    receive(counting, 1)
    receive(counting, 2, fail=1)
    receive(counting, 3)
    counting.drain()
    assert statuses(counting, ["k2", "k3"]) == {"k2": "retrying", "k3": "waiting"}
    assert counting.inbox.admin.discard(counting.seqs["k3"]) == 0
    counting.finish()
    assert statuses(counting, ["k2", "k3"]) == {"k2": "done", "k3": "done"}
    assert journal(counting) == ["k1", "k2", "k3"]


def test_a_stale_number_is_skipped_and_never_runs(counting: Shop) -> None:
    """Not above the highest one applied: finished as `skipped`, with a line that says why; not counted as done."""
    receive(counting, 1, 2, 3)
    counting.drain()
    receive(counting, 2, copy="-again")
    receive(counting, 1, copy="-again")
    assert counting.drain() == 2
    assert journal(counting) == ["k1", "k2", "k3"]
    assert counting.runs["k2-again"] == 0
    assert statuses(counting, ["k1-again", "k2-again"]) == {"k1-again": "skipped", "k2-again": "skipped"}
    (action,) = counting.detail("k2-again").actions
    assert (action.action, action.actor) == ("skip", "onceward")
    assert "number 2 came after" in action.reason
    assert (counting.inbox.admin.stats().skipped, counting.inbox.admin.stats().done) == (2, 3)
    assert [row.id for row in counting.inbox.admin.messages(status="skipped")] == ["k1-again", "k2-again"]
    receipt = counting.receive("k2-again", "opened", data={"k": "k", "n": 2})
    assert (receipt.status, receipt.finished) == ("duplicate", True)


def test_two_messages_with_one_number_are_applied_once(counting: Shop) -> None:
    """The first to have come is applied, the other is stale; also when both are in one claim, or wait together."""
    receive(counting, 1)
    receive(counting, 1, copy="-twin")
    receive(counting, 3)
    receive(counting, 3, copy="-twin")
    counting.drain()
    receive(counting, 2)
    counting.drain()
    assert journal(counting) == ["k1", "k2", "k3"]
    assert statuses(counting, ["k1-twin", "k3-twin"]) == {"k1-twin": "skipped", "k3-twin": "skipped"}


def test_the_twin_of_a_message_that_failed_is_not_skipped_before_it(counting: Shop) -> None:
    """The first of two with one number fails: nothing is applied, so the second one waits behind it."""
    receive(counting, 1, fail=1)
    receive(counting, 1, copy="-twin")
    counting.drain()
    assert statuses(counting, ["k1", "k1-twin"]) == {"k1": "retrying", "k1-twin": "waiting"}
    counting.finish()
    assert statuses(counting, ["k1", "k1-twin"]) == {"k1": "done", "k1-twin": "skipped"}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"n": None},
        {"n": "two"},
        {"n": 1.5},
        {"n": True},
        {"n": -1},
        {"n": 2**63},
        {"n": [1]},
        {"n": ""},
        {"n": "\u0661"},
    ],
    ids=str,
)
def test_a_message_without_a_whole_number_is_dead(sqlite_url: str, clerk: Clerk, data: dict[str, Any]) -> None:
    """With the reason; it must not run as if it were next."""
    with Shop(sqlite_url, "def") as shop:
        shop.sql("CREATE TABLE journal (n integer PRIMARY KEY, message_id text, account text, seen integer)")
        count(shop, clerk)
        shop.receive("odd", "opened", data={"k": "k", **data})
        shop.drain()
        assert shop.status("odd") == "dead"
        assert "no whole number at 'n'" in shop.error("odd")
        assert not shop.process("odder", "opened", data={"k": "other", **data}).finished
        assert shop.status("odder") == "dead"
        assert shop.effects() == []


def test_keys_count_independently(counting: Shop) -> None:
    """A gap in one key holds nobody else's."""
    receive(counting, 2, key="a")
    receive(counting, 1, 2, key="b")
    counting.drain()
    assert journal(counting, "b") == ["b1", "b2"]
    receive(counting, 1, key="a")
    counting.drain()
    assert journal(counting, "a") == ["a1", "a2"]


def test_consumers_count_independently(shop: Shop, clerk: Clerk) -> None:
    """R02, R19: each has its own progress in the key."""

    def never(message: Any) -> Steps:
        yield wrote(message)
        raise Reject("never")

    shop.handle("opened", clerk, consumer="one", key="k", sequence="n", gap=GAP)
    shop.handle("opened", never, consumer="two", key="k", sequence="n", gap=GAP)
    receive(shop, 1, 2)
    shop.drain()
    assert journal(shop) == ["k1", "k2"]
    assert shop.inbox.admin.stats().dead == 1


def test_a_failure_does_not_advance_its_key(counting: Shop) -> None:
    """n+1 waits while n backs off, however often; all in one group."""
    receive(counting, 1, 2)
    receive(counting, 3, fail=2)
    receive(counting, 4)
    counting.drain()
    assert statuses(counting, ["k1", "k2", "k3", "k4"]) == {
        "k1": "done",
        "k2": "done",
        "k3": "retrying",
        "k4": "waiting",
    }
    counting.finish()
    assert journal(counting) == ["k1", "k2", "k3", "k4"]


def test_a_dead_number_blocks_and_its_redrive_is_applied(counting: Shop) -> None:
    """R18, R19: dead is not applied; redriven, it runs in its place."""
    receive(counting, 1, 2, fail=3)
    receive(counting, 3)
    counting.finish()
    assert statuses(counting, ["k1", "k2", "k3"]) == {"k1": "dead", "k2": "waiting", "k3": "waiting"}
    counting.sql(f"UPDATE {counting.prefix}body SET body = %s WHERE id = 'k1'", b'{"k": "k", "n": 1}')
    counting.inbox.admin.redrive(counting.seqs["k1"])
    counting.finish()
    counting.inbox.admin.discard(counting.seqs["k2"])
    counting.finish()
    assert journal(counting) == ["k1", "k3"]


def test_a_message_that_was_taken_over_is_not_counted_as_given_up(shop: Shop, clerk: Clerk) -> None:
    """R12, R19: a worker that lost its claim decides nothing, neither about the message nor about its key."""
    processes: list[str] = []

    def behaviour(message: Any) -> Steps:
        if message.id == "k1" and not processes:
            (worker,) = shop.inbox.admin.workers()
            processes.append(worker.process)
            shop.declare_dead(worker.process)
            raise Reject("what a worker thinks that is dead itself")
        yield from clerk(message)

    shop.handle("opened", behaviour, key="k", sequence="n", gap=GAP, on_dead="continue", group=1)
    receive(shop, 1)
    shop.drain()
    receive(shop, 2)
    shop.drain()
    assert statuses(shop, ["k1", "k2"]) == {"k1": "done", "k2": "done"}
    assert journal(shop) == ["k1", "k2"]


@on_every_store
def test_the_gate_holds_inline_too(counting: Shop) -> None:
    """R03, R19: the next number is handled at once, a later one is queued, a stale one is finished without running."""

    def process(number: int, copy: str = "") -> Any:
        return counting.process(f"k{number}{copy}", "opened", data={"k": "k", "n": number})

    assert process(1).finished
    assert not process(3).finished
    counting.drain()
    assert counting.status("k3") == "waiting"
    assert not process(2).finished  # something of its key is unfinished: it is queued, and a worker does both
    counting.drain()
    assert process(4).finished
    receipt = process(2, "-again")
    assert (receipt.status, receipt.finished, receipt.result) == ("accepted", True, None)
    assert counting.status("k2-again") == "skipped"
    receive(counting, 5)
    counting.drain()
    assert journal(counting) == ["k1", "k2", "k3", "k4", "k5"]


def test_a_failed_inline_number_holds_its_key(counting: Shop) -> None:
    """R03, R19: what was rolled back is not applied."""
    assert not counting.process("k1", "opened", data={"k": "k", "n": 1, "fail": 1}).finished
    assert not counting.process("k2", "opened", data={"k": "k", "n": 2}).finished
    counting.finish()
    assert journal(counting) == ["k1", "k2"]


def test_numbers_are_found_when_a_type_is_taken_up_later(shop: Shop, clerk: Clerk) -> None:
    """R19: messages that came before anybody handled their type are counted like others."""
    receive(shop, 3, 1, 2)
    newer = shop.another()
    count(newer, clerk)
    newer.drain()
    assert journal(shop) == ["k1", "k2", "k3"]


def test_many_lanes_apply_numbers_in_order(shop: Shop, clerk: Clerk, marks: Marks) -> None:
    """R17, R19: four lanes at once, small groups, some failures."""
    count(shop, clerk, group=3)
    numbers = [(key, number) for key in "abcd" for number in range(1, 13)]
    random.shuffle(numbers)
    shop.receive_many(
        arguments(f"{key}{number}", "opened", more={"data": {"k": key, "n": number, "fail": int(number % 5 == 0)}})
        for key, number in numbers
    )
    for _ in range(6):
        shop.drain(concurrency=4)
        shop.hurry()
    shop.finish()
    for key in "abcd":
        assert journal(shop, key) == [f"{key}{number}" for number in range(1, 13)]
    assert marks.overlaps() == []


def test_the_missing_number_comes_while_its_successor_is_decided(
    postgres_shop: Shop, clerk: Clerk, marks: Marks, tmp_path: Path
) -> None:
    """R19: number 2 is inside its handler while 3 comes and is looked at by another worker."""
    shop = postgres_shop
    count(shop, Clerk(marks, str(tmp_path), victim=True))
    other = shop.another()
    count(other, clerk)
    receive(shop, 1)
    shop.drain()
    receive(shop, 2, hold="after")
    with meanwhile(shop.inbox.drain):
        wait_until(marks.inside, message="number 2 inside its handler")
        receive(other, 3)
        assert other.drain() == 0
        (tmp_path / "release").touch()
    shop.drain()
    assert journal(shop) == ["k1", "k2", "k3"]
    assert marks.overlaps() == []


def test_counting_needs_a_key(shop: Shop, clerk: Clerk) -> None:
    """A number of what?"""
    with pytest.raises(ConfigurationError, match="counts within a key"):
        shop.handle("opened", clerk, sequence="n")
