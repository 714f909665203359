"""Claims, leases, zombies: a message has one worker at a time, and outlives it (R11, R12, R16; HZ-30-34, HZ-50; I7)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from onceward import Message, RetryPolicy, Settings
from onceward.steps import membership
from onceward.testing.store_suite.shop import threads
from tests.contract.behaviour import Sql, Steps, Until, wrote
from tests.contract.harness import QUICK, Kind, Shop, arguments
from tests.order.background import meanwhile
from tests.waiting import wait_until

STEADY = Settings(lease=timedelta(seconds=6), poll=timedelta(milliseconds=50))


@pytest.fixture
def quick(store_url: str, kind: Kind) -> Iterator[Shop]:
    """A shop whose workers are declared dead after a second."""
    with Shop(store_url, kind, settings=QUICK) as shop:
        yield shop


@pytest.fixture
def steady(store_url: str, kind: Kind) -> Iterator[Shop]:
    """A shop whose workers are declared dead by the test alone, also on a busy machine, and notice it soon."""
    with Shop(store_url, kind, settings=STEADY) as shop:
        yield shop


def die_holding(shop: Shop, *ids: str, process: str = "") -> int:
    """A worker that claimed these messages and has not renewed its lease since; answers its number."""
    register = membership.register(
        shop.inbox.context, process=process or f"dead-{ids}", host="elsewhere", pid=1, inline=False
    )
    worker: int = shop.step(register)
    for message_id in ids:
        seq = shop.seqs[message_id]
        shop.sql(f"UPDATE {shop.prefix}queue SET worker = {worker}, token = 77 WHERE seq = {seq} AND token IS NULL")
    shop.sql(f"UPDATE {shop.prefix}worker SET alive_until = 0 WHERE id = {worker}")
    return worker


def test_the_messages_of_a_silent_worker_are_taken_over(quick: Shop) -> None:
    """R12: without a supervisor, whoever notices that a lease has run out runs its messages."""
    quick.handle()
    quick.receive("m1")
    gone = die_holding(quick, "m1")
    with quick.running():
        wait_until(lambda: quick.status("m1") == "done")
        assert [worker.id for worker in quick.inbox.admin.workers() if worker.id == gone] == []
    assert quick.effects() == ["m1"]
    (crash,) = quick.detail("m1").history
    assert (crash.kind, crash.charged, crash.worker) == ("crash", True, gone)
    assert "process 1 on elsewhere stopped renewing its lease" in crash.error


def test_a_death_with_several_messages_charges_nobody(quick: Shop) -> None:
    """R16, HZ-51: any of them may be the cause, so they run apart next, half at a time, and none is accused."""
    quick.handle()
    ids = [f"m{number}" for number in range(5)]
    for message_id in ids:
        quick.receive(message_id)
    die_holding(quick, *ids[:4])
    with quick.running():
        wait_until(lambda: quick.effects() == ids)
    for message_id in ids[:4]:
        (crash,) = quick.detail(message_id).history
        assert (crash.kind, crash.charged) == ("crash", False)
        assert "it runs with at most 1 other isolated message next" in crash.error
    assert quick.detail("m4").history == ()
    groups = quick.sql(f"SELECT messages FROM {quick.prefix}run")
    assert max(count for (count,) in groups) <= 2


def levels(shop: Shop) -> list[int]:
    """The isolation levels of the unfinished messages, in order."""
    return [level for (level,) in shop.sql(f"SELECT isolation FROM {shop.prefix}queue ORDER BY seq")]


def test_an_isolated_message_that_fails_is_none_any_more(quick: Shop) -> None:
    """D36: it has run, and its process lives; what was charged with a crash stays one, also when it is redriven."""

    def failing(message: Message) -> Steps:
        yield wrote(message)
        raise ValueError(message.id)

    quick.handle(behaviour=failing, retry=RetryPolicy(attempts=1))
    for message_id in ("m1", "m2", "charged"):
        quick.receive(message_id)
    with quick.visitor(settings=QUICK) as witness:
        for held, after in ((["m1", "m2"], [2, 2, 0]), (["m1", "m2"], [1, 1, 0]), (["charged"], [1, 1, 1])):
            die_holding(quick, *held)
            assert witness.step(membership.take_over_lapsed(witness.inbox.context, 0)) == 1
            assert levels(quick) == after
    quick.drain()
    assert [quick.status(message_id) for message_id in ("m1", "m2", "charged")] == ["dead"] * 3
    assert levels(quick) == [0, 0, 1]
    assert quick.inbox.admin.redrive(quick.seqs["charged"]) == 1
    assert levels(quick) == [0, 0, 1]
    quick.drain()
    assert levels(quick) == [0, 0, 0]


@pytest.mark.parametrize("level", [1, 2])
def test_an_isolated_message_whose_key_is_held_hides_no_other(postgres_url: str, level: int) -> None:
    """D36: inline work holds its key for as long as its handler runs; those behind it do not wait for that."""
    with Shop(postgres_url, "def") as shop:
        shop.handle(key="key")
        for message_id in ("held", "free"):
            shop.receive(message_id, data={"key": message_id})
        shop.sql(f"UPDATE {shop.prefix}queue SET isolation = {level}")
        ((hashed,),) = shop.sql(f"SELECT key_hash FROM {shop.prefix}queue WHERE seq = {shop.seqs['held']}")
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT pg_advisory_xact_lock(%s)", [hashed])
            shop.drain()
            assert shop.effects() == ["free"]
        shop.drain()
        assert shop.effects() == ["free", "held"]


def test_the_third_crash_alone_is_the_last(quick: Shop) -> None:
    """R16, HZ-50: a message that kills its process is counted although nothing of its attempts was committed."""
    quick.handle()
    quick.receive("killer")
    quick.receive("innocent")
    with quick.visitor(settings=QUICK) as witness:
        for crash in range(1, 4):
            worker = die_holding(quick, "killer")
            assert witness.step(membership.take_over_lapsed(witness.inbox.context, 0)) == 1
            assert quick.detail("killer").crashes == crash
            assert worker not in [row.id for row in quick.inbox.admin.workers()]
    assert quick.status("killer") == "dead"
    assert "crash 3 of 3" in quick.error("killer")
    quick.drain()
    assert quick.effects() == ["innocent"]
    assert quick.inbox.admin.redrive(quick.seqs["killer"]) == 1
    quick.drain()
    assert quick.effects() == ["innocent", "killer"]


def test_a_worker_that_renews_its_lease_is_left_alone(quick: Shop) -> None:
    """R12, HZ-31: a handler that runs for longer than the lease keeps its message."""
    other = quick.another(settings=QUICK)
    enough = threading.Event()

    def slow(message: Message) -> Steps:
        yield Until(enough.is_set)
        yield wrote(message)

    quick.handle(behaviour=slow)
    other.handle()
    with quick.running():
        quick.receive("m1")
        wait_until(lambda: quick.status("m1") == "running")
        with other.running():
            renewed = [lease_end(quick, quick.inbox.admin.workers()[0].id)]
            for _ in range(5):
                wait_until(lambda: lease_end(quick, quick.inbox.admin.workers()[0].id) > renewed[-1])
                renewed.append(lease_end(quick, quick.inbox.admin.workers()[0].id))
            assert quick.status("m1") == "running"
            enough.set()
            wait_until(lambda: quick.status("m1") == "done")
    assert (quick.effects(), quick.runs["m1"], other.runs["m1"], quick.count("attempt")) == (["m1"], 1, 0, 0)


def lease_end(shop: Shop, worker: int) -> int:
    return int(shop.sql(f"SELECT alive_until FROM {shop.prefix}worker WHERE id = {worker}")[0][0])


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_a_zombie_can_finish_nothing(steady: Shop, ending: str) -> None:
    """R12, HZ-30, I7: declared dead while its handler ran, a worker's effects roll back, and it charges nobody."""
    other = steady.another(settings=STEADY)
    taken_over = threading.Event()

    def stopped(message: Message) -> Steps:
        if message.id == "m1":
            yield Until(taken_over.is_set)
        yield wrote(message, "zombie")
        if ending == "raises" and message.id == "m1":
            raise RuntimeError("too late")

    steady.handle(behaviour=stopped)
    other.handle()
    with steady.running(process="zombie"):
        seq = steady.receive("m1").seq
        wait_until(lambda: steady.status(seq) == "running")
        other.declare_dead("zombie")
        other.drain()
        assert steady.notes() == [("m1", "default")]
        taken_over.set()
        # It registers anew by itself and works on.
        steady.receive("m2")
        wait_until(lambda: steady.notes() == [("m1", "default"), ("m2", "zombie")])
        assert [worker.process.partition("#")[0] for worker in steady.inbox.admin.workers()] == ["zombie"]
    assert [(a.kind, a.charged) for a in steady.detail(seq).history] == [("crash", True)]


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_a_zombie_ends_nothing_that_its_heir_runs(steady: Shop, ending: str) -> None:
    """R12, HZ-30: the row is there, under another claim. It is neither finished nor charged but by whoever has that."""
    heir, begun, go_on = steady.another(settings=STEADY), threading.Event(), threading.Event()

    def waking(message: Message) -> Steps:
        yield Until(begun.is_set)
        yield wrote(message, "zombie")
        if ending == "raises" and message.id == "m1":
            raise RuntimeError("too late")

    def running(message: Message) -> Steps:
        begun.set()
        yield Until(go_on.is_set)
        yield wrote(message, "heir")

    steady.handle(behaviour=waking)
    heir.handle(behaviour=running)
    with steady.running(process="zombie", concurrency=1):
        seq = steady.receive("m1").seq
        wait_until(lambda: steady.status(seq) == "running")
        heir.declare_dead("zombie")
        with heir.running(concurrency=1):
            wait_until(begun.is_set)
            steady.receive("m2")
            # Its one lane is through with m1 when it takes up another message; the heir's is busy.
            wait_until(lambda: steady.notes() == [("m2", "zombie")])
            go_on.set()
            wait_until(lambda: steady.status(seq) == "done")
    assert steady.notes() == [("m1", "heir"), ("m2", "zombie")]
    assert [(a.kind, a.charged) for a in steady.detail(seq).history] == [("crash", True)]


