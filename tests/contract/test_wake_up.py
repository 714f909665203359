"""A new message is picked up at once; polling is the fallback (R22, HZ-64)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from threading import Event

import pytest

from onceward import Message, Reject, Settings
from onceward.flow import Wait
from onceward.runtime.wakeup import Waiter
from tests.contract.behaviour import Steps, Until, effect, raising, wrote
from tests.contract.caller import own_transaction
from tests.contract.harness import QUICK, Kind, Shop, arguments
from tests.waiting import wait_until

HARDLY_EVER = Settings(poll=timedelta(minutes=10), lease=timedelta(minutes=10))
LONG = 60
"""Seconds: no look that is repeated for a reason waits for so long."""


@pytest.fixture
def sleepy(store_url: str, kind: Kind) -> Iterator[Shop]:
    """A shop whose workers look by themselves only every ten minutes."""
    with Shop(store_url, kind, settings=HARDLY_EVER) as shop:
        yield shop


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> set[Waiter]:
    """The lanes that rest until the next poll, unless they are woken."""
    resting: set[Waiter] = set()
    rest, async_rest = Waiter.rest, Waiter.async_rest

    def seen(waiter: Waiter, request: Wait) -> bool:
        resting.update([waiter] if request.seconds > LONG else [])
        try:
            return rest(waiter, request)
        finally:
            resting.discard(waiter)

    async def async_seen(waiter: Waiter, request: Wait) -> bool:
        resting.update([waiter] if request.seconds > LONG else [])
        try:
            return await async_rest(waiter, request)
        finally:
            resting.discard(waiter)

    monkeypatch.setattr(Waiter, "rest", seen)
    monkeypatch.setattr(Waiter, "async_rest", async_seen)
    return resting


moody = raising(lambda: Reject("not now"))


def done(shop: Shop, *ids: str) -> None:
    wait_until(lambda: set(ids) <= set(shop.effects()), message=f"{ids} done")


def test_a_message_from_another_process_is_picked_up_at_once(sleepy: Shop) -> None:
    """R22: however it comes in, and again and again."""
    sleepy.handle()
    receiver = sleepy.another(settings=HARDLY_EVER)
    with sleepy.running():
        for number in range(3):
            receiver.receive(f"single {number}")
            done(sleepy, f"single {number}")
        receiver.receive_many([arguments("batch 1"), arguments("batch 2")])
        done(sleepy, "batch 1", "batch 2")
        with own_transaction(receiver, commit=True) as own:
            own.receive("joined")
        done(sleepy, "joined")
        receiver.process("from process")  # it has no handler there
        done(sleepy, "from process")
        sleepy.receive("own")
        done(sleepy, "own")


def test_an_operators_action_is_picked_up_at_once(sleepy: Shop) -> None:
    """R22: a redrive, a discarded head and an accepted body are work too."""
    refused = ["m1"]
    sleepy.handle(
        key="k",
        key_required=False,
        behaviour=lambda message: moody(message) if message.id in refused else effect(message),
    )
    operator = sleepy.another(settings=HARDLY_EVER)
    with sleepy.running():
        for message_id in ("m1", "m2"):
            sleepy.receive(message_id, data={"k": 1})
        wait_until(lambda: sleepy.status("m2") == "waiting" and sleepy.status("m1") == "dead")
        refused.clear()
        operator.inbox.admin.redrive(sleepy.seqs["m1"])
        done(sleepy, "m1", "m2")
        sleepy.receive("m3", data="first")
        done(sleepy, "m3")
        operator.receive("m3", data="other")
        operator.inbox.admin.resolve(operator.inbox.admin.quarantine()[0].case, "accept-as-new")
        wait_until(lambda: len(sleepy.effects()) == 4)


def test_a_successor_that_was_unblocked_is_picked_up_at_once(sleepy: Shop) -> None:
    """R18, R22: when an operator discards the head, what waited behind it runs."""
    sleepy.handle(
        key="k", key_required=False, behaviour=lambda message: moody(message) if message.id == "m1" else effect(message)
    )
    operator = sleepy.another(settings=HARDLY_EVER)
    with sleepy.running():
        for message_id in ("m1", "m2"):
            sleepy.receive(message_id, data={"k": 1})
        wait_until(lambda: sleepy.status("m2") == "waiting" and sleepy.status("m1") == "dead")
        operator.inbox.admin.discard(sleepy.seqs["m1"])
        done(sleepy, "m2")


def test_a_lost_listener_comes_back(postgres_url: str, kind: Kind) -> None:
    """HZ-64: the connection that listens is killed; it listens again, and looks for what it missed."""
    with Shop(postgres_url, kind, settings=HARDLY_EVER) as shop:
        shop.handle()
        receiver = shop.another(settings=HARDLY_EVER)
        listening = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        with shop.running():
            receiver.receive("m1")
            done(shop, "m1")
            for (pid,) in wait_until(lambda: shop.sql(listening)):
                shop.sql("SELECT pg_terminate_backend(%s)", pid)
            receiver.receive("m2")
            done(shop, "m2")


def test_polling_alone_is_enough(store_url: str, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """R22, HZ-64: with no notification at all, messages and retries are found by looking."""

    class Deaf:
        def close(self) -> None:
            """Nothing to stop."""

    with Shop(store_url, kind, settings=QUICK) as shop:
        monkeypatch.setattr(shop.inbox.store, "watch", lambda _: Deaf())
        monkeypatch.setattr(shop.inbox.store, "notify", lambda: None)
        shop.handle(behaviour=raising(lambda: RuntimeError("not yet"), attempts=1))
        with shop.running():
            for number in range(3):
                shop.receive(f"m{number}")
                wait_until(lambda n=number: shop.status(f"m{n}") == "retrying")  # type: ignore[misc]
                shop.hurry()
                done(shop, f"m{number}")


def test_what_a_stopped_process_gives_back_is_picked_up_at_once(sleepy: Shop, asleep: set[Waiter]) -> None:
    """R22: a process stops, and does not wait for its handler; the others have what it had claimed."""
    stopped, told = sleepy.another(settings=replace(HARDLY_EVER, stop_timeout=timedelta(milliseconds=100))), Event()
    ids = [f"m{number}" for number in range(5)]

    def slow(message: Message) -> Steps:
        yield Until(told.is_set)
        yield wrote(message)

    stopped.handle(behaviour=slow)
    sleepy.handle()
    for message_id in ids:
        sleepy.receive(message_id)
    with ExitStack() as working:
        with stopped.started() as ended:
            wait_until(lambda: stopped.runs["m0"] == 1)
            assert len(sleepy.inbox.admin.running()) == len(ids)
            working.enter_context(sleepy.running())
            sleepy.receive("probe")
            done(sleepy, "probe")
            wait_until(lambda: len(asleep) == 1, message="the other worker to rest")
            stopped.inbox.stop()
            wait_until(ended)
        done(sleepy, *ids)
        told.set()


@pytest.mark.parametrize(("first", "second"), [("def", "async"), ("async", "def")])
def test_a_successor_that_others_handle_is_picked_up_at_once(
    sleepy: Shop, asleep: set[Waiter], first: Kind, second: Kind
) -> None:
    """R18, R22: in one key messages of a `def` and of an `async def` handler follow each other."""

    def first_waits(message: Message) -> Steps:
        yield Until(lambda: "m2" in sleepy.seqs and sleepy.status("m2") == "waiting" and len(asleep) == 1)
        yield wrote(message)

    sleepy.handle("a", first_waits, first, key="k")
    sleepy.handle("b", effect, second, key="k")
    with sleepy.running():
        sleepy.receive("m1", "a", data={"k": 1})
        wait_until(lambda: sleepy.runs["m1"])
        sleepy.receive("m2", "b", data={"k": 1})
        done(sleepy, "m1", "m2")
