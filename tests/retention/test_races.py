"""A copy that comes while its message is pruned, redriven or discarded: a duplicate or a new message, never neither.

HZ-06, R01, R29. The steps are stopped by hand at every statement on connections of their own, so every interleaving of
two of them is seen on the real database; on SQLite the single writer leaves only those between transactions.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from onceward import Receipt
from onceward.flow import Commit, Flow, Query
from onceward.message import Delivery
from onceward.steps.operate import discard
from onceward.steps.prune import PruneProgress, prune
from onceward.steps.receive import receive
from onceward.steps.rows import mismatch_of
from tests.contract import behaviour as acts
from tests.contract.harness import SOURCE, TYPE, Shop, in_threads
from tests.retention.conftest import NOW
from tests.retention.test_prune import rotate_partition
from tests.waiting import wait_until


class Paused:
    """A step that goes on by one request at a time, on a connection of its own."""

    def __init__(self, shop: Shop, flow: Flow[Any]) -> None:
        self._session = shop.inbox.store.connect()
        self._flow = flow
        self._request: Any = next(flow)
        self.result: Any = None
        self.is_done = False

    def go(self) -> None:
        """Perform what it asks for now."""
        try:
            try:
                answer = self._session.perform(self._request)
            except BaseException as error:  # noqa: BLE001 - belongs to the step
                self._request = self._flow.throw(error)
            else:
                self._request = self._flow.send(answer)
        except StopIteration as stop:
            self.result, self.is_done = stop.value, True
            self._session.close()

    def go_on(self) -> bool:
        """As `go`; answers whether there is more."""
        self.go()
        return not self.is_done

    def finish(self) -> Any:
        """Go on to the end."""
        while not self.is_done:
            self.go()
        return self.result

    @property
    def is_open(self) -> bool:
        """Whether it is inside a transaction, which on SQLite keeps everybody else out."""
        return not self.is_done and not self._session.idle


def copy_of(shop: Shop, data: Any = 1) -> Flow[list[Receipt]]:
    context = shop.inbox.context
    return receive(context, context.cache, [Delivery.of(source=SOURCE, id="a", type=TYPE, data=data)])


def finish_a_message(shop: Shop) -> None:
    """A message that is finished and past its retention."""
    shop.receive("a", data=1)
    shop.drain()


def each_pause(shop: Shop) -> Iterator[int]:
    """Before each request of a step, the first round before the first: as many rounds as the test does not end.

    Each begins with a message that is finished and past its retention.
    """
    shop.handle()
    for pause in itertools.count():
        finish_a_message(shop)
        yield pause
        shop.inbox.retention.prune()
        assert shop.count("ledger") == 0
        shop.sql("DELETE FROM effects")


def went(step: Paused, pause: int) -> bool:
    """Perform so many requests; answers whether there were as many."""
    return all(step.go_on() for _ in range(pause))


@pytest.mark.parametrize("data", [1, 2], ids=["same", "other"])
def test_prune_at_every_statement_of_a_receive(shop: Shop, data: int) -> None:
    """The row goes after any statement of the copy's receive: what was answered is so."""
    for pause in each_pause(shop):
        step = Paused(shop, copy_of(shop, data))
        is_open = went(step, pause)
        if step.is_open and shop.dialect == "sqlite":
            step.finish()
        shop.inbox.retention.prune()
        (receipt,) = step.finish()
        check(shop, receipt, data)
        if not is_open:
            assert pause > 1
            return


@pytest.mark.parametrize("data", [1, 2], ids=["same", "other"])
def test_a_copy_at_every_statement_of_a_prune(shop: Shop, data: int) -> None:
    """The copy comes after any statement of the prune, also while that holds the row."""
    for pause in each_pause(shop):
        step = Paused(shop, prune(shop.inbox.context, PruneProgress(), seconds=60))
        is_open = went(step, pause)
        if step.is_open and shop.dialect == "sqlite":
            while step.is_open:
                step.go()
        answers: list[Receipt] = []
        copy = threading.Thread(
            target=lambda answers=answers: answers.append(
                shop.inbox.receive(source=SOURCE, id="a", type=TYPE, data=data)
            )
        )
        copy.start()
        copy.join(0.2)  # it may wait for the transaction that is open
        step.finish()
        copy.join()
        check(shop, answers[0], data)
        if not is_open:
            assert pause > 1
            return


def check(shop: Shop, receipt: Receipt, data: int) -> None:
    """New: it runs, once more. Duplicate: it does not. Mismatch: a person finds it."""
    if receipt.status == "accepted":
        shop.sql("DELETE FROM effects")
        shop.drain()
        assert shop.effects() == ["a"]
    elif receipt.status == "duplicate":
        assert data == 1
        assert shop.drain() == 0
        assert shop.effects() == ["a"]
    else:
        (case,) = shop.inbox.admin.quarantine()
        assert case.other_body == str(data).encode()
        shop.inbox.admin.resolve(case.case, "discard")


