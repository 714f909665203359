"""Handling: one effect per message, exact budgets, innocent neighbours (R04, R08, R13-R15; HZ-51, HZ-52; I6)."""

from __future__ import annotations

import sqlite3
import threading
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from onceward import Message, Retry, RetryPolicy
from tests.contract.behaviour import Sql, Steps, Until, raising, stumbling, wrote
from tests.contract.harness import Shop, arguments


def test_one_of_a_hundred_raises(shop: Shop) -> None:
    """HZ-51, I6: the others finish once and uncharged, the raiser is charged exactly its own attempts."""
    ids = [f"m{number:02}" for number in range(100)]

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "m50":
            raise RuntimeError("I am the one")

    shop.handle(behaviour=behaviour)
    shop.receive_many(arguments(message_id) for message_id in ids)
    assert shop.drain() == 99
    assert shop.effects() == [message_id for message_id in ids if message_id != "m50"]
    (raiser,) = shop.inbox.admin.messages(status="retrying")
    assert (raiser.id, raiser.attempts, shop.count("attempt")) == ("m50", 1, 1)
    shop.finish()
    assert (shop.status(raiser.seq), shop.count("attempt")) == ("dead", 3)


@pytest.mark.parametrize("how", ["raises", "sends a statement that fails"])
def test_several_of_a_hundred_raise(shop: Shop, how: str) -> None:
    """HZ-51, I6: also when so many fail that the lane steps back in its groups; a statement may have aborted them."""
    ids = [f"m{number:02}" for number in range(100)]

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if int(message.id[1:]) % 9 == 0:
            if how != "raises":
                yield Sql("INSERT INTO nowhere VALUES (1)")
            raise RuntimeError("no")

    shop.handle(behaviour=behaviour)
    shop.receive_many(arguments(message_id) for message_id in ids)
    shop.drain(concurrency=2)
    assert shop.effects() == [message_id for message_id in ids if int(message_id[1:]) % 9]
    retrying = shop.inbox.admin.messages(status="retrying")
    assert {(row.attempts, int(row.id[1:]) % 9) for row in retrying} == {(1, 0)}
    assert shop.count("attempt") == len(retrying) == 12


def test_group_one_gives_each_message_its_own_transaction(shop: Shop) -> None:
    """R04: a neighbour's failure does not even make an innocent run again."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "m5":
            raise RuntimeError("no")

    shop.handle(behaviour=behaviour, group=1)
    shop.receive_many(arguments(f"m{number}") for number in range(10))
    shop.drain()
    assert set(shop.runs.values()) == {1}
    assert [len(row) for row in shop.sql(f"SELECT messages FROM {shop.prefix}run WHERE messages = 1")] == [1] * 9


def test_retry_at_once_and_without_a_time(shop: Shop) -> None:
    """R14: `after=0` is due at once; without a time the handler's policy decides; both end at the budget."""
    shop.handle("at once", behaviour=raising(lambda: Retry(after=0)))
    shop.handle("some time", behaviour=raising(Retry))
    shop.receive("m1", "at once")
    shop.receive("m2", "some time")
    shop.drain()
    assert (shop.status("m1"), shop.detail("m1").attempts) == ("dead", 3)
    assert (shop.status("m2"), shop.detail("m2").attempts) == ("retrying", 1)


def test_an_old_message_is_dead_whatever_its_budget(shop: Shop) -> None:
    """R13: beyond the maximum age a failure is the last one, and says so; success is still success."""
    shop.handle(behaviour=raising(lambda: RuntimeError("no")), retry=RetryPolicy(max_age=timedelta(days=1)))
    shop.handle("calm", retry=RetryPolicy(max_age=timedelta(days=1)))
    shop.receive("m1")
    shop.receive("m2", "calm")
    shop.sql(f"UPDATE {shop.prefix}body SET received_at = received_at - 172800000000")
    shop.drain()
    assert (shop.status("m1"), shop.detail("m1").attempts) == ("dead", 1)
    assert "maximum age" in shop.error("m1")
    assert shop.effects() == ["m2"]


def broken() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


