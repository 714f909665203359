"""The threads beside the lanes: whatever one of them meets, the lease is renewed and the others do their part."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import timedelta
from typing import Any

import pytest

from onceward import Message, Settings
from onceward.errors import ConfigurationError, StoreConflict, StoreUnavailable
from onceward.flow import Flow, Query
from onceward.runtime.heartbeat import Membership
from onceward.steps.introduce import introduce
from tests.contract.behaviour import Steps, Until, wrote
from tests.contract.harness import QUICK, Kind, Shop
from tests.contract.test_claims import die_holding, lease_end
from tests.contract.test_timeouts import STATEMENTS, overrun
from tests.servers import FaultProxy
from tests.waiting import wait_until


@pytest.fixture
def quick(store_url: str) -> Iterator[Shop]:
    """A shop whose workers are declared dead after a second."""
    with Shop(store_url, "def", settings=QUICK) as shop:
        yield shop


def also(shop: Shop, duty: Callable[[], Flow[int]]) -> None:
    """One more duty for the worker that runs, before the others."""
    (worker,) = shop.inbox._workers._running
    worker._membership._duties.insert(0, duty)


def renewals(shop: Shop) -> Callable[[], int]:
    """Counts the ends of the only worker's lease that were seen."""
    seen: set[int] = set()

    def look() -> int:
        seen.add(lease_end(shop, shop.inbox.admin.workers()[0].id))
        return len(seen)

    return look


@pytest.mark.parametrize("error", [KeyError("a key function's"), StoreUnavailable("too slow")])
def test_a_duty_that_fails_stops_nothing(quick: Shop, error: Exception, caplog: Any) -> None:
    """D26, D27: the lease is renewed, and what a dead process held is taken over, turn after turn."""
    quick.handle()
    calls: list[int] = []

    def failing() -> Flow[int]:
        calls.append(1)
        yield Query("names")
        raise error

    with quick.running():
        renewed = renewals(quick)
        also(quick, failing)
        wait_until(lambda: len(calls) > 1 and renewed() > 2)
        gone = die_holding(quick)
        wait_until(lambda: gone not in [worker.id for worker in quick.inbox.admin.workers()])
    assert "maintenance" in caplog.text


def test_a_duty_that_takes_long_delays_neither_lease_nor_deadline(quick: Shop) -> None:
    """D27: while it hangs, the lease is renewed and a handler that overruns is interrupted."""
    quick.handle(behaviour=overrun(STATEMENTS[quick.dialect]), timeout=timedelta(seconds=0.3))
    hangs, enough = threading.Event(), threading.Event()

    def hanging() -> Flow[int]:
        hangs.set()
        enough.wait(30)
        yield Query("names")
        return 0

    with quick.running():
        also(quick, hanging)
        assert hangs.wait(30)
        renewed = renewals(quick)
        wait_until(lambda: renewed() > 3)
        quick.receive("m1")
        wait_until(lambda: quick.detail("m1").history)
        enough.set()
    assert "HandlerTimeout" in quick.error("m1")


def test_a_worker_that_loses_its_heartbeat_stops_loudly(sqlite_url: str, kind: Kind) -> None:
    """D26: a filter of the program's logging that raises ends the thread; the worker does not go on without it."""

    def breaking(_: logging.LogRecord) -> bool:
        raise OSError("the disk of the log is full")

    def failing() -> Flow[int]:
        yield Query("names")
        raise KeyError("x")

    def lose() -> None:
        with quick.running():
            (worker,) = quick.inbox._workers._running
            log.addFilter(breaking)
            try:
                also(quick, failing)
                wait_until(worker._stop.is_set)
            finally:
                log.removeFilter(breaking)

    log = logging.getLogger("onceward")
    with Shop(sqlite_url, kind, settings=QUICK) as quick:
        quick.handle()
        with pytest.raises(OSError, match="disk of the log"):
            lose()


def fail_over(shop: Shop) -> None:
    """Go on with a standby that had not heard of any worker yet, nor of the numbers that were given out."""
    shop.sql(f"DELETE FROM {shop.prefix}worker")
    if shop.dialect == "sqlite":
        shop.sql("DELETE FROM sqlite_sequence WHERE name LIKE '%worker'")
    elif shop.sql(f"SELECT pg_get_serial_sequence('{shop.prefix}worker', 'id')") != [(None,)]:
        shop.sql(f"ALTER TABLE {shop.prefix}worker ALTER COLUMN id RESTART")


def test_a_worker_number_is_never_given_twice(quick: Shop) -> None:
    """D54: a live process whose row is gone registers anew, and shares its number with nobody; deaths are noticed."""
    first, second = (Membership(quick.inbox.context, quick.inbox.store, process=name) for name in ("first", "second"))
    first.start()
    lost = first.worker
    fail_over(quick)
    second.start()
    try:
        assert second.worker != lost
        wait_until(
            lambda: (
                first.worker != lost and {first.worker, second.worker} == {w.id for w in quick.inbox.admin.workers()}
            )
        )
    finally:
        first.stop()
        second.stop()


def test_a_heartbeat_knows_its_own_row(quick: Shop) -> None:
    """D54: a row that has our number and another's name is not ours; renewing it would hide that both are wrong."""
    mine = Membership(quick.inbox.context, quick.inbox.store)
    mine.start()
    lost = mine.worker
    quick.sql(f"UPDATE {quick.prefix}worker SET process = 'a stranger'")
    try:
        wait_until(lambda: mine.worker != lost)
    finally:
        mine.stop()
    quick.sql(f"DELETE FROM {quick.prefix}worker")