def test_many_copies_while_another_process_prunes_all_the_time(shop: Shop) -> None:
    """Real threads: every message takes effect exactly as often as it was accepted, and no case is lost."""
    shop.handle()
    stop = threading.Event()

    def pruning() -> None:
        while not stop.is_set():
            shop.inbox.retention.prune()

    def copies(number: int) -> list[Receipt]:
        return [
            shop.inbox.receive(source=SOURCE, id=f"m{turn % 5}", type=TYPE, data=(turn * (number + 1)) % 3)
            for turn in range(60)
        ]

    def working() -> None:
        while not stop.is_set():
            shop.inbox.drain()

    helpers = [threading.Thread(target=pruning), threading.Thread(target=working)]
    for thread in helpers:
        thread.start()
    try:
        receipts = [receipt for batch in in_threads(*(lambda n=n: copies(n) for n in range(3))) for receipt in batch]
    finally:
        stop.set()
        for thread in helpers:
            thread.join()
    shop.drain()
    accepted = {receipt.seq for receipt in receipts if receipt.status == "accepted"}
    assert len(shop.effects()) == len(accepted)
    shop.sql("DELETE FROM effects")
    assert shop.count("quarantine", f"seq NOT IN (SELECT seq FROM {shop.prefix}ledger)") == 0
    for case in shop.inbox.admin.quarantine(limit=1000):
        shop.inbox.admin.resolve(case.case, "keep-first")
    shop.inbox.retention.prune()
    assert shop.count("ledger") == shop.count("run") == 0


def test_a_case_that_is_opened_while_its_message_is_forgotten_is_found(postgres_url: str) -> None:
    """Not committed yet, it is seen by nobody: the lock on the message's row is all that keeps that row (HZ-06)."""
    with Shop(postgres_url, "def", settings=NOW) as shop:
        shop.handle()
        finish_a_message(shop)
        session = shop.inbox.store.connect()
        copy = Delivery.of(source=SOURCE, id="a", type=TYPE, data=2)
        assert session.perform((shop.inbox.context.short(), Query("quarantine", mismatch_of(shop.seqs["a"], copy))))[1]
        pruning = threading.Thread(target=shop.inbox.retention.prune)
        pruning.start()
        wait_until(lambda: not pruning.is_alive() or shop.waiting_for_locks())
        session.perform(Commit())
        session.close()
        pruning.join()
        (case,) = shop.inbox.admin.quarantine()
        assert case.other_body == b"2"
        shop.inbox.admin.resolve(case.case, "discard")


def test_a_message_that_is_committed_while_its_partition_goes_keeps_its_body(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks first and locks then has not seen it (R29)."""
    monkeypatch.setattr("onceward.steps.prune.PARTITION_LOCK_SECONDS", 30.0)
    with Shop(postgres_url, "def", settings=NOW) as shop:
        shop.handle()
        finish_a_message(shop)
        with shop.inbox.transaction() as tx:
            shop.inbox.receive(source=SOURCE, id="b", type=TYPE, data=1, tx=tx)
            rotate_partition(shop)
            pruning = threading.Thread(target=shop.inbox.retention.prune)
            pruning.start()
            wait_until(shop.waiting_for_locks)
        pruning.join()
        shop.drain()
        assert shop.effects() == ["a", "b"]


@pytest.mark.parametrize("act", ["redrive", "discard"])
def test_a_copy_while_a_dead_message_is_decided_and_pruned(shop: Shop, act: str) -> None:
    """Whatever a person does to it, a copy is a duplicate, and the prune leaves it, until that is committed."""
    shop.handle(behaviour=acts.raising(lambda: ValueError("no"), attempts=3))
    shop.receive("a", data=1)
    shop.finish()
    assert shop.status("a") == "dead"
    if act == "redrive":
        assert shop.inbox.admin.redrive(shop.seqs["a"]) == 1
        shop.inbox.retention.prune()
        assert shop.inbox.receive(source=SOURCE, id="a", type=TYPE, data=1).status == "duplicate"
        shop.inbox.admin.discard(shop.seqs["a"])
        return
    step = Paused(shop, discard(shop.inbox.context, shop.seqs["a"], actor="ann", reason="test"))
    while step.go_on():
        if not (step.is_open and shop.dialect == "sqlite"):
            shop.inbox.retention.prune()
            assert shop.inbox.receive(source=SOURCE, id="a", type=TYPE, data=1).status == "duplicate"
    shop.inbox.retention.prune()
    assert shop.inbox.receive(source=SOURCE, id="a", type=TYPE, data=1).status == "accepted"
    assert shop.effects() == []
    shop.inbox.admin.discard(*(row.seq for row in shop.inbox.admin.messages()))