def test_a_zombie_loses_only_what_was_taken(steady: Shop) -> None:
    """HZ-30: of a group, the whole transaction rolls back; every message of it has one effect in the end."""
    taken_over = threading.Event()
    other = steady.another(settings=STEADY)

    def stopped(message: Message) -> Steps:
        if message.id == "m0":
            yield Until(taken_over.is_set)
        yield wrote(message)

    steady.handle(behaviour=stopped)
    other.handle()
    steady.receive_many(arguments(f"m{number}") for number in range(6))
    with steady.running(process="zombie"):
        wait_until(lambda: steady.count("queue", "token IS NOT NULL") == 6)
        other.declare_dead("zombie")
        other.drain()
        taken_over.set()
        steady.receive("m6")
        wait_until(lambda: "m6" in steady.effects())
    assert steady.effects() == [f"m{number}" for number in range(7)]
    assert {
        a.charged for n in range(6) for a in steady.detail(steady.inbox.admin.find("stripe", f"m{n}")[0]).history
    } == {False}


def test_a_worker_whose_row_is_gone_registers_anew(steady: Shop) -> None:
    """R12: idle when it was declared dead, it claims nothing under its old number."""
    steady.handle()
    with steady.running(process="idle"):
        (worker,) = steady.inbox.admin.workers()
        steady.declare_dead("idle")
        steady.receive("m1")
        wait_until(lambda: steady.status("m1") == "done")
        assert steady.detail("m1").finished_by != worker.id
    assert steady.effects() == ["m1"]


