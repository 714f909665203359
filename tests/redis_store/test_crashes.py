"""Lost answers, cut connections, killed processes and a killed server: every message has its effect once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from onceward import Inbox, Message, StoreError
from onceward.runtime.runner import perform
from onceward.steps.membership import take_over_process
from onceward.testing.store_suite.shop import in_threads
from tests.recorded.service import drain_until
from tests.redis_store.conftest import QUICK, effect, effects
from tests.servers import FaultProxy, RedisServer
from tests.waiting import wait_until, wait_until_async

ROOT = Path(__file__).parents[2]


def sent(inbox: Inbox, one: str, **data: Any) -> None:
    """A producer that goes on until it has a receipt."""
    while True:
        with suppress(StoreError):
            inbox.receive(source="test", id=one, type="order.paid", data=data)
            return


FAULTS = ["drop_request_with", "drop_reply_after"]
Fault = tuple[str, bytes]
ASKED = (b"receive", b"claim", b"finish", b"register", b"look_up")


@pytest.mark.parametrize("fault", [*product(FAULTS, ASKED)], ids=str)
def test_a_request_or_its_answer_is_lost(
    inbox: Inbox, proxied: str, proxy: FaultProxy, client: Any, fault: Fault
) -> None:
    """Whatever the server did or did not do, it is found out, and done once."""
    with Inbox(proxied, settings=QUICK) as working:
        working.on("order.paid", key="key")(effect)
        sent(working, "before", key="k")
        working.drain()
        getattr(proxy, fault[0])(b"\r\n" + fault[1] + b"\r\n")
        for one in ("m1", "m2", "m1"):
            sent(working, one, key="k")
        while effects(client) != ["before", "m1", "m2"]:
            with suppress(StoreError):
                working.drain()
    assert inbox.admin.stats().done == 3
    assert inbox.admin.running() == []


@pytest.mark.parametrize("fault", [*product(FAULTS, [b"begin_direct", b"finish_direct"])], ids=str)
def test_an_inline_message_whose_answer_is_lost(
    inbox: Inbox, proxied: str, proxy: FaultProxy, client: Any, fault: Fault
) -> None:
    with Inbox(proxied, settings=QUICK) as working:
        working.on("order.paid", key="key")(effect)
        message: Any = {"source": "test", "type": "order.paid", "data": {"key": "k"}}
        working.process(id="before", **message)
        getattr(proxy, fault[0])(b"\r\n" + fault[1] + b"\r\n")
        for _ in range(3):
            with suppress(StoreError):
                working.process(id="m1", **message)
        wait_until(lambda: working.drain() or effects(client) == ["before", "m1"])
    assert inbox.admin.stats().done == 2


@pytest.mark.parametrize("fault", [*product(FAULTS, [b"begin_direct", b"finish_direct"])], ids=str)
def test_an_awaited_message_whose_answer_is_lost(
    inbox: Inbox, proxied: str, proxy: FaultProxy, client: Any, fault: Fault
) -> None:
    """The call is made again on another connection, and finds nothing of its own in its way."""

    async def processed() -> str:
        async with asyncio.timeout(60):
            receipt = await working.aprocess(source="test", id="m1", type="order.paid", data={"key": "k"})
        await working.aclose()
        return receipt.outcome

    with Inbox(proxied, settings=QUICK) as working:

        @working.on("order.paid", key="key")
        async def take(message: Message, tx: Any) -> None:
            effect(message, tx)

        getattr(proxy, fault[0])(b"\r\n" + fault[1] + b"\r\n")
        assert (asyncio.run(processed()), proxy.hits) == ("done", 1)
    assert (effects(client), inbox.admin.stats().done) == (["m1"], 1)


def test_connections_cut_while_it_works(inbox: Inbox, proxied: str, proxy: FaultProxy, client: Any) -> None:
    ids = [f"m{number:03}" for number in range(120)]
    working = Inbox(proxied, settings=QUICK)
    working.on("order.paid", key="key")(effect)
    worker = threading.Thread(target=working.run)
    worker.start()
    try:
        for number, one in enumerate(ids):
            if number % 20 == 10:
                proxy.cut()
                proxy.heal()
            sent(working, one, key=f"k{number % 5}")
        wait_until(lambda: len(effects(client)) >= len(ids))
    finally:
        while worker.is_alive():
            working.stop()
            worker.join(0.05)
        working.close()
    found = effects(client)
    assert Counter(found) == Counter(ids)
    for key in range(5):
        assert [one for one in found if int(one[1:]) % 5 == key] == ids[key::5]
    assert inbox.admin.stats().done == len(ids)


def test_the_server_is_killed_and_has_what_it_acknowledged(
    inbox: Inbox, durable_redis: RedisServer, client: Any, address: str
) -> None:
    """Kill -9 with appendfsync always, in the middle of receiving and of working."""
    ids = [f"m{number:03}" for number in range(150)]
    working = Inbox(address, settings=QUICK)
    working.on("order.paid", key="key")(effect)
    worker = threading.Thread(target=working.run)
    worker.start()
    try:
        for number, one in enumerate(ids):
            if number in (50, 100):
                durable_redis.restart()
            sent(working, one, key=f"k{number % 5}")
        wait_until(lambda: len(effects(client)) >= len(ids))
    finally:
        while worker.is_alive():
            working.stop()
            worker.join(0.05)
        working.close()
    found = effects(client)
    assert Counter(found) == Counter(ids)
    for key in range(5):
        assert [one for one in found if int(one[1:]) % 5 == key] == ids[key::5]
    assert inbox.admin.stats().dead == 0


@pytest.fixture
def worker(address: str) -> Iterator[Any]:
    """Starts processes that work; what a test leaves is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "onceward", "run", "tests.redis_store.program:inbox"]
        one = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "REDIS_STORE": address, **environment})
        started.append(one)
        return one

    yield start
    for one in started:
        one.kill()
        one.wait()


