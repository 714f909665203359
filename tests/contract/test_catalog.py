"""Who wants what changes while messages come in: nobody is left out, and nobody waits (D06, D09, D18, D30)."""

from __future__ import annotations

import logging
from contextlib import nullcontext

import pytest

from onceward.errors import ConfigurationError, StoreConflict, StoreUnavailable
from onceward.flow import Query
from onceward.steps.context import in_transaction
from tests.contract.caller import own_transaction
from tests.contract.harness import QUICK, Shop
from tests.waiting import wait_until


def test_an_open_transaction_is_in_nobodys_way(postgres_shop: Shop) -> None:
    """D18, D30: of a program that made no other call, with a source that is new to the database.

    Another caller, another receive from that source and another program's start need not wait for its commit.
    """
    shop = postgres_shop
    shop.handle()
    shop.handle("order.sent", consumer="billing")
    with own_transaction(shop, commit=True) as own, shop.visitor() as other:
        other.handle()
        other.handle("order.sent", consumer="billing")
        own.receive("m1", source="new")
        send(shop, own.connection)
        with own_transaction(other, commit=True) as neighbour:
            neighbour.receive("m2", source="new")
        assert other.receive("m3", source="new").status == "accepted"
        assert other.drain() == 2
    assert shop.drain() == 1
    assert shop.effects() == ["m1", "m2", "m3"]


def send(shop: Shop, tx: object) -> None:
    """Send something in a transaction."""
    if shop.kind == "def":
        shop.inbox.send("told", tx=tx)
    else:
        shop.await_(shop.inbox.asend("told", tx=tx))


def test_a_joining_call_writes_nothing_that_is_there(shop: Shop) -> None:
    """D18: a program whose handlers are known, and which only ever joins, changes neither subscriptions nor names."""
    shop.handle(key="id")
    shop.drain()
    before = shop.sql(f"SELECT version FROM {shop.prefix}catalog")
    with shop.visitor() as other:
        other.handle(key="id")
        for number in range(2):
            with own_transaction(other, commit=True) as own:
                own.receive(f"m{number}", source=shop.inbox.context.service)
        assert shop.sql(f"SELECT version FROM {shop.prefix}catalog") == before


def test_a_worker_s_handlers_join_without_introducing_themselves(shop: Shop) -> None:
    """D18: the worker has done that; inside a handler's transaction nothing is subscribed again."""
    shop.handle()
    shop.receive("m1")
    shop.drain()
    state = shop.inbox.context.introduction
    assert state.declared == shop.inbox.context.registry.declared
    with shop.visitor() as worker:
        worker.handle()
        worker.drain()
        assert worker.inbox.context.introduction.declared == worker.inbox.context.registry.declared