def test_errors_of_the_database_are_free(shop: Shop) -> None:
    """R13, HZ-52, I6: more of them than the budget has attempts, and still nobody is charged."""
    error = broken if shop.dialect == "sqlite" else psycopg.errors.SerializationFailure
    shop.handle(behaviour=stumbling(error, runs=5))
    for number in range(3):
        shop.receive(f"m{number}")
    shop.finish()
    assert shop.effects() == ["m0", "m1", "m2"]
    assert min(shop.runs.values()) >= 6
    assert (shop.count("attempt"), shop.inbox.admin.stats().failures) == (0, 0)


def test_a_deadlock_between_handlers_is_free(postgres_shop: Shop) -> None:
    """R13, HZ-52: two handlers that lock two rows in opposite order both finish, uncharged."""
    shop, locked = postgres_shop, set[str]()
    shop.sql("CREATE TABLE accounts AS SELECT unnest(ARRAY['a', 'b']) AS name, 0 AS balance")

    def transfer(message: Message) -> Steps:
        both = Until(lambda: locked >= {"a", "b"})
        for name in (message.id, "b" if message.id == "a" else "a"):
            yield Sql("UPDATE accounts SET balance = balance + 1 WHERE name = %s", (name,))
            locked.add(message.id)
            yield both
        yield wrote(message)

    shop.handle(behaviour=transfer, group=1)
    shop.receive_many([arguments("a"), arguments("b")])
    shop.drain(concurrency=2)
    shop.finish()
    assert shop.effects() == ["a", "b"]
    assert sum(shop.runs.values()) > 2, "there was a deadlock"
    assert (shop.count("attempt"), shop.sql("SELECT sum(balance)::int FROM accounts")) == (0, [(4,)])


def test_a_connection_killed_under_the_handler_is_free(postgres_shop: Shop) -> None:
    """R13, HZ-52: an administrator ends the backend in the middle of the transaction; it is done in the end."""
    shop = postgres_shop

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "victim" and shop.runs["victim"] == 1:
            ((pid,),) = yield Sql("SELECT pg_backend_pid()")
            shop.end_backend(pid)
            yield Sql("SELECT 1")

    shop.handle(behaviour=behaviour)
    shop.receive_many([arguments("m1"), arguments("victim"), arguments("m2")])
    shop.drain()
    shop.finish()
    assert (shop.effects(), shop.count("attempt")) == (["m1", "m2", "victim"], 0)


def test_a_connection_killed_before_the_commit_is_free(postgres_shop: Shop) -> None:
    """HZ-23, HZ-52: the handler has returned and does not know; its effects are gone and come again."""
    shop = postgres_shop

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if shop.runs[message.id] == 1:
            ((pid,),) = yield Sql("SELECT pg_backend_pid()")
            shop.end_backend(pid)

    shop.handle(behaviour=behaviour)
    shop.receive("m1")
    shop.finish()
    assert (shop.effects(), shop.count("attempt"), shop.runs["m1"]) == (["m1"], 0, 2)


def test_retry_after_is_honoured_and_charged(shop: Shop) -> None:
    """R14: the handler says when; it still counts as an attempt."""
    shop.handle(behaviour=raising(lambda: Retry("rate limited", after=timedelta(hours=5)), attempts=1))
    shop.receive("m1")
    shop.drain()
    detail = shop.detail("m1")
    assert detail.due_at is not None
    assert timedelta(hours=4, minutes=50) < detail.due_at - datetime.now(UTC) <= timedelta(hours=5)
    assert (detail.status, detail.attempts, detail.history[0].charged) == ("retrying", 1, True)
    assert "rate limited" in detail.history[0].error
    assert shop.drain() == 0
    shop.finish()
    assert (shop.effects(), shop.runs["m1"]) == (["m1"], 2)


def test_a_drain_ends_when_the_lanes_of_both_kinds_have_nothing_left(store_url: str) -> None:
    """The lane of `async def` handlers is idle, and has ended, before the other is through with what it waits for."""

    def others_have_ended() -> bool:
        return not any(thread.name == "onceward-async" for thread in threading.enumerate())

    def slow(message: Message) -> Steps:
        yield Until(others_have_ended)
        yield wrote(message)

    with Shop(store_url, "def") as shop:
        shop.handle("first", behaviour=slow, kind="def", key="k")
        shop.handle("second", kind="async", key="k")
        for message_id, kind in (("m1", "first"), ("m2", "second"), ("m3", "second")):
            shop.receive(message_id, kind, data={"k": 1})
        assert shop.drain() == 3
        assert shop.effects() == ["m1", "m2", "m3"]
