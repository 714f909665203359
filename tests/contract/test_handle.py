"""Handling: one effect per message, exact budgets, innocent neighbours (R04, R08, R13-R15; HZ-51, HZ-52; I6)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from onceward import Message, Reject, Retry, RetryPolicy
from tests.contract.behaviour import Sql, Steps, Until, raising, returning, stumbling, wrote
from tests.contract.harness import Shop, arguments


def test_a_message_has_exactly_one_effect(shop: Shop) -> None:
    """R04: stored, run once, done; draining again does nothing."""
    shop.handle()
    shop.receive("m1")
    assert [shop.drain(), shop.drain()] == [1, 0]
    assert (shop.effects(), shop.runs["m1"], shop.status("m1")) == (["m1"], 1, "done")


def test_a_handler_sees_the_message_as_it_was_sent(shop: Shop) -> None:
    """R05, R09: the same message in both modes; the attempt counts from one."""
    seen: list[Message] = []

    def look(message: Message) -> Steps:
        seen.append(message)
        yield from ()
        if message.attempt < 3:
            raise RuntimeError("again")

    shop.handle(behaviour=look, key="order", version=4)
    shop.receive("m1", data={"order": 7}, headers={"trace": "ab"}, version=4)
    shop.finish()
    shop.process("m2", data={"order": 8}, headers={"trace": "cd"}, version=4)
    shop.finish()
    assert [(m.id, m.attempt) for m in seen] == [(i, n) for i in ("m1", "m2") for n in (1, 2, 3)]
    for message, number, trace in ((seen[0], 7, "ab"), (seen[4], 8, "cd")):
        assert (message.source, message.type, message.version) == ("stripe", "order.paid", 4)
        assert message.consumer == "default"
        assert (message.data, message.headers["trace"], message.key) == ({"order": number}, trace, str(number))
        assert message.body == b'{"order":%d}' % number
        assert message.seq == shop.seqs[message.id]
        assert abs(datetime.now(UTC) - message.received_at) < timedelta(minutes=5)
    assert seen[3].key == "8", "inline, the first attempt too"
    keys = {(m.id, m.idempotency_key("charge")) for m in seen}
    assert len(keys) == len({key for _, key in keys}) == 2, "stable over retries, different between messages"


def test_a_duplicate_returns_the_result_of_the_first_run(shop: Shop) -> None:
    """R08: to receive and to process, as JSON would give it back; None is no result."""
    results: dict[str, Any] = {"object": {"a": [1, 2.5, None, True, "ü"]}, "zero": 0, "false": False, "text": ""}
    for name, value in {**results, "none": None}.items():
        shop.handle(name, behaviour=returning(value))
        assert shop.receive(name, name).result is None
        shop.process(f"{name} inline", name)
    shop.drain()
    for name, value in {**results, "none": None}.items():
        for message_id in (name, f"{name} inline"):
            for ask in (shop.receive, shop.process):
                again = ask(message_id, name)
                assert (again.status, again.finished, again.result) == ("duplicate", True, value)
            assert shop.story(message_id).result == value


@pytest.mark.parametrize("how", ["receive", "process"])
def test_a_result_that_is_not_json_fails_the_attempt_by_name(shop: Shop, how: str) -> None:
    """R08, I3: nothing is counted as done whose result cannot be kept; the error names the type."""
    values = {"object": object(), "set": {1}, "float": float("nan"), "bytes": b"x"}
    for name, value in values.items():
        shop.handle(name, behaviour=returning(value))
        assert not getattr(shop, how)(name, name).finished
    shop.drain()
    assert shop.effects() == []
    for name in values:
        assert shop.status(name) == "dead"
        assert f"returned {name}" in shop.error(name)


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    return value


ODD_RESULTS = {
    "NUL": "a\x00b",
    "NUL inside": {"k": "\x00"},
    "half a character": "\ud800",
    "deep": nested(80),
    "deeper": nested(900),
    "big number": 10**400,
    "bigger number": 10**5000,
    "long": "x" * 2_000_000,
}


@pytest.mark.parametrize("how", ["receive", "process"])
def test_no_result_makes_its_duplicates_fail(shop: Shop, how: str) -> None:
    """R08, HZ-66: a result is refused when it is returned, or it can be read back; never stored and then unreadable."""
    found = {}
    for name, value in ODD_RESULTS.items():
        shop.handle(name, behaviour=returning(value))
        getattr(shop, how)(name, name)
        shop.drain()
        found[name] = asked_again(shop, name, value)
    assert {name: what for name, what in found.items() if what not in {"refused by name", "returned"}} == {}


def asked_again(shop: Shop, name: str, value: Any) -> str:
    """What a duplicate gets to know about a result."""
    try:
        for ask in (shop.receive, shop.process):
            again = ask(name, name)
            assert (again.status, again.finished) == ("duplicate", shop.status(name) == "done")
            assert again.result == (value if again.finished else None)
    except Exception as error:  # noqa: BLE001 - part of the answer
        return f"fails with {type(error).__name__}: {error}"
    if shop.status(name) == "dead":
        return "refused by name" if f"returned {type(value).__name__}" in shop.error(name) else shop.error(name)
    return "returned"


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


def test_groups_mix_handlers_of_different_kinds(shop: Shop) -> None:
    """R05: sync and async handlers share an inbox and its backlog."""
    shop.handle("sync", kind="def")
    shop.handle("async", kind="async")
    ids = [f"{kind}{number}" for number in range(20) for kind in ("sync", "async")]
    shop.receive_many(arguments(message_id, message_id.rstrip("0123456789")) for message_id in ids)
    shop.drain()
    assert shop.effects() == sorted(ids)


def test_reject_is_dead_at_once(shop: Shop) -> None:
    """R14: a permanent error spends no second attempt and keeps its reason."""
    shop.handle(behaviour=raising(lambda: Reject("amount is negative")))
    shop.receive("m1")
    shop.drain()
    story = shop.story("m1")
    assert (story.status, story.attempts, shop.runs["m1"]) == ("dead", 1, 1)
    assert story.history[0].error == "Reject: amount is negative"
    assert (shop.hurry(), shop.drain(), shop.effects()) == (0, 0, [])


def test_retry_after_is_honoured_and_charged(shop: Shop) -> None:
    """R14: the handler says when; it still counts as an attempt."""
    shop.handle(behaviour=raising(lambda: Retry("rate limited", after=timedelta(hours=5)), attempts=1))
    shop.receive("m1")
    shop.drain()
    story = shop.story("m1")
    assert story.due_at is not None
    assert timedelta(hours=4, minutes=50) < story.due_at - datetime.now(UTC) <= timedelta(hours=5)
    assert (story.status, story.attempts, story.history[0].charged) == ("retrying", 1, True)
    assert "rate limited" in story.history[0].error
    assert shop.drain() == 0
    shop.finish()
    assert (shop.effects(), shop.runs["m1"]) == (["m1"], 2)


def test_retry_at_once_and_without_a_time(shop: Shop) -> None:
    """R14: `after=0` is due at once; without a time the handler's policy decides; both end at the budget."""
    shop.handle("at once", behaviour=raising(lambda: Retry(after=0)))
    shop.handle("some time", behaviour=raising(Retry))
    shop.receive("m1", "at once")
    shop.receive("m2", "some time")
    shop.drain()
    assert (shop.status("m1"), shop.story("m1").attempts) == ("dead", 3)
    assert (shop.status("m2"), shop.story("m2").attempts) == ("retrying", 1)


