"""Retention (R29, R30): what is old and finished goes; what is unfinished, dead or in question stays, however old."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest

from onceward import Inbox, Reject, Settings
from onceward.errors import ConfigurationError
from onceward.flow import Query
from onceward.steps.context import in_transaction
from onceward.steps.prune import BATCH, PruneProgress, maintain, partition_time
from tests.contract import behaviour as acts
from tests.contract.harness import QUICK, TYPE, Shop, arguments
from tests.retention.conftest import NOW
from tests.stores import with_mariadb
from tests.waiting import wait_until

EVERYTHING = ("ledger", "body", "run", "result", "attempt", "duplicate", "quarantine", "audit", "effect")


def rotate_partition(shop: Shop) -> None:
    """Go on with the next partition of bodies, as if a day were over (nothing on SQLite)."""
    for _ in range(3):  # it is made, then turned to, then the old one is closed
        shop.step(in_transaction(shop.inbox.context, Query("rotate_partition", {"seconds": 0.0})))


def counts(shop: Shop) -> dict[str, int]:
    return {table: shop.count(table) for table in EVERYTHING if shop.count(table)}


@with_mariadb
def test_nothing_is_left_of_a_finished_message(shop: Shop) -> None:
    """R29: its body, result, attempts, copies and runs go with it; a copy is then a new message."""
    shop.handle(behaviour=acts.raising(lambda: ValueError("once"), attempts=1))
    shop.handle("other", acts.returning(7))
    shop.receive("a")
    shop.receive("a")
    shop.receive("b", "other")
    shop.finish()
    assert shop.effects() == ["a", "b"]
    pruned = shop.inbox.retention.prune()
    assert (pruned.messages, pruned.runs) == (2, shop_runs := pruned.runs)
    assert shop_runs >= 2
    assert counts(shop) == {}
    shop.sql("DELETE FROM effects")
    assert shop.receive("a").status == "accepted"
    shop.finish()
    assert shop.effects() == ["a"]


@with_mariadb
def test_bodies_go_and_the_memory_stays(remembering: Shop) -> None:
    """R30: without its body a message is still a duplicate, with its result, and other bytes are still a mismatch."""
    shop = remembering
    shop.handle(behaviour=acts.returning({"n": 1}))
    shop.receive("a")
    shop.drain()
    rotate_partition(shop)
    pruned = shop.inbox.retention.prune()
    assert (pruned.partitions if shop.dialect == "postgres" else pruned.bodies) == 1
    assert shop.count("body") == 0
    receipt = shop.receive("a")
    assert (receipt.status, receipt.finished, receipt.result) == ("duplicate", True, {"n": 1})
    assert shop.receive("a", data="other").status == "mismatch"
    detail = shop.detail("a")
    assert (detail.id, detail.body, detail.status) == ("a", None, "done")
    assert shop.effects() == ["a"]
    (case,) = shop.inbox.admin.quarantine()
    assert case.first_body is None
    shop.inbox.admin.resolve(case.case, "keep-first")


@with_mariadb
def test_what_is_not_finished_is_never_pruned(shop: Shop) -> None:
    """R29: due, waiting, backing off, dead, unhandled: all stay with their bodies, and everything around them goes."""
    shop.handle(key="k")
    shop.handle("bad", acts.raising(lambda: Reject("no")), key="k")
    shop.handle("later", acts.raising(lambda: ValueError("later")))
    shop.receive("dead", "bad", data={"k": 1})
    shop.receive("later", "later")
    shop.receive("unknown", "nobody.knows")
    for number in range(20):
        shop.receive(f"done{number}", data={"k": f"own {number}"})
    shop.receive("waits", data={"k": 1})
    shop.drain()
    shop.receive("due", data={"k": 2})
    states = {name: shop.status(name) for name in ("dead", "later", "unknown", "waits", "due")}
    assert states == {"dead": "dead", "later": "retrying", "unknown": "unhandled", "waits": "waiting", "due": "due"}
    rotate_partition(shop)
    for _ in range(2):
        shop.inbox.retention.prune()
    assert {name: shop.status(name) for name in states} == states
    assert shop.count("ledger") == shop.count("body") == 5
    assert shop.count("run") == 0
    shop.handle("nobody.knows")
    with shop.visitor() as other:
        other.handle("bad", key="k")
        other.inbox.admin.redrive(shop.seqs["dead"])
        other.drain()
    shop.inbox.admin.discard(shop.seqs["later"])
    shop.drain()
    assert shop.effects() == sorted([*(f"done{number}" for number in range(20)), "dead", "due", "unknown", "waits"])


def test_a_partition_with_an_unfinished_message_stays_and_shrinks(postgres_url: str) -> None:
    """R29: one dead message does not keep a day of bodies; the partition itself goes when it is decided."""
    with Shop(postgres_url, "def", settings=Settings(body_retention=timedelta(0), maintenance=None)) as shop:
        shop.handle()
        shop.handle("bad", acts.raising(lambda: Reject("no")))
        shop.receive("dead", "bad")
        shop.receive_many(arguments(f"m{number}") for number in range(BATCH + 10))
        shop.drain()
        rotate_partition(shop)
        pruned = shop.inbox.retention.prune()
        assert (pruned.partitions, pruned.bodies, pruned.messages) == (0, BATCH + 10, 0)
        assert shop.detail("dead").body is not None
        shop.inbox.admin.discard(shop.seqs["dead"])
        assert shop.inbox.retention.prune().partitions == 1
        assert [row[0] for row in shop.sql("SELECT number FROM onceward_partition ORDER BY number")] == [1, 2]
        assert shop.receive("next").seq == 10_000_000_000
        shop.drain()


@pytest.mark.parametrize("why", ["dead", "case"])
def test_a_partition_is_looked_at_again_before_it_goes(postgres_url: str, why: str) -> None:
    """R29: what became unfinished after the partition was chosen keeps it; only the look under the lock sees that."""
    with Shop(postgres_url, "def", settings=Settings(body_retention=timedelta(0), maintenance=None)) as shop:
        shop.handle()
        shop.handle("bad", acts.raising(lambda: Reject("no")))
        shop.receive("a", "bad" if why == "dead" else TYPE)
        shop.drain()
        if why == "case":
            assert shop.receive("a", data="other").status == "mismatch"
        rotate_partition(shop)
        assert shop.sql("SELECT onceward_drop_partition(0, false)") == [(False,)]
        assert shop.detail("a").body is not None
        shop.inbox.admin.discard(shop.seqs["a"]) if why == "dead" else shop.inbox.admin.resolve(1, "keep-first")
        assert shop.sql("SELECT onceward_drop_partition(0, false)") == [(True,)]


@with_mariadb
def test_what_is_in_question_is_never_pruned(shop: Shop) -> None:
    """R29, R07: an open case keeps both bodies; a second body that was accepted is remembered as long as itself."""
    shop.handle()
    shop.receive("a", data=1)
    shop.drain()
    assert shop.receive("a", data=2).status == "mismatch"
    rotate_partition(shop)
    shop.inbox.retention.prune()
    (case,) = shop.inbox.admin.quarantine()
    assert (case.first_body, case.other_body) == (b"1", b"2")
    accepted = shop.inbox.admin.resolve(case.case, "accept-as-new")
    shop.inbox.retention.prune()
    assert shop.receive("a", data=2).seq == accepted
    assert shop.receive("a", data=1).status == "duplicate"
    shop.sql("DELETE FROM effects")
    shop.drain()
    rotate_partition(shop)
    for _ in range(2):  # first the accepted one, then the one it came with
        shop.inbox.retention.prune()
    assert shop.count("ledger") == shop.count("quarantine") == 0


@with_mariadb
def test_an_effect_of_unknown_outcome_keeps_its_message(shop: Shop) -> None:
    """R27, R29: whether the call happened is still to be said."""
    shop.handle()
    shop.receive("a")
    shop.drain()
    key = "`key`" if shop.dialect == "mysql" else "key"
    shop.sql(
        f"INSERT INTO {shop.prefix}effect ({key}, seq, name, worker, started_at)"
        f" SELECT 'k', seq, 'charge', 1, received_at FROM {shop.prefix}ledger"
    )
    shop.inbox.retention.prune()
    assert shop.status("a") == "done"
    shop.sql(f"UPDATE {shop.prefix}effect SET done = {'true' if shop.dialect == 'postgres' else '1'}")
    shop.inbox.retention.prune()
    assert shop.count("ledger") == shop.count("effect") == 0


def age(shop: Shop, table: str, column: str, days: int) -> None:
    """Make what a table says about a time so many days older."""
    shop.sql(f"UPDATE {shop.prefix}{table} SET {column} = {column} - {days * 86_400_000_000}")


@pytest.mark.parametrize("end", ["late", "redriven and done", "discarded"])
def test_a_message_is_remembered_from_when_it_was_finished(store_url: str, end: str) -> None:
    """D63: what came 40 days ago and has ended just now is remembered for the whole retention, and no longer."""
    with Shop(store_url, "def", settings=Settings(maintenance=None)) as shop:
        if end != "late":
            shop.handle(behaviour=acts.stumbling(lambda: Reject("the bank is away"), runs=1))
        shop.receive("old")
        shop.drain()
        assert shop.status("old") == ("unhandled" if end == "late" else "dead")
        age(shop, "ledger", "received_at", 40)
        if end == "late":
            shop.handle()
            shop.drain()
        elif end == "discarded":
            shop.inbox.admin.discard(shop.seqs["old"])
        else:
            shop.inbox.admin.redrive(shop.seqs["old"])
            shop.drain()
        age(shop, "audit", "at", 29)
        age(shop, "run", "finished_at", 29)
        assert shop.inbox.retention.prune().messages == 0
        assert shop.receive("old").status == "duplicate"
        age(shop, "audit", "at", 2)
        age(shop, "run", "finished_at", 2)
        pruned = shop.inbox.retention.prune()
        assert (pruned.messages, pruned.runs) == (1, 0 if end == "discarded" else 1)


@with_mariadb
def test_nothing_young_goes(store_url: str) -> None:
    """R30: the defaults keep bodies for days and ids for weeks."""
    with Shop(store_url, "def") as shop:
        shop.handle(behaviour=acts.returning(1))
        shop.receive_many(arguments(f"m{number}") for number in range(30))
        shop.drain()
        before = counts(shop)
        rotate_partition(shop)
        pruned = shop.inbox.retention.prune()
        assert (pruned.messages, pruned.bodies, pruned.partitions, pruned.runs) == (0, 0, 0, 0)
        assert counts(shop) == before


def test_the_walk_goes_past_what_stays(shop: Shop) -> None:
    """Many old dead messages at the front do not keep what comes after them from going."""
    shop.handle()
    shop.handle("bad", acts.raising(lambda: Reject("no")), group=1)
    dead = BATCH + 20
    shop.receive_many(arguments(f"bad{number}", "bad") for number in range(dead))
    shop.drain()
    shop.receive_many(arguments(f"m{number}") for number in range(20))
    shop.drain()
    told: list[int] = []
    pruned = shop.inbox.retention.prune(progress=lambda so_far: told.append(so_far.messages))
    assert pruned.messages == 20
    assert told[-1] == 20
    assert told == sorted(told)
    assert shop.count("ledger") == dead


def test_workers_prune_by_themselves_and_one_at_a_time(store_url: str) -> None:
    """R29: however many run, one has the turn; and while nobody prunes by hand, old messages go."""
    settings = Settings(
        lease=QUICK.lease,
        poll=QUICK.poll,
        maintenance=timedelta(seconds=1),
        body_retention=timedelta(0),
        dedupe_retention=timedelta(0),
    )
    with Shop(store_url, "def", settings=settings) as shop:
        shop.handle()
        other = shop.another(settings=settings)
        other.handle()
        with shop.running(), other.running():
            shop.receive("a")
            wait_until(
                lambda: shop.effects() == ["a"] and not shop.count("ledger"), timeout=30, message="a forgotten message"
            )
        taken = [
            shop.step(in_transaction(shop.inbox.context, Query("take_turn", {"task": "prune", "every": 60.0})))
            for _ in range(3)
        ]
        assert sum(bool(turn) for (turn,) in taken) <= 1


def test_a_turn_is_short_and_the_next_one_goes_on(shop: Shop) -> None:
    """The thread that prunes also renews the lease: it stops in time, and gives the turn away when there is more."""
    shop.handle()
    shop.receive_many(arguments(f"m{number}") for number in range(3 * BATCH))
    shop.drain()
    context = shop.inbox.context
    ticks = iter(range(10_000))
    context.clock = lambda: float(next(ticks))  # every look at the clock is a second later: each turn is one batch
    context.settings = Settings(body_retention=timedelta(0), dedupe_retention=timedelta(0))
    progress, turns = PruneProgress(), 0
    while shop.count("ledger") or shop.count("run"):
        shop.step(maintain(context, progress))
        turns += 1
        assert turns < 30
    assert turns >= 3
    context.clock = time.monotonic


def test_nobody_prunes_where_maintenance_is_off(shop: Shop) -> None:
    """`Settings(maintenance=None)` leaves it to the command line."""
    shop.handle()
    shop.receive("a")
    shop.drain()
    assert shop.step(maintain(shop.inbox.context, PruneProgress())) == 0
    assert shop.count("ledger") == 1


def test_too_short_a_retention_stops_the_start(store_url: str) -> None:
    """R31: where it is said, and in every other program on the same tables, before anything runs or is pruned."""
    with Shop(store_url, "def") as shop:
        with pytest.raises(ConfigurationError, match=r"'kafka' may redeliver for up to 31 days.*dedupe_retention"):
            shop.inbox.retention.declare_source("kafka", redelivers_for=timedelta(days=31))
        shop.inbox.retention.declare_source("sqs", redelivers_for=timedelta(days=14))
        shop.handle()
        shop.receive("a")
        shop.drain()
        other = shop.another(settings=Settings(dedupe_retention=timedelta(days=7)))
        other.handle()
        for start in (other.inbox.drain, other.inbox.retention.prune, lambda: other.receive("b")):
            with pytest.raises(ConfigurationError, match="'sqs' may redeliver for up to 14 days"):
                start()
        assert shop.count("ledger") == 1


def test_a_later_source_that_is_declared_meanwhile_stops_the_pruning_alone(shop: Shop) -> None:
    """R31: the thread that prunes also renews the lease, so it goes on; what would be forgotten too early stays."""
    shop.handle()
    shop.receive("a")
    shop.drain()
    other = shop.another(settings=Settings(dedupe_retention=timedelta(days=90)))
    other.inbox.retention.declare_source("kafka", redelivers_for=timedelta(days=60))
    other.handle()
    other.receive("b")
    shop.inbox.context.settings = Settings(body_retention=timedelta(0), dedupe_retention=timedelta(0))
    assert shop.step(maintain(shop.inbox.context, PruneProgress())) == 0
    assert shop.count("ledger") == 2
    other.drain()


def test_settings_that_contradict_each_other_are_refused() -> None:
    """A body outlives no message."""
    with pytest.raises(ConfigurationError, match="body_retention=8 days"):
        Settings(body_retention=timedelta(days=8), dedupe_retention=timedelta(days=7))
    with pytest.raises(ConfigurationError, match="maintenance"):
        Settings(maintenance=timedelta(0))


def test_partitions_are_used_for_a_day_or_a_part_of_the_retention(sqlite_url: str) -> None:
    """Bodies that are kept for hours go after hours."""
    for retention, expected in ((7, timedelta(days=1)), (1, timedelta(hours=6)), (0, timedelta(minutes=15))):
        inbox = Inbox(sqlite_url, settings=Settings(body_retention=timedelta(days=retention)))
        assert partition_time(inbox.context) == expected
        inbox.close()


def test_a_partition_that_somebody_uses_stays_and_nobody_waits_for_long(postgres_url: str) -> None:
    """A transaction that is open on the bodies is not waited for, and receivers do not queue behind the removal."""
    with Shop(postgres_url, "def", settings=NOW) as shop:
        shop.handle()
        shop.receive("a")
        shop.drain()
        rotate_partition(shop)
        with shop.inbox.transaction() as tx:
            tx.execute("SELECT count(*) FROM onceward_body").fetchall()
            pruning = threading.Thread(target=shop.inbox.retention.prune)
            pruning.start()
            number = 0
            while pruning.is_alive():  # one that waits behind the removal is given up after `lock_wait`
                shop.receive(f"m{(number := number + 1)}")
            assert shop.sql("SELECT count(*) FROM onceward_partition WHERE number = 0") == [(1,)]
        assert shop.inbox.retention.prune().partitions == 1
        shop.drain()


def test_two_that_rotate_the_partition_at_once_never_go_back(postgres_url: str) -> None:
    """The sequence does not roll back: a number that was drawn is never drawn again."""
    with Shop(postgres_url, "def", settings=NOW) as shop:
        shop.handle()
        stop = threading.Event()
        problems: list[BaseException] = []

        def turn() -> None:
            try:
                while not stop.is_set():
                    shop.step(in_transaction(shop.inbox.context, Query("rotate_partition", {"seconds": 0.5})))
            except BaseException as error:  # noqa: BLE001 - reported where the test ends
                problems.append(error)

        threads = [threading.Thread(target=turn) for _ in range(3)]
        for thread in threads:
            thread.start()
        seqs = [0]
        while seqs[-1] < 30_000_000_000:
            seqs.append(shop.receive(f"m{len(seqs)}").seq)
        stop.set()
        for thread in threads:
            thread.join()
        assert problems == []
        assert seqs == sorted(set(seqs))
        shop.drain()
        assert len(shop.effects()) == len(seqs) - 1
        shop.inbox.retention.prune()


RIGHTS = (
    "GRANT USAGE ON SCHEMA public TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
    "GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA public TO {role}",
)


def test_a_role_that_may_only_change_rows_prunes_by_rows(
    postgres_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D51: what is old goes all the same, and the log says once what is missing."""
    monkeypatch.setattr("onceward.steps.prune._TOLD", set())
    with Shop(postgres_url, "def", settings=NOW) as owner:
        rotate_partition(owner)
        role = f"rows_{id(owner)}"
        owner.sql(f"CREATE ROLE {role} LOGIN")
        for statement in RIGHTS:
            owner.sql(statement.format(role=role))
        try:
            with Inbox(postgres_url.replace("postgres@", f"{role}@"), settings=NOW) as inbox:
                inbox.on("order.paid")(lambda _, tx: tx.execute("SELECT 1").fetchall())
                inbox.receive(**arguments("a"))
                assert (inbox.drain(), owner.count("body")) == (1, 1)
                for _ in range(3):
                    inbox.retention.prune()
                assert counts(owner) == {}
        finally:
            owner.sql(f"DROP OWNED BY {role}")
            owner.sql(f"DROP ROLE {role}")
    assert [record.levelname for record in caplog.records if "row by row" in record.getMessage()] == ["WARNING"]
    assert not [record for record in caplog.records if record.exc_info]