def test_a_claim_that_a_failover_brings_back_comes_off(quick: Shop) -> None:
    """A living worker lets go of a claim that it has finished, if that is lost; what it still holds it keeps."""
    queue: list[tuple[Any, ...]] = []
    turns: list[int] = []

    def holding(message: Message) -> Steps:
        queue.extend(quick.sql(f"SELECT * FROM {quick.prefix}queue"))
        turns.clear()
        yield Until(lambda: len(turns) > 2)
        yield wrote(message)

    def counting() -> Flow[int]:
        turns.append(1)
        yield from ()
        return 0

    quick.handle(behaviour=holding)
    with quick.running():
        also(quick, counting)
        quick.receive("m1")
        wait_until(lambda: quick.status("m1") == "done")
        assert quick.runs["m1"] == 1
        assert quick.effects() == ["m1"]
        marks = ", ".join(["?" if quick.dialect == "sqlite" else "%s"] * len(queue[0]))
        quick.sql("DELETE FROM effects")  # the failover undoes the finish and brings the claim back
        quick.sql(f"DELETE FROM {quick.prefix}run")
        quick.sql(f"INSERT INTO {quick.prefix}queue VALUES ({marks})", *queue[0])
        wait_until(lambda: quick.status("m1") == "done")
    assert quick.effects() == ["m1"]
    assert not quick.detail("m1").history


def test_a_name_that_was_killed_starts_again(quick: Shop) -> None:
    """D25: what it held is run by the next process of its name, charged as a crash, though its lease is not over."""
    quick.handle()
    quick.receive("m1")
    die_holding(quick, "m1", process="worker_0")
    other = die_holding(quick, process="worker-0#1")  # not one of its, though LIKE would say so
    quick.sql(f"UPDATE {quick.prefix}worker SET alive_until = 9000000000000000")
    with quick.started(process="worker_0"):
        wait_until(lambda: quick.status("m1") == "done")
        assert other in [worker.id for worker in quick.inbox.admin.workers()]
    quick.declare_dead("worker-0")
    assert "was replaced by a new one of the same name, worker_0" in quick.detail("m1").history[0].error


def test_of_two_processes_with_one_name_the_older_says_so_and_goes_on(quick: Shop, caplog: Any) -> None:
    """D25: it loses its lease, once, and never takes the name back."""
    quick.handle()
    older, newer = (Membership(quick.inbox.context, quick.inbox.store, process="worker-0") for _ in range(2))
    older.start()
    lost = older.worker
    newer.start()
    try:
        wait_until(lambda: older.worker != lost)
        kept = newer.worker
        renewed = lease_end(quick, kept)
        wait_until(lambda: lease_end(quick, kept) > renewed)
        assert {worker.id for worker in quick.inbox.admin.workers()} == {older.worker, newer.worker}
        assert newer.worker == kept
        assert "has registered under the name of this process, worker-0" in caplog.text
    finally:
        older.stop()
        newer.stop()
    with pytest.raises(ConfigurationError, match="cannot contain '#'"):
        Membership(quick.inbox.context, quick.inbox.store, process="a#b")


@pytest.fixture(params=["sqlite", "postgres"])
def outage(
    request: pytest.FixtureRequest, sqlite_url: str, proxied_postgres_url: str, postgres_proxy: FaultProxy
) -> tuple[str, Callable[[], AbstractContextManager[None]]]:
    """The address of a store, and how it goes away for the length of a block."""

    @contextmanager
    def cut() -> Iterator[None]:
        postgres_proxy.cut()
        try:
            yield
        finally:
            postgres_proxy.heal()

    @contextmanager
    def locked() -> Iterator[None]:
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield

    return (sqlite_url, locked) if request.param == "sqlite" else (proxied_postgres_url, cut)


@pytest.mark.needs("proxy")
def test_a_worker_waits_for_a_database_that_is_away_when_it_starts(outage: Any, kind: Kind, caplog: Any) -> None:
    """D25: it says so, can be stopped, and works when the database is back; whoever only drains is told at once."""
    url, away = outage
    settings = Settings(lock_wait=timedelta(milliseconds=20), poll=timedelta(milliseconds=50))
    with Shop(url, kind, settings=settings, pooled=True) as shop:
        shop.handle()
        shop.receive("m1")
        with away(), shop.started() as ended:
            wait_until(lambda: "database unreachable since" in caplog.text)
            shop.inbox.stop()
            wait_until(ended)
            with pytest.raises(StoreUnavailable):
                shop.inbox.drain()
        caplog.clear()
        with ExitStack() as over:
            over.enter_context(away())
            with shop.started():
                wait_until(lambda: "database unreachable since" in caplog.text)
                over.close()
                wait_until(lambda: shop.effects() == ["m1"])
        assert "database back after" in caplog.text


def test_a_worker_that_meets_another_transaction_when_it_starts_tries_again(
    quick: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster may refuse its first commit: that is no reason to end. Whoever only drains is told."""
    refusals = [StoreConflict("met another"), StoreConflict("met another")]

    def refused(*args: Any, **options: Any) -> Flow[None]:
        if refusals:
            raise refusals.pop()
        yield from introduce(*args, **options)

    monkeypatch.setattr("onceward.runtime.worker.introduce", refused)
    quick.handle()
    quick.receive("m1")
    with pytest.raises(StoreConflict):
        quick.drain()
    with quick.started():
        wait_until(lambda: quick.effects() == ["m1"])
    assert refusals == []