@pytest.mark.parametrize("how", ["receive", "process"])
def test_the_budget_is_exact(shop: Shop, how: str) -> None:
    """R13, R15, I6: n attempts, n runs, then dead with error, traceback and history; never a run more."""
    shop.handle(behaviour=raising(lambda: ValueError("broken Ünïcode \x00 \ud800")), retry=retries(4))
    getattr(shop, how)("m1")
    shop.drain()
    for attempt in range(1, 4):
        assert (shop.status("m1"), shop.story("m1").attempts, shop.runs["m1"]) == ("retrying", attempt, attempt)
        assert shop.hurry() == 1
        shop.drain()
    story = shop.story("m1")
    assert (story.status, story.attempts, shop.runs["m1"], shop.effects()) == ("dead", 4, 4, [])
    assert [(a.attempt, a.kind, a.charged) for a in story.history] == [(n, "error", True) for n in (1, 2, 3, 4)]
    assert all("ValueError: broken" in (a.traceback or "") for a in story.history)
    assert "failed 4 times, which is its budget" in story.history[-1].error
    assert (shop.hurry(), shop.drain()) == (0, 0)
    assert (shop.inbox.admin.stats().dead, shop.inbox.admin.stats().failures) == (1, 4)


def retries(attempts: int) -> RetryPolicy:
    return RetryPolicy(attempts=attempts, first=timedelta(hours=1), jitter=0)


