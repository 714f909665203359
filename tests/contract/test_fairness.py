"""No message waits behind others that it has nothing to do with, and no lane idles while another holds its work.

Where a handler takes its time, that is its own doing; nothing here is judged by a clock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from onceward import Message, Settings
from onceward.steps import membership
from tests.contract.behaviour import Steps, Until, raising, wrote
from tests.contract.harness import Kind, Shop, arguments
from tests.waiting import wait_until

PATIENT = Settings(poll=timedelta(minutes=1), lease=timedelta(minutes=1))
"""Whoever rests without a reason to come back does so for longer than a test waits."""


class Crowd:
    """Handlers that wait for each other: each goes on when so many are at work at the same time."""

    def __init__(self, size: int) -> None:
        self._size, self._lock = size, threading.Lock()
        self._inside = self.largest = 0

    def __call__(self, message: Message) -> Steps:
        with self._lock:
            self._inside += 1
            self.largest = max(self.largest, self._inside)
        yield Until(lambda: self.largest == self._size)
        yield wrote(message)
        with self._lock:
            self._inside -= 1


@pytest.fixture
def patient(store_url: str, kind: Kind) -> Iterator[Shop]:
    """A shop in which nothing happens because time has passed."""
    with Shop(store_url, kind, settings=PATIENT) as shop:
        yield shop


def many(shop: Shop, *ids: str, **more: Any) -> None:
    """Messages that come in one go."""
    receipts = shop.receive_many(arguments(message_id, more=more) for message_id in ids)
    shop.seqs.update((message_id, receipt.seq or 0) for message_id, receipt in zip(ids, receipts, strict=True))


@pytest.mark.parametrize("processes", [1, 2])
def test_every_lane_gets_its_share(postgres_shop: Shop, processes: int) -> None:
    """D35: sixteen messages and eight lanes, of one process or of two: no lane takes what another could run."""
    crowd = Crowd(8)
    shops = [postgres_shop, *(postgres_shop.another() for _ in range(processes - 1))]
    for shop in shops:
        shop.handle(behaviour=crowd)
    with postgres_shop.running(concurrency=8 // processes):
        if processes == 1:
            many(postgres_shop, *(f"m{number}" for number in range(16)))
            wait_until(lambda: len(postgres_shop.effects()) == 16)
        else:
            with shops[1].running(concurrency=4):
                many(postgres_shop, *(f"m{number}" for number in range(16)))
                wait_until(lambda: len(postgres_shop.effects()) == 16)
    assert len(set(postgres_shop.effects())) == 16


def test_a_lane_gives_back_what_turns_out_to_be_slow(postgres_shop: Shop) -> None:
    """D35: what was measured says that it can run them all; while it runs the first of them, it says so no more."""
    lanes: set[Any] = set()

    def behaviour(message: Message) -> Steps:
        if message.id.startswith("slow"):
            lanes.add(threading.get_ident() if postgres_shop.kind == "def" else asyncio.current_task())
            slept_until = time.monotonic() + 0.5
            yield Until(lambda: time.monotonic() > slept_until)
        yield wrote(message)

    postgres_shop.handle(behaviour=behaviour)
    with postgres_shop.running(concurrency=2):
        many(postgres_shop, *(f"quick{number}" for number in range(50)))
        wait_until(lambda: len(postgres_shop.effects()) == 50)
        many(postgres_shop, *(f"slow{number}" for number in range(6)))
        wait_until(lambda: len(postgres_shop.effects()) == 56)
    assert len(lanes) == 2


def test_types_come_in_turn(store_url: str, kind: Kind) -> None:
    """D39: a backlog of one type, whose every attempt fails and takes its time, does not hide the others."""
    with Shop(store_url, kind, settings=Settings(group=10)) as shop:

        def failing(message: Message) -> Steps:
            slept_until = time.monotonic() + 0.01
            yield Until(lambda: time.monotonic() > slept_until)
            yield from raising(lambda: ValueError("no"))(message)

        shop.handle("bad", behaviour=failing)
        shop.handle("good")
        shop.receive_many(arguments(f"bad{number}", "bad") for number in range(400))
        shop.receive_many(arguments(f"good{number}", "good") for number in range(5))
        with shop.running():
            wait_until(lambda: len([one for one in shop.effects() if one.startswith("good")]) == 5)
            assert sum(shop.runs[f"bad{number}"] for number in range(400)) < 400, "good ones waited for all of them"


def test_new_messages_and_retries_come_in_turn(store_url: str, kind: Kind) -> None:
    """D39: a backlog of those that are tried again does not hide new ones of its own type."""
    with Shop(store_url, kind, settings=Settings(group=10)) as shop:

        def behaviour(message: Message) -> Steps:
            slept_until = time.monotonic() + 0.01
            yield Until(lambda: time.monotonic() > slept_until)
            yield from raising(lambda: ValueError("no"), attempts=0 if message.id == "new" else 1)(message)

        shop.handle(behaviour=behaviour)
        shop.receive_many(arguments(f"bad{number}") for number in range(150))
        shop.drain()
        shop.hurry()
        shop.receive("new")
        with shop.running():
            wait_until(lambda: shop.status("new") == "done")
            assert shop.effects() != [], "it has run"
            assert len(shop.effects()) < 151, "it waited for all of them"


def test_rows_that_step_back_hide_nobody(patient: Shop) -> None:
    """D37: earlier ones of a key whose later one runs elsewhere cannot run; who comes after them can."""
    patient.handle(key="k")
    ids = [f"m{number}" for number in range(150)]
    many(patient, *ids, data={"k": "busy"})
    elsewhere = patient.step(
        membership.register(patient.inbox.context, process="elsewhere", host="h", pid=1, inline=False)
    )
    patient.sql(f"UPDATE {patient.prefix}queue SET worker = {elsewhere}, token = 77 WHERE seq = {patient.seqs['m149']}")
    patient.receive("other", data={"k": "free"})
    with patient.running():
        wait_until(lambda: patient.effects() == ["other"])
    patient.declare_dead("elsewhere")
    patient.finish()
    assert sorted(patient.effects()) == sorted([*ids, "other"])


def test_what_is_committed_late_is_found_at_once(postgres_url: str, kind: Kind) -> None:
    """D41: a later message was committed and claimed first; nobody waits for a look from the very beginning."""
    with Shop(postgres_url, kind, settings=PATIENT) as shop:
        shop.handle()
        with shop.running():
            for number in range(20):
                with shop.inbox.transaction() as tx:
                    receipt = shop.inbox.receive(tx=tx, **arguments(f"late{number}"))
                    shop.receive(f"early{number}")
                    assert receipt.seq is not None
                    assert receipt.seq < shop.seqs[f"early{number}"]
                    wait_until(lambda number=number: f"early{number}" in shop.effects())  # type: ignore[misc]
                wait_until(lambda number=number: f"late{number}" in shop.effects())  # type: ignore[misc]