def test_a_graceful_stop_leaves_nothing_behind(shop: Shop) -> None:
    """R12: what runs is finished, what was only claimed is given back uncharged, the worker row is gone."""
    enough = threading.Event()

    def slow(message: Message) -> Steps:
        yield Until(enough.is_set)
        yield wrote(message)

    shop.handle(behaviour=slow)
    shop.receive_many(arguments(f"m{number}") for number in range(10))
    with shop.running():
        wait_until(lambda: shop.count("queue", "token IS NOT NULL") == 10)
        shop.inbox.stop()
        enough.set()
    assert (shop.inbox.admin.workers(), shop.count("queue", "token IS NOT NULL"), shop.count("attempt")) == ([], 0, 0)
    shop.drain()
    assert shop.effects() == sorted(f"m{number}" for number in range(10))


def test_a_stop_does_not_wait_for_ever(store_url: str, kind: Kind) -> None:
    """R12: a handler that does not end in time is given up; its message is free and its effects roll back."""
    settings = Settings(stop_timeout=timedelta(milliseconds=200))
    enough, stopped = threading.Event(), threading.Event()

    def stubborn(message: Message) -> Steps:
        yield Until(lambda: enough.is_set() or stopped.is_set())
        yield wrote(message, "too late" if stopped.is_set() else "in time")

    with Shop(store_url, "def", settings=settings) as shop:
        shop.handle(behaviour=stubborn, kind=kind)
        shop.receive("m1")
        with shop.running():
            wait_until(lambda: shop.status("m1") == "running")
            shop.inbox.stop()
            wait_until(lambda: shop.inbox.admin.workers() == [])
            assert shop.status("m1") == "due"
            stopped.set()
        enough.set()
        wait_until(lambda: not any(t.name.startswith(("onceward-lane", "onceward-async")) for t in threads()))
        assert shop.effects() == []
        stopped.clear()
        shop.drain()
        assert shop.notes() == [("m1", "in time")]