def test_a_single_attempt_is_all_there_is(shop: Shop) -> None:
    """I6: a budget of one is one run."""
    shop.handle(behaviour=raising(lambda: RuntimeError("no")), retry=retries(1))
    shop.receive("m1")
    shop.process("m2")
    shop.drain()
    assert [(shop.status(m), shop.runs[m]) for m in ("m1", "m2")] == [("dead", 1)] * 2


def test_an_old_message_is_dead_whatever_its_budget(shop: Shop) -> None:
    """R13: beyond the maximum age a failure is the last one, and says so; success is still success."""
    shop.handle(behaviour=raising(lambda: RuntimeError("no")), retry=RetryPolicy(max_age=timedelta(days=1)))
    shop.handle("calm", retry=RetryPolicy(max_age=timedelta(days=1)))
    shop.receive("m1")
    shop.receive("m2", "calm")
    ago = "received_at - 172800000000" if shop.dialect == "sqlite" else "received_at - interval '2 days'"
    shop.sql(f"UPDATE {shop.prefix}body SET received_at = {ago}")
    shop.drain()
    assert (shop.status("m1"), shop.story("m1").attempts) == ("dead", 1)
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


@pytest.mark.parametrize("how", ["receive", "process"])
def test_whatever_a_handler_raises_is_a_failure_of_its_message(shop: Shop, how: str) -> None:
    """HZ-27: no exception ends the worker, skips the bookkeeping or loses the message."""
    kinds = (SystemExit, GeneratorExit, asyncio.CancelledError, StopAsyncIteration, MemoryError, TimeoutError)
    for kind in kinds:
        shop.handle(kind.__name__, behaviour=raising(kind, attempts=1))
        getattr(shop, how)(kind.__name__, kind.__name__)
    shop.handle("calm")
    getattr(shop, how)("calm", "calm")
    shop.drain()
    for kind in kinds:
        assert (shop.status(kind.__name__), shop.story(kind.__name__).attempts) == ("retrying", 1)
        assert kind.__name__ in shop.error(kind.__name__)
    assert shop.status("calm") == "done"
    shop.finish()
    assert shop.effects() == sorted([*(kind.__name__ for kind in kinds), "calm"])


class Unspeakable(Exception):
    """An error that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("how", ["receive", "process"])
def test_an_error_without_words_is_recorded_too(shop: Shop, how: str) -> None:
    """HZ-27: an exception whose text cannot be made, or is far too long, is an ordinary failure."""
    shop.handle("silent", behaviour=raising(Unspeakable, attempts=1))
    shop.handle("loud", behaviour=raising(lambda: RuntimeError("x" * 1_000_000), attempts=1))
    shop.handle("several", behaviour=raising(lambda: ExceptionGroup("all", [ValueError("a")]), attempts=1))
    names = ("silent", "loud", "several")
    for name in names:
        getattr(shop, how)(name, name)
    shop.drain()
    for name, words in zip(names, ("Unspeakable", "RuntimeError: xxx", "ExceptionGroup: all"), strict=True):
        assert shop.status(name) == "retrying"
        assert words in shop.error(name)
        assert len(shop.error(name)) <= 2_000
    shop.finish()
    assert shop.effects() == sorted(names)


def test_two_workers_share_the_backlog(shop: Shop) -> None:
    """R11: threads and processes without coordination, each message once."""
    shop.handle(group=5)
    other = shop.another()
    other.handle(group=5)
    shop.receive_many(arguments(f"m{number}") for number in range(200))
    workers = [threading.Thread(target=each.inbox.drain, kwargs={"concurrency": 2}) for each in (shop, other)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    shop.drain()
    assert shop.effects() == sorted(f"m{number}" for number in range(200))
