"""Order per key across types, threads and processes, and through deaths; keys in parallel (R17; HZ-40 to HZ-43)."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from onceward import Message
from onceward.steps.membership import take_over_lapsed
from tests.contract.behaviour import Steps, Until, wrote
from tests.contract.caller import own_transaction
from tests.contract.harness import Shop, arguments
from tests.nursery import Child, Nursery
from tests.order.background import meanwhile
from tests.order.conftest import everywhere
from tests.order.ledger import (
    Clerk,
    Marks,
    assert_each_saw_its_predecessors,
    handle_all,
    interleaved,
    journal,
    receive,
    statuses,
)
from tests.waiting import wait_until


class Workers:
    """Worker processes on a shop's database."""

    def __init__(self, nursery: Nursery, shop: Shop, marks: Marks, folder: Path) -> None:
        self._nursery, self._shop, self._marks, self._folder = nursery, shop, marks, folder

    def start(self, **arguments: Any) -> Child:
        """Start one; returns when it has registered its handlers."""
        child = self._nursery.start(
            "tests.order.program:work",
            self._folder,
            url=self._shop.url,
            kind=self._shop.kind,
            marks=self._marks.path,
            folder=str(self._folder),
            **arguments,
        )
        child.hear("ready")
        return child

    def start_and_see_progress(self) -> Child:
        """Start one, and wait until something was finished."""
        before = self._shop.count("run")
        child = self.start(concurrency=2, options={"group": 3})
        wait_until(lambda: self._shop.count("run") > before, message="some progress")
        return child

    def bury(self, child: Child) -> None:
        """Kill it, and do for it what a supervisor does."""
        child.kill()
        self._marks.died(child.pid)
        for row in self._shop.inbox.admin.workers():
            if row.pid == child.pid:
                self._shop.declare_dead(row.process)

    def release(self) -> None:
        """Let handlers that are held go on."""
        (self._folder / "release").touch()


@pytest.fixture
def workers(nursery: Nursery, shop: Shop, marks: Marks, tmp_path: Path) -> Workers:
    """Starts workers on the shop's database."""
    return Workers(nursery, shop, marks, tmp_path)


class Meeting:
    """Handlers that wait for each other; where they do not meet in time, they go on and the meeting is not complete."""

    def __init__(self, *expected: str) -> None:
        self._expected, self._inside = set(expected), set[str]()
        self._patience = time.monotonic() + 25
        self.complete = False

    def attend(self, message: Message) -> Steps:
        """Wait for the others."""
        self._inside.add(message.key or "")
        self.complete = self.complete or self._inside == self._expected
        yield Until(lambda: self.complete or time.monotonic() > self._patience)
        self._inside.discard(message.key or "")
        yield wrote(message)


def lapse(shop: Shop) -> None:
    """Let every lease run out, which is what the database's clock would do in time, and take the workers over."""
    shop.sql(f"UPDATE {shop.prefix}worker SET alive_until = 0")
    assert shop.step(take_over_lapsed(shop.inbox.context, 0)) > 0


@everywhere
def test_two_keys_are_handled_at_the_same_time(shop: Shop) -> None:
    """R17: each handler waits until the other one is inside, so one after the other would never end."""
    meeting = Meeting("a", "b")
    handle_all(shop, meeting.attend, group=1)
    receive(shop, "a1", key="a")
    receive(shop, "b1", key="b")
    assert shop.drain(concurrency=2) == 2
    assert meeting.complete


def test_a_key_is_found_behind_a_busy_one(shop: Shop) -> None:
    """R17: while a message of one key runs, however many wait behind it, another key is handled at the same time."""
    meeting = Meeting("a", "b")
    handle_all(shop, meeting.attend, group=1)
    receive(shop, *(f"a{number}" for number in range(6)), key="a")
    receive(shop, "b0", key="b")
    assert shop.drain(concurrency=2) == 7
    assert meeting.complete


@everywhere
@pytest.mark.parametrize("group", [1, 5])
def test_several_processes_share_keys_in_order(
    shop: Shop, clerk: Clerk, marks: Marks, workers: Workers, group: int
) -> None:
    """R17, HZ-41: three types, sixteen keys, three processes; some messages fail at first."""
    handle_all(shop, clerk, group=group)
    batch = interleaved("abcdefghijklmnop", 9)
    for message in batch[3::7]:
        message["data"]["fail"] = 1
    shop.receive_many(batch)
    lanes = 2 if group == 1 else 1  # so that what the first processes hold leaves keys for the last
    children = [workers.start(together=3, concurrency=lanes, options={"group": group}) for _ in range(3)]
    wait_until(lambda: not shop.count("queue"), timeout=60, message="every message done")
    for child in children:
        child.stop()
    assert len(marks.pids) == 3
    assert marks.overlaps() == []
    for key in "abcdefghijklmnop":
        assert journal(shop, key) == [f"{key}{number}" for number in range(9)]
    assert_each_saw_its_predecessors(shop)