BAD_PLANS = [f"enable_{way}" for way in ("hashjoin", "mergejoin", "seqscan", "material", "sort", "memoize")]


def test_no_plan_claims_more_than_the_limit(postgres_url: str, kind: Kind) -> None:
    """HZ-33: with every join but the nested loop switched off, a claim of three is a claim of three."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        known = connection.execute("SELECT name FROM pg_settings WHERE name = ANY(%s)", [BAD_PLANS])
        for (switch,) in known.fetchall():  # PostgreSQL 13 has no memoize
            connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {switch} = off".encode())
    with Shop(postgres_url, kind) as shop:
        claimed: set[int] = set()

        def counting(message: Message) -> Steps:
            ((count,),) = yield Sql(f"SELECT count(*) FROM {shop.prefix}queue WHERE token IS NOT NULL")
            claimed.add(count)
            yield wrote(message)

        shop.handle(behaviour=counting, group=3, key="k", key_required=False)
        shop.receive_many(arguments(f"m{n:02}", more={"data": {"k": n} if n % 2 else {}}) for n in range(40))
        shop.drain()
        assert shop.effects() == [f"m{n:02}" for n in range(40)]
        assert max(claimed) == 3


def test_a_claim_passes_over_what_another_has_in_hand(postgres_shop: Shop, postgres_url: str) -> None:
    """C51: it neither waits for a row that is locked nor takes it; when the lock is gone, it is claimed."""
    shop = postgres_shop
    shop.handle()
    shop.receive("held")
    shop.receive("free")
    other = psycopg.connect(postgres_url)
    other.execute(f"SELECT 1 FROM {shop.prefix}queue WHERE seq = {shop.seqs['held']} FOR UPDATE".encode())
    with meanwhile(shop.inbox.drain), other:  # which is closed first
        wait_until(lambda: shop.effects() == ["free"], timeout=30, message="the other one to be handled")
        assert shop.runs["held"] == 0
    shop.drain()
    assert shop.effects() == ["free", "held"]
