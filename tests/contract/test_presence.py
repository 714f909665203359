"""The threads beside the lanes: whatever one of them meets, the lease is renewed and the others do their part."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from onceward.errors import StoreUnavailable
from onceward.flow import Flow, Query
from tests.contract.harness import QUICK, Kind, Shop
from tests.contract.test_claims import die_holding, lease_end
from tests.contract.test_timeouts import STATEMENTS, overrun
from tests.waiting import wait_until


@pytest.fixture
def quick(store_url: str) -> Iterator[Shop]:
    """A shop whose workers are declared dead after a second."""
    with Shop(store_url, "def", settings=QUICK) as shop:
        yield shop


def also(shop: Shop, duty: Callable[[], Flow[int]]) -> None:
    """One more duty for the worker that runs, before the others."""
    (worker,) = shop.inbox._workers
    worker._presence._duties.insert(0, duty)


def renewals(shop: Shop) -> Callable[[], int]:
    """Counts the ends of the only worker's lease that were seen."""
    seen: set[int] = set()

    def look() -> int:
        seen.add(lease_end(shop, shop.inbox.workers()[0].id))
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
        wait_until(lambda: gone not in [worker.id for worker in quick.inbox.workers()])
    assert "upkeep" in caplog.text


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
        wait_until(lambda: quick.story("m1").history)
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
            (worker,) = quick.inbox._workers
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
