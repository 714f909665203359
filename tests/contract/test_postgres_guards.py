"""What only PostgreSQL needs: guards that stand alone between a message and its loss, each in the case it is for."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from onceward import Message, Receipt
from onceward.errors import TransactionAborted
from onceward.flow import Begin, Commit, Flow, Query
from onceward.message import Delivery
from onceward.steps import membership
from onceward.steps.receive import receive
from onceward.stores.relational.transaction import Transactions
from tests.contract.behaviour import Do, Sql, Steps, Until, wrote
from tests.contract.harness import Kind, Shop, arguments
from tests.outbox.post import Post
from tests.waiting import wait_until


@pytest.mark.parametrize("how", ["drain", "process"])
def test_a_transaction_that_is_replaced_under_the_driver_is_noticed(postgres_shop: Shop, how: str) -> None:
    """HZ-22: the connection says that a transaction is open. It is another one, and only the fence tells."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        yield Do(lambda tx: tx.pgconn.exec_(b"COMMIT; BEGIN"))
        yield wrote(message, "in the other one")

    postgres_shop.handle(behaviour=behaviour)
    if how == "process":
        postgres_shop.process("m1")
    else:
        postgres_shop.receive("m1")
        postgres_shop.drain()
    assert postgres_shop.status("m1") == "dead"
    assert "ended the transaction" in postgres_shop.error("m1")
    assert postgres_shop.notes() == [("m1", "default")]  # what it has committed itself, and nothing after that
    postgres_shop.sql("DELETE FROM effects")


