"""Handlers: effects and done are one commit; results, retries, budgets, dead letters."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onceward import Message, Reject, RetryPolicy
from onceward.testing.store_suite.behaviour import Steps, raising, returning
from onceward.testing.store_suite.shop import Shop, arguments


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


def retries(attempts: int) -> RetryPolicy:
    return RetryPolicy(attempts=attempts, first=timedelta(hours=1), jitter=0)


class Unspeakable(Exception):
    """An error that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Handling:
    """Handlers: effects and done are one commit; results, retries, budgets, dead letters."""

    def test_a_message_has_exactly_one_effect(self, shop: Shop) -> None:
        """Stored, run once, done; draining again does nothing."""
        shop.handle()
        shop.receive("m1")
        assert [shop.drain(), shop.drain()] == [1, 0]
        assert (shop.effects(), shop.runs["m1"], shop.status("m1")) == (["m1"], 1, "done")

    def test_a_handler_sees_the_message_as_it_was_sent(self, shop: Shop) -> None:
        """The same message in both modes; the attempt counts from one."""
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

    def test_a_duplicate_returns_the_result_of_the_first_run(self, shop: Shop) -> None:
        """To receive and to process, as JSON would give it back; None is no result."""
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
                assert shop.detail(message_id).result == value

    @pytest.mark.parametrize("how", ["receive", "process"])
    def test_a_result_that_is_not_json_fails_the_attempt_by_name(self, shop: Shop, how: str) -> None:
        """Nothing is counted as done whose result cannot be kept; the error names the type."""
        values = {"object": object(), "set": {object()}, "float": float("nan")}
        for name, value in values.items():
            shop.handle(name, behaviour=returning(value))
            assert not getattr(shop, how)(name, name).finished
        shop.drain()
        assert shop.effects() == []
        for name in values:
            assert shop.status(name) == "dead"
            assert f"returned {name}" in shop.error(name)

    @pytest.mark.parametrize("how", ["receive", "process"])
    def test_no_result_makes_its_duplicates_fail(self, shop: Shop, how: str) -> None:
        """A result is refused when it is returned, or it can be read back; never stored and then unreadable."""
        found = {}
        for name, value in ODD_RESULTS.items():
            shop.handle(name, behaviour=returning(value))
            getattr(shop, how)(name, name)
            shop.drain()
            found[name] = asked_again(shop, name, value)
        assert {name: what for name, what in found.items() if what not in {"refused by name", "returned"}} == {}

    def test_groups_mix_handlers_of_different_kinds(self, shop: Shop) -> None:
        """Sync and async handlers share an inbox and its backlog."""
        shop.handle("sync", kind="def")
        shop.handle("async", kind="async")
        ids = [f"{kind}{number}" for number in range(20) for kind in ("sync", "async")]
        shop.receive_many(arguments(message_id, message_id.rstrip("0123456789")) for message_id in ids)
        shop.finish()  # two transactions that met are tried again in a moment
        assert shop.effects() == sorted(ids)

    def test_reject_is_dead_at_once(self, shop: Shop) -> None:
        """A permanent error spends no second attempt and keeps its reason."""
        shop.handle(behaviour=raising(lambda: Reject("amount is negative")))
        shop.receive("m1")
        shop.drain()
        detail = shop.detail("m1")
        assert (detail.status, detail.attempts, shop.runs["m1"]) == ("dead", 1, 1)
        assert detail.history[0].error == "Reject: amount is negative"
        assert (shop.hurry(), shop.drain(), shop.effects()) == (0, 0, [])

    @pytest.mark.parametrize("how", ["receive", "process"])
    def test_the_budget_is_exact(self, shop: Shop, how: str) -> None:
        """N attempts, n runs, then dead with error, traceback and history; never a run more."""
        shop.handle(behaviour=raising(lambda: ValueError("broken Ünïcode \x00 \ud800")), retry=retries(4))
        getattr(shop, how)("m1")
        shop.drain()
        for attempt in range(1, 4):
            assert (shop.status("m1"), shop.detail("m1").attempts, shop.runs["m1"]) == ("retrying", attempt, attempt)
            assert shop.hurry() == 1
            shop.drain()
        detail = shop.detail("m1")
        assert (detail.status, detail.attempts, shop.runs["m1"], shop.effects()) == ("dead", 4, 4, [])
        assert [(a.attempt, a.kind, a.charged) for a in detail.history] == [(n, "error", True) for n in (1, 2, 3, 4)]
        assert all("ValueError: broken" in (a.traceback or "") for a in detail.history)
        assert "failed 4 times, which is its budget" in detail.history[-1].error
        assert (shop.hurry(), shop.drain()) == (0, 0)
        assert (shop.inbox.admin.stats().dead, shop.inbox.admin.stats().failures) == (1, 4)

    def test_a_single_attempt_is_all_there_is(self, shop: Shop) -> None:
        """A budget of one is one run."""
        shop.handle(behaviour=raising(lambda: RuntimeError("no")), retry=retries(1))
        shop.receive("m1")
        shop.process("m2")
        shop.drain()
        assert [(shop.status(m), shop.runs[m]) for m in ("m1", "m2")] == [("dead", 1)] * 2

    @pytest.mark.parametrize("how", ["receive", "process"])
    def test_whatever_a_handler_raises_is_a_failure_of_its_message(self, shop: Shop, how: str) -> None:
        """No exception ends the worker, skips the bookkeeping or loses the message."""
        kinds = (SystemExit, GeneratorExit, asyncio.CancelledError, StopAsyncIteration, MemoryError, TimeoutError)
        for kind in kinds:
            shop.handle(kind.__name__, behaviour=raising(kind, attempts=1))
            getattr(shop, how)(kind.__name__, kind.__name__)
        shop.handle("calm")
        getattr(shop, how)("calm", "calm")
        shop.drain()
        for kind in kinds:
            assert (shop.status(kind.__name__), shop.detail(kind.__name__).attempts) == ("retrying", 1)
            assert kind.__name__ in shop.error(kind.__name__)
        assert shop.status("calm") == "done"
        shop.finish()
        assert shop.effects() == sorted([*(kind.__name__ for kind in kinds), "calm"])

    @pytest.mark.parametrize("how", ["receive", "process"])
    def test_an_error_without_words_is_recorded_too(self, shop: Shop, how: str) -> None:
        """An exception whose text cannot be made, or is far too long, is an ordinary failure."""
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

    def test_two_workers_share_the_backlog(self, shop: Shop) -> None:
        """Threads and processes without coordination, each message once."""
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
