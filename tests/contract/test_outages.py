"""The database goes away and comes back: nothing lost, nothing doubled (R13, R23; HZ-23, HZ-36, HZ-67)."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from onceward import Message, Receipt, Settings, StoreUnavailable
from tests.contract.behaviour import Do, Steps, Until, wrote
from tests.contract.harness import QUICK, Kind, Shop, arguments
from tests.servers import FaultProxy, PostgresServer
from tests.waiting import wait_until

COMMIT = b"COMMIT\x00"  # the statement itself; BEGIN says READ COMMITTED


def accepted(shop: Shop, message_id: str) -> bool:
    """Whether a delivery was taken in; a caller tries again until it is."""
    try:
        return shop.receive(message_id).status in {"accepted", "duplicate"}
    except StoreUnavailable:
        return False


def test_workers_outlive_the_server(private_postgres: PostgresServer, kind: Kind) -> None:
    """R23, HZ-36: receive says so, workers wait, and all goes on when the server is back; also what was running."""
    running, back = threading.Event(), threading.Event()

    def interrupted(message: Message) -> Steps:
        if message.id == "in flight" and not back.is_set():
            running.set()
            yield Until(back.is_set)
        yield wrote(message)

    with Shop(private_postgres.url(), kind, settings=QUICK) as shop:
        shop.handle(behaviour=interrupted, group=1)
        with shop.running():
            shop.receive("before")
            wait_until(lambda: shop.effects() == ["before"])
            shop.receive("in flight")
            wait_until(running.is_set)
            private_postgres.kill() if kind == "def" else private_postgres.stop()
            for call in (shop.receive, shop.process):
                with pytest.raises(StoreUnavailable):
                    call("meanwhile")
            back.set()
            private_postgres.start()
            wait_until(lambda: accepted(shop, "after"))
            wait_until(lambda: shop.effects() == ["after", "before", "in flight"])
        assert shop.detail(shop.inbox.admin.find("stripe", "in flight")[0]).attempts == 0


def test_stale_connections_are_nobodys_problem(private_postgres: PostgresServer, kind: Kind) -> None:
    """R23: a restart between two calls is not even seen by the caller."""
    with Shop(private_postgres.url(), kind) as shop:
        shop.handle()
        shop.at_once("receive", [arguments(f"m{number}") for number in range(4)])
        shop.process("m4")
        private_postgres.restart()
        assert shop.receive("m5").status == "accepted"
        assert shop.process("m6").finished
        private_postgres.restart("immediate")
        assert shop.process("m7").finished
        assert len(shop.inbox.admin.messages()) == 8
        shop.drain()
        assert shop.effects() == [f"m{number}" for number in range(8)]


def test_a_network_that_is_cut_while_a_worker_is_busy(
    proxied_postgres_url: str, postgres_proxy: FaultProxy, kind: Kind
) -> None:
    """R13, R23: every connection of the process is reset at once, in the middle of a handler, again and again."""
    cuts = iter(("m0", "m2", "m4"))
    due = [next(cuts)]

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if due and message.id == due[0]:
            due[:] = [following] if (following := next(cuts, None)) else []
            postgres_proxy.cut()
            postgres_proxy.heal()

    with Shop(proxied_postgres_url, kind, settings=QUICK) as shop:
        shop.handle(behaviour=behaviour)
        shop.receive_many(arguments(f"m{number}") for number in range(6))
        with shop.running():
            wait_until(lambda: done(shop) == 6)
        assert shop.effects() == [f"m{number}" for number in range(6)]
        assert shop.count("attempt", "charged") == 0


def done(shop: Shop) -> int:
    """How many effects there are; a cut may hit the question, too."""
    try:
        return len(shop.effects())
    except Exception:  # noqa: BLE001 - asked through the same proxy
        return -1


# A COMMIT whose answer is lost, or that never arrives


@pytest.fixture(params=["answer lost", "never arrived"])
def fault(request: pytest.FixtureRequest, postgres_proxy: FaultProxy) -> Callable[[], None]:
    """Break the next COMMIT: after the server has obeyed it, or before it sees it."""
    if request.param == "answer lost":
        return lambda: postgres_proxy.drop_reply_after(COMMIT)
    return lambda: postgres_proxy.drop_request_with(COMMIT)


@pytest.fixture
def proxied(proxied_postgres_url: str, kind: Kind) -> Iterator[Shop]:
    """A shop whose every connection passes the proxy."""
    with Shop(proxied_postgres_url, kind, settings=QUICK) as shop:
        yield shop


def test_an_unknown_outcome_of_receiving(proxied: Shop, postgres_proxy: FaultProxy, fault: Callable[[], None]) -> None:
    """HZ-23: repeated until it is known; one row, and one effect."""
    proxied.handle()
    proxied.receive("m0")
    fresh = proxied.another()
    fresh.receive("m0")
    fault()
    receipt = fresh.receive("m1")
    assert postgres_proxy.hits == 1
    assert receipt.status in {"accepted", "duplicate"}
    fault()
    receipts = fresh.receive_many([arguments("m2"), arguments("m3"), arguments("m2")])
    assert (postgres_proxy.hits, len({receipt.seq for receipt in receipts})) == (2, 2)
    assert proxied.drain() == 4
    assert proxied.effects() == ["m0", "m1", "m2", "m3"]


def test_an_unknown_outcome_of_handling(proxied: Shop, postgres_proxy: FaultProxy, fault: Callable[[], None]) -> None:
    """HZ-23: the worker reads what became of it; one effect, one run, nobody charged."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "m1" and proxied.runs["m1"] == 1:
            yield Do(lambda _: fault())

    proxied.handle(behaviour=behaviour)
    proxied.receive_many(arguments(f"m{number}") for number in range(3))
    proxied.drain()
    assert postgres_proxy.hits == 1
    proxied.finish()
    assert (proxied.effects(), proxied.count("attempt")) == (["m0", "m1", "m2"], 0)