def test_what_came_behind_a_key_while_its_handler_ran_is_not_forgotten(postgres_url: str, kind: Kind) -> None:
    """HZ-03: with a view from its beginning, the transaction would not see who waits for it, and nobody else looks."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        database = connection.info.dbname
        connection.execute(f"ALTER DATABASE {database} SET default_transaction_isolation = 'repeatable read'".encode())
    begun, parked = threading.Event(), threading.Event()

    def slow(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "m1":
            begun.set()
            yield Until(parked.is_set)

    with Shop(postgres_url, kind) as shop:
        shop.handle(behaviour=slow, key="account")
        other = shop.another()
        other.handle(key="account")
        with shop.running():
            shop.receive("m1", data={"account": 7})
            wait_until(begun.is_set)
            shop.receive("m2", data={"account": 7})
            other.drain()
            assert shop.status("m2") == "waiting"
            parked.set()
            wait_until(lambda: shop.effects() == ["m1", "m2"])


LIMITS = """SELECT current_setting('statement_timeout'), current_setting('lock_timeout'),
                   current_setting('idle_in_transaction_session_timeout')"""


def test_the_server_has_limits_of_its_own_for_a_handler(postgres_shop: Shop) -> None:
    """HZ-61: a little above its timeout, for a process that is too stuck to notice."""
    found: list[tuple[str, ...]] = []

    def looking(message: Message) -> Steps:
        rows = yield Sql(LIMITS)
        found.append(tuple(rows[0]))
        yield wrote(message)

    postgres_shop.handle(behaviour=looking, timeout=timedelta(seconds=7))
    postgres_shop.receive("m1")
    postgres_shop.drain()
    postgres_shop.process("m2")
    assert found == [("12s", "12s", "22s")] * 2


def test_a_process_that_is_stuck_in_its_transaction_does_not_hold_its_key_for_ever(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HZ-61: the server ends a transaction that stands still, and with it what that has locked."""
    direct = Transactions.direct

    def impatient(transactions: Transactions, seconds: float, fence: str, *, returns_soon: bool) -> Begin:
        return replace(direct(transactions, seconds, fence, returns_soon=returns_soon), idle_limit=0.3)

    monkeypatch.setattr(Transactions, "direct", impatient)
    begun, go_on = threading.Event(), threading.Event()

    def stuck(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "m1":
            begun.set()
            yield Until(go_on.is_set)

    with Shop(postgres_url, "def") as shop, shop.visitor() as other:
        for one in (shop, other):
            one.handle(behaviour=stuck, key="account")
        holding = threading.Thread(target=lambda: other.process("m1", data={"account": 7}))
        holding.start()
        wait_until(begun.is_set)
        shop.receive("m2", data={"account": 7})
        wait_until(lambda: shop.drain() == 1)
        assert shop.effects() == ["m2"]
        go_on.set()
        holding.join()  # it finds its connection gone, and begins again
        assert shop.effects() == ["m1", "m2"]


def test_what_is_being_parked_behind_a_key_is_not_forgotten(postgres_url: str) -> None:
    """HZ-40: who removes the first of a key waits for a claim that is not committed yet, and then looks who waits."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "m1":
            begun.set()
            yield Until(go_on.is_set)

    with Shop(postgres_url, "def") as shop, psycopg.connect(postgres_url) as claim:
        shop.handle(behaviour=slow, key="account")
        shop.receive("m1", data={"account": 7})
        draining = threading.Thread(target=shop.drain)
        draining.start()
        wait_until(begun.is_set)
        row = [shop.receive("m2", data={"account": 7}).seq]
        claim.execute("SELECT pg_advisory_xact_lock(key_hash) FROM onceward_queue WHERE seq = %s", row)
        claim.execute("UPDATE onceward_queue SET state = 'waiting' WHERE seq = %s", row)
        go_on.set()
        wait_until(lambda: shop.status("m1") == "done" or shop.waiting_for_locks())
        claim.commit()
        draining.join()
        shop.drain()
        assert shop.effects() == ["m1", "m2"]


def test_what_is_stored_waits_for_inline_work_of_its_key(postgres_url: str) -> None:
    """HZ-40: inline work has no row yet that a claim could see; the lock of the key is all that there is."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(message: Message) -> Steps:
        begun.set()
        yield wrote(message)
        yield Until(go_on.is_set)

    with Shop(postgres_url, "def") as shop, shop.visitor() as other:
        shop.handle(behaviour=slow, key="account")
        other.handle(key="account")
        processing = threading.Thread(target=lambda: shop.process("m1", data={"account": 7}))
        processing.start()
        wait_until(begun.is_set)
        other.receive("m2", data={"account": 7})
        assert other.drain() == 0
        go_on.set()
        processing.join()
        assert (other.drain(), shop.effects()) == (1, ["m1", "m2"])


def lapsed(shop: Shop, worker: int) -> Flow[object]:
    """Its lease has run out, and somebody notices."""
    shop.sql(f"UPDATE onceward_worker SET alive_until = 0 WHERE id = {worker}")
    return membership.take_over_lapsed(shop.inbox.context, 0)


def seen(shop: Shop, worker: int) -> Flow[object]:
    """Its supervisor has seen it die."""
    del worker
    return membership.take_over_process(shop.inbox.context, "claiming", "killed by the test")


def leaving(shop: Shop, worker: int) -> Flow[object]:
    """It deregisters itself."""
    return membership.deregister(shop.inbox.context, worker)


CLAIMS: dict[str, dict[str, Any]] = {
    "claim": {"retries": 1, "cursor": 0, "held": []},
    "claim_outgoing": {"destination": "default", "cursor": 0},
    "claim_isolated": {"destination": None, "held": [], "level": 1},
}
"""What each asks for beside the claim."""


@pytest.mark.parametrize(
    ("claim", "end"),
    [("claim", lapsed), ("claim", seen), ("claim", leaving), ("claim_outgoing", seen), ("claim_isolated", seen)],
)
def test_a_claim_that_is_committed_while_its_worker_ends_is_let_go(postgres_url: str, claim: str, end: Any) -> None:
    """HZ-30: a claim in the name of a worker that is gone would never come off."""
    with Shop(postgres_url, "def") as shop:
        post = Post()
        shop.handle()
        shop.inbox.add_sink("default", post.sink("def"))
        if claim == "claim_outgoing":
            shop.inbox.send("shipped", {"name": "m1"})
        else:
            shop.receive("m1")
        shop.sql(f"UPDATE onceward_queue SET isolation = {int(claim == 'claim_isolated')}")
        worker = shop.step(
            membership.register(shop.inbox.context, process="claiming", host="here", pid=1, inline=False)
        )
        wanted = [row[0] for row in shop.sql("SELECT id FROM onceward_subscription")]
        params = {"worker": worker, "token": 7, "limit": 1, "subscriptions": wanted, **CLAIMS[claim]}
        session = shop.inbox.store.connect()
        assert len(session.perform((shop.inbox.context.short(), Query(claim, params)))[1]) == 1
        ending = threading.Thread(target=lambda: shop.step(end(shop, worker)))
        ending.start()
        wait_until(lambda: not ending.is_alive() or shop.waiting_for_locks())
        session.perform(Commit())
        session.close()
        ending.join()
        if shop.count("worker"):  # one that claims is passed by, for now
            shop.step(end(shop, worker))
        shop.drain()
        assert [*shop.effects(), *post.names] == ["m1"]


def test_batches_that_overlap_do_not_wait_for_each_other_in_a_circle(postgres_url: str) -> None:
    """HZ-02: rows are inserted in the order of their ids, whatever that of the batch is."""
    with Shop(postgres_url, "def") as shop, psycopg.connect(postgres_url) as held:
        shop.receive("m0")
        shop.inbox.receive(**arguments("b"), tx=held)
        context = shop.inbox.context

        def store(*ids: str) -> threading.Thread:
            deliveries = [Delivery.of(**arguments(name)) for name in ids]
            thread = threading.Thread(
                target=lambda: receipts.extend(shop.step(receive(context, context.cache, deliveries)))
            )
            thread.start()
            return thread

        receipts: list[Receipt] = []
        first = store("a", "b", "c")
        wait_until(lambda: shop.waiting_for_locks() == 1)
        second = store("c", "b", "a")
        wait_until(lambda: shop.waiting_for_locks() == 2)
        held.rollback()
        first.join()
        second.join()
        assert Counter(receipt.status for receipt in receipts) == {"accepted": 3, "duplicate": 3}


def test_a_commit_counts_only_when_the_server_says_so(postgres_url: str) -> None:
    """HZ-21: an aborted transaction is answered with ROLLBACK, which is no error."""
    with Shop(postgres_url, "def") as shop:
        session: Any = shop.inbox.store.connect()
        session.perform((shop.inbox.context.short(), Query("names")))
        with pytest.raises(psycopg.DataError):
            psycopg.Cursor(session.connection).execute("SELECT 1 / 0")
        with pytest.raises(TransactionAborted):
            session.perform(Commit())
        session.close()


def test_what_is_promised_is_written_as_surely_as_the_server_writes(postgres_url: str) -> None:
    """HZ-60: received, handled or processed; only claims, which nothing outlives, need not be."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET synchronous_commit = 'local'".encode())
    noted = "INSERT INTO effects (message_id, note) SELECT {what}, current_setting('synchronous_commit')"

    def noting(message: Message) -> Steps:
        yield Sql(noted.format(what="%s"), (f"{message.id} handled",))

    with Shop(postgres_url, "def") as shop:
        body = f"BEGIN {noted.format(what=repr('received'))}; RETURN NULL; END"
        shop.sql(f"CREATE FUNCTION note_it() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
        shop.sql("CREATE TRIGGER note_it AFTER INSERT ON onceward_ledger EXECUTE FUNCTION note_it()")
        shop.handle(behaviour=noting)
        shop.receive("m1")
        shop.drain()
        shop.process("m2")
        names = ["m1 handled", "m2 handled", "received", "received"]
        assert shop.notes() == [(name, "local") for name in names]
        shop.sql("DELETE FROM effects")