@pytest.mark.parametrize("moment", ["in the handler", "after the commit"])
def test_a_process_is_killed(inbox: Inbox, client: Any, worker: Any, moment: str) -> None:
    """Another takes over what it held; what was committed is not run again."""
    ids = [f"m{number}" for number in range(6)]
    for one in ids:
        sent(inbox, one, key="k")
    dying = worker(DIES=moment)
    assert dying.wait(60) == -signal.SIGKILL
    worker()
    wait_until(lambda: len(effects(client)) >= len(ids), timeout=60)
    wait_until(lambda: inbox.admin.stats().done == len(ids))
    assert effects(client) == ids


def test_fifty_copies_at_once_are_one_message(address: str, inbox: Inbox, client: Any) -> None:
    """From ten programs, so that nothing but the server can tell them apart."""
    programs = [Inbox(address, settings=QUICK) for _ in range(10)]
    for one in programs:
        one.on("order.paid")(effect)
        one.drain()
    message: Any = {"source": "test", "id": "m1", "type": "order.paid", "data": {"a": 1}}
    receipts = in_threads(*(lambda one=one: one.receive(**message) for one in programs * 5))
    assert sorted(receipt.status for receipt in receipts) == ["accepted"] + ["duplicate"] * 49
    assert sum(in_threads(*(one.drain for one in programs))) == 1
    assert (effects(client), inbox.admin.stats().duplicates) == (["m1"], 49)
    for one in programs:
        one.close()


def test_fifty_copies_at_once_inline_have_one_effect(address: str, inbox: Inbox, client: Any) -> None:
    programs = [Inbox(address, settings=QUICK) for _ in range(10)]
    for one in programs:
        one.on("order.paid")(effect)

    def process(one: Inbox) -> str:
        while True:
            with suppress(StoreError):
                return one.process(source="test", id="m1", type="order.paid", data={"a": 1}).status

    statuses = in_threads(*(lambda one=one: process(one) for one in programs * 5))
    assert Counter(statuses)["accepted"] == 1
    assert effects(client) == ["m1"]
    for one in programs:
        one.close()
    assert inbox.admin.stats().done == 1


def test_many_workers_keep_the_order_of_keys(address: str, inbox: Inbox, client: Any) -> None:
    ids = [f"m{number:03}" for number in range(200)]
    for number, one in enumerate(ids):
        sent(inbox, one, key=f"k{number % 7}")
    programs = [Inbox(address, settings=QUICK) for _ in range(6)]
    for program in programs:
        program.on("order.paid", key="key", group=4)(effect)
    while len(effects(client)) < len(ids):
        in_threads(*(program.drain for program in programs))
    found = effects(client)
    assert Counter(found) == Counter(ids)
    for key in range(7):
        assert [one for one in found if int(one[1:]) % 7 == key] == ids[key::7]
    for program in programs:
        program.close()


def test_a_key_is_free_when_the_call_that_held_it_was_cancelled(inbox: Inbox, client: Any) -> None:
    """At once: no handler runs any more."""
    message: Any = {"source": "test", "type": "order.paid", "data": {"key": "k"}}

    @inbox.on("order.paid", key="key")
    async def wait(message: Message, tx: Any) -> None:
        if message.id == "m1":
            began.set()
            await asyncio.Event().wait()
        effect(message, tx)

    async def cancelled() -> None:
        call = asyncio.ensure_future(inbox.aprocess(id="m1", **message))
        await began.wait()
        call.cancel()
        await asyncio.wait([call])
        await wait_until_async(free, message="the key to be free")
        assert (await inbox.aprocess(id="m2", **message)).outcome == "done"
        await inbox.aclose()

    async def free() -> bool:
        return not client.keys("onceward_lock:*")

    began = asyncio.Event()
    asyncio.run(cancelled())
    assert effects(client) == ["m2"]


def test_a_process_that_was_declared_dead_commits_nothing_inline(address: str, inbox: Inbox, client: Any) -> None:
    """Its key went to others with it; what it still does must not come beside or after them."""
    message: Any = {"source": "test", "type": "order.paid", "data": {"key": "k"}}
    inbox.on("order.paid", key="key")(effect)
    runs: list[str] = []
    with Inbox(address, settings=QUICK) as dying:

        @dying.on("order.paid", key="key")
        def late(message: Message, tx: Any) -> None:
            effect(message, tx)
            runs.append(message.id)
            if len(runs) == 1:
                (name,) = {one.process for one in inbox.admin.workers()}
                perform(inbox.store, lambda: take_over_process(inbox.context, name, "as the test asks"))
                inbox.receive(**{**given, "id": "m2"})
                inbox.drain()
                seen.extend(effects(client))

        given, seen = message, list[str]()
        with suppress(StoreError):
            dying.process(id="m1", **message)
        assert (seen, effects(client)) == (["m2"], ["m2"])
        sent(inbox, "m1", key="k")
        drain_until(inbox, lambda: effects(client) == ["m2", "m1"], "the one that was passed")