def test_a_consumer_that_comes_meanwhile_waits_for_open_transactions(
    postgres_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """D06: what they store reaches it or came before it; its program serves other types, and says who is in the way."""
    shop = postgres_shop
    shop.handle()
    shop.handle("other")
    shop.drain()
    with shop.visitor(settings=QUICK) as later:
        later.handle()
        later.handle("other")
        later.handle("order.paid", consumer="stock")
        with own_transaction(shop, commit=True) as own, caplog.at_level(logging.WARNING, "onceward"):
            own.execute("SET application_name = 'a slow import'")
            own.receive("m1")
            with later.running():
                later.receive("x", "other")
                wait_until(lambda: later.effects() == ["x"])
                with pytest.raises(StoreUnavailable, match=r"'stock' is not subscribed to 'order.paid' yet"):
                    later.receive("m2")
                assert later.inbox.context.introduction.pending == {("stock", "order.paid")}
                own.end(commit=True)
                wait_until(lambda: not later.inbox.context.introduction.pending)
                later.receive("m2")
                wait_until(lambda: ("m2", "stock") in later.notes())
    assert "stock to order.paid" in caplog.text
    assert "a slow import" in caplog.text
    assert ("m1", "stock") not in shop.notes()
    shop.drain()


def test_an_open_transaction_waits_for_no_consumer(postgres_shop: Shop) -> None:
    """D06: one that begins when the consumer is there stores for it, though its program has not heard of it."""
    shop = postgres_shop
    shop.handle()
    shop.receive("m0")
    with own_transaction(shop, commit=True) as own, shop.visitor() as later:
        own.execute("SELECT 1")
        later.handle(consumer="stock")
        later.drain()
        own.receive("m1")
    shop.drain()
    later = shop.another()
    later.handle(consumer="stock")
    later.drain()
    assert shop.notes() == [("m0", "default"), ("m1", "default"), ("m1", "stock")]


def test_a_view_from_before_a_consumer_is_refused(postgres_shop: Shop) -> None:
    """D06: in REPEATABLE READ the caller cannot see the new consumer, and is told to repeat its transaction."""
    shop = postgres_shop
    shop.handle()
    shop.receive("m0")
    with own_transaction(shop, commit=False) as own, shop.visitor() as later:
        own.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        own.execute("SELECT 1")
        own.receive("m1", source="a new source")  # a name that is newer than the view is none of its business
        later.handle(consumer="stock")
        with own_transaction(shop, commit=False) as second:
            second.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            second.execute("SELECT 1")
            own.end(commit=True)
            later.drain()
            with pytest.raises(StoreConflict, match="Roll back and repeat"):
                second.receive("m2")
    assert shop.count("ledger") == 2


def test_a_restored_catalog_is_noticed(shop: Shop) -> None:
    """D09: a restore takes the catalog back, and a new consumer comes: running receivers see another version."""
    shop.handle()
    shop.receive("m0")
    table = f"{shop.prefix}catalog"
    ((before,),) = shop.sql(f"SELECT version FROM {table}")
    shop.step(in_transaction(shop.inbox.context, Query("touch_catalog", {"crash": False})))
    shop.receive("m1")
    shop.sql(f"UPDATE {table} SET version = {before}")  # as the backup has it
    later = shop.another()
    later.handle(consumer="stock")
    later.drain()
    shop.receive("m2")
    shop.drain()
    later.drain()
    assert ("m2", "stock") in shop.notes()


@pytest.mark.parametrize("inline", [False, True], ids=["worker", "inline"])
def test_a_subscription_that_a_failover_takes_back_comes_back(store_url: str, *, inline: bool) -> None:
    """A process that runs notices, and subscribes again; it need not be started again."""
    with Shop(store_url, "def", settings=QUICK) as quick:
        quick.handle()
        if inline:
            quick.process("m1")
        with nullcontext() if inline else quick.running():
            if not inline:
                quick.receive("m1")
                wait_until(lambda: quick.status("m1") == "done")
            for table in ("run", "body", "queue", "ledger"):
                quick.sql(f"DELETE FROM {quick.prefix}{table}")
            quick.sql("DELETE FROM effects")
            quick.sql(f"DELETE FROM {quick.prefix}subscription WHERE type <> '*'")
            quick.sql(f"UPDATE {quick.prefix}catalog SET version = 1")
            if not inline:
                quick.receive("m1")  # perhaps while nobody is subscribed to it
            wait_until(lambda: quick.inbox.admin.subscriptions("default"))
            if inline and not quick.process("m1").finished:
                quick.drain()  # stored first: on a busy machine the lease of this process may have run out meanwhile
            wait_until(lambda: quick.status("m1") == "done")
        assert quick.effects() == ["m1"]


def test_a_retired_consumer_gets_no_more(shop: Shop) -> None:
    """D31: refused while it has unfinished messages, unless they are to be discarded; a program brings it back."""
    shop.handle()
    shop.drain()
    with shop.visitor() as old:
        old.handle(consumer="old", key="id")
        old.receive("m1", data={"id": 1})
    with pytest.raises(ConfigurationError, match="1 unfinished"):
        shop.inbox.admin.unsubscribe("old", reason="retired")
    assert shop.inbox.admin.unsubscribe("old", discard=True, reason="retired") == 1
    receiver = shop.another()
    receiver.receive("m2", data={"id": 1})
    shop.receive("m3", "unknown")  # of a type that nobody handles: a retired subscription waits for nothing
    shop.drain()
    assert shop.notes() == [("m1", "default"), ("m2", "default")]
    assert [line.action for line in shop.inbox.admin.audit()] == ["discard", "unsubscribe"]
    assert shop.inbox.admin.subscriptions("old") == []
    with shop.visitor() as again:
        again.handle(consumer="old", key="id")
        again.drain()
        again.receive("m4", data={"id": 1})
        again.drain()
        assert ("m4", "old") in again.notes()
    shop.drain()