def test_an_unknown_outcome_of_processing(proxied: Shop, postgres_proxy: FaultProxy, fault: Callable[[], None]) -> None:
    """HZ-23: the caller gets a receipt or an error that means "deliver again"; one effect either way."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "m1" and proxied.runs["m1"] == 1:
            yield Do(lambda _: fault())
        return "result"

    proxied.handle(behaviour=behaviour)
    proxied.process("m0")
    postgres_proxy.cut()  # so that the next connection is a new one
    postgres_proxy.heal()
    receipt = wait_until(lambda: processed(proxied, "m1"))
    assert postgres_proxy.hits == 1
    assert receipt is not None
    assert (receipt.finished, receipt.result) == (True, "result")
    assert proxied.process("m1").status == "duplicate"
    assert (proxied.effects(), proxied.count("attempt")) == (["m0", "m1"], 0)


def processed(shop: Shop, message_id: str) -> Receipt | None:
    """A receipt; a caller that gets none delivers again."""
    try:
        return shop.process(message_id)
    except StoreUnavailable:
        return None


def test_an_unknown_outcome_of_a_claim(proxied: Shop, postgres_proxy: FaultProxy, fault: Callable[[], None]) -> None:
    """HZ-23, I9: a claim whose commit was never answered is found again, not left to nobody."""
    proxied.handle(key="k")
    for number in range(6):
        proxied.receive(f"m{number}", data={"k": number % 2})
    claims = iter([fault])
    store: Any = proxied.inbox.store
    connect = store.connect if proxied.kind == "def" else store.async_connect

    def arming(session: Any) -> Any:
        if (arm := next(claims, None)) is not None:
            arm()  # the first COMMIT of a lane's connection is that of its first claim
        return session

    async def async_arming() -> Any:
        return arming(await connect())

    if proxied.kind == "def":
        sessions = iter([lambda session: session, arming])  # the membership connects first
        store.connect = lambda: next(sessions, lambda session: session)(connect())
    else:
        store.async_connect = async_arming
    proxied.drain()
    assert postgres_proxy.hits == 1
    proxied.finish()
    assert (proxied.effects(), proxied.count("attempt")) == ([f"m{number}" for number in range(6)], 0)


def test_an_unknown_outcome_of_charging(proxied: Shop, postgres_proxy: FaultProxy, fault: Callable[[], None]) -> None:
    """HZ-23, I6: the attempt was written, or it is not charged; never twice, and the message goes on."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.attempt == 1:
            if proxied.runs["m1"] == 1:
                yield Do(lambda _: fault())
            raise RuntimeError("not yet")

    proxied.handle(behaviour=behaviour)
    proxied.receive("m1")
    proxied.drain()
    assert postgres_proxy.hits == 1
    proxied.finish()
    assert (proxied.effects(), proxied.count("attempt", "charged")) == (["m1"], 1)


# SQLite


@contextmanager
def locked(shop: Shop) -> Iterator[None]:
    """Another program holds the database for writing."""
    connection = sqlite3.connect(shop.url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    finally:
        connection.close()


def test_a_locked_database_is_waited_for(sqlite_url: str, kind: Kind) -> None:
    """HZ-61, HZ-67: receive says so, the worker waits and goes on; nothing is charged."""
    settings = Settings(lock_wait=timedelta(milliseconds=20), lease=QUICK.lease, poll=QUICK.poll)
    running, unlocked = threading.Event(), threading.Event()

    def behaviour(message: Message) -> Steps:
        if message.id == "in flight" and not unlocked.is_set():
            running.set()
            yield Until(unlocked.is_set)
        yield wrote(message)

    with Shop(sqlite_url, kind, settings=settings) as shop:
        shop.handle(behaviour=behaviour)
        with shop.running():
            shop.receive("before")
            wait_until(lambda: shop.effects() == ["before"])
            shop.receive("in flight")
            wait_until(running.is_set)
            with locked(shop):
                for call in (shop.receive, shop.process):
                    with pytest.raises(StoreUnavailable, match="busy"):
                        call("meanwhile")
                unlocked.set()
            wait_until(lambda: accepted(shop, "after"))
            wait_until(lambda: shop.effects() == ["after", "before", "in flight"])
        assert shop.count("attempt", "charged = 1") == 0


def test_a_handler_that_meets_the_lock_is_not_charged(sqlite_url: str, kind: Kind) -> None:
    """HZ-52, HZ-61: its first statement cannot begin; that is no fault of the message."""
    with Shop(sqlite_url, kind, settings=Settings(lock_wait=timedelta(milliseconds=20))) as shop:

        def behaviour(message: Message) -> Steps:
            if shop.runs[message.id] > 4:
                yield wrote(message)
                return
            with locked(shop):
                yield wrote(message)

        shop.handle(behaviour=behaviour)
        shop.receive("m1")
        shop.finish()
        assert (shop.effects(), shop.count("attempt"), shop.runs["m1"]) == (["m1"], 0, 5)