@everywhere
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_successor_waits_for_a_head_whose_worker_is_killed(
    shop: Shop, clerk: Clerk, marks: Marks, workers: Workers, moment: str
) -> None:
    """R12, R17: kill -9 inside the head; the others of its key come after it, in order, and none beside it."""
    handle_all(shop, clerk)
    victim = workers.start()
    receive(shop, "m0", data={"hold": moment})
    wait_until(lambda: marks.inside() == [("k", "m0")], message="the head inside its handler")
    if shop.dialect == "postgres" or moment == "before":  # else the victim holds the only writer
        receive(shop, "m1", "m2")
        receive(shop, "other", key="other")
        shop.drain()
        assert statuses(shop, ["m0", "m1", "m2", "other"]) == {
            "m0": "running",
            "m1": "waiting",
            "m2": "waiting",
            "other": "done",
        }
    workers.bury(victim)
    receive(shop, "m3")
    shop.drain()
    expected = [name for name in ("m0", "m1", "m2", "m3") if name in shop.seqs]
    assert journal(shop, "k") == expected
    assert marks.overlaps() == []
    assert_each_saw_its_predecessors(shop)


@everywhere
def test_a_worker_that_was_stopped_for_longer_than_its_lease_changes_nothing(
    shop: Shop, clerk: Clerk, marks: Marks, workers: Workers
) -> None:
    """R12, R17: SIGSTOP inside the head, its lease runs out, others do the work; what it does later is undone."""
    handle_all(shop, clerk)
    frozen = workers.start(lease=600)
    receive(shop, "m0", data={"hold": "before"})
    wait_until(lambda: marks.inside() == [("k", "m0")], message="the head inside its handler")
    receive(shop, "m1", "m2")
    frozen.signal(signal.SIGSTOP)
    lapse(shop)
    shop.drain()
    assert journal(shop) == ["m0", "m1", "m2"]
    workers.release()
    receive(shop, "m3")
    frozen.signal(signal.SIGCONT)
    wait_until(lambda: not marks.inside(), message="the end of the frozen handler")
    frozen.stop()
    shop.drain()
    assert journal(shop) == ["m0", "m1", "m2", "m3"]
    assert_each_saw_its_predecessors(shop)
    assert shop.detail("m0").finished_by is not None


def test_order_survives_a_storm_of_kills(shop: Shop, clerk: Clerk, marks: Marks, workers: Workers) -> None:
    """R16, R17: workers are killed whenever they are inside a handler; every key stays in order, nobody runs twice."""
    handle_all(shop, clerk, group=3)
    shop.receive_many(interleaved("abcd", 15))
    killed = 0
    while shop.count("queue"):
        workers.bury(workers.start_and_see_progress())
        killed += 1
        if killed == 5:
            shop.drain(concurrency=2)
    assert marks.overlaps() == []
    for key in "abcd":
        assert journal(shop, key) == [f"{key}{number}" for number in range(15)]
    assert_each_saw_its_predecessors(shop)


def test_a_late_lower_number_does_not_run_beside_a_later_one(
    postgres_shop: Shop, clerk: Clerk, marks: Marks, tmp_path: Path
) -> None:
    """HZ-43: committed while a later message of its key is inside its handler, it waits for it, and is found then."""
    shop = postgres_shop
    held = Clerk(marks, str(tmp_path), victim=True)
    handle_all(shop, held)
    other = shop.another()
    handle_all(other, clerk)
    receive(shop, "m0")
    shop.drain()
    with own_transaction(shop, commit=True) as own:
        own.receive("m1", message_type="opened", data={"k": "k"})
        receive(shop, "m2", data={"hold": "before"})
        with meanwhile(shop.inbox.drain):
            wait_until(marks.inside, message="the later message inside its handler")
            own.end(commit=True)
            assert other.drain() == 0
            assert statuses(shop, ["m1", "m2"]) == {"m1": "due", "m2": "running"}
            (tmp_path / "release").touch()
    shop.drain()
    assert journal(shop) == ["m0", "m2", "m1"]
    assert marks.overlaps() == []


def test_a_blocked_key_hides_nobody(shop: Shop, clerk: Clerk) -> None:
    """R15, R17: a drain handles whatever is due, however many messages wait behind a dead head before it."""
    handle_all(shop, clerk, group=10)
    receive(shop, "dead", data={"reject": True})
    shop.drain()
    shop.receive_many(interleaved("k", 60))
    receive(shop, "free", key="free")
    shop.drain()
    assert shop.status("free") == "done"
    assert shop.inbox.admin.stats().waiting == 60


def test_a_key_that_is_handled_inline_hides_nobody(
    postgres_shop: Shop, clerk: Clerk, marks: Marks, tmp_path: Path
) -> None:
    """R17: while an inline message of one key runs, workers handle other keys, also those behind it."""
    shop = postgres_shop
    handle_all(shop, Clerk(marks, str(tmp_path), victim=True), group=1)
    other = shop.another()
    handle_all(other, clerk, group=1)
    inline = arguments("m1", "opened", more={"data": {"k": "k", "hold": "before"}})
    with meanwhile(lambda: shop.inbox.process(**inline)):
        wait_until(marks.inside, message="the inline message inside its handler")
        receive(other, "m2")
        receive(other, "free", key="free")
        other.drain()
        free = other.status("free")
        (tmp_path / "release").touch()
    other.drain()
    assert free == "done"
    assert journal(shop, "k") == ["m1", "m2"]
    assert marks.overlaps() == []
