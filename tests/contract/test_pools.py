"""Connections that are few: nobody who holds one waits for another's, and copies that wait hold none (D38)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Message, Settings, StoreUnavailable
from onceward.errors import StoreBusy
from tests.contract.behaviour import Do, Steps, Until, wrote
from tests.contract.harness import Kind, Shop, arguments
from tests.waiting import wait_until, wait_until_async

if TYPE_CHECKING:
    from collections.abc import Iterator

FEW = Settings(pool=2, lock_wait=timedelta(milliseconds=200))
Calls = Callable[[Shop, Message], Do]


def once(_: Shop, message: Message) -> Do:
    return Do(lambda _: message.once("charge", lambda: "charged"))


def received(shop: Shop, message: Message) -> Do:
    receive = shop.inbox.receive if shop.kind == "def" else shop.inbox.areceive
    return Do(lambda _: receive(**arguments(f"{message.id} too", "mail")))


def joined(shop: Shop, message: Message) -> Do:
    """With a source that the database has to be told of, on a connection beside."""
    receive = shop.inbox.receive if shop.kind == "def" else shop.inbox.areceive
    return Do(lambda tx: receive(tx=tx, **arguments(message.id, "mail", f"source of {message.id}")))


def sent(shop: Shop, message: Message) -> Do:
    send = shop.inbox.send if shop.kind == "def" else shop.inbox.asend
    return Do(lambda _: send("mail", {"to": message.id}))


def processed(shop: Shop, message: Message) -> Do:
    """By a handler that needs a third connection."""
    process = shop.inbox.process if shop.kind == "def" else shop.inbox.aprocess
    return Do(lambda _: process(**arguments(f"{message.id} too", "inner")))


@pytest.mark.parametrize("call", [once, received, joined, sent, processed], ids=lambda call: call.__name__)
def test_what_handlers_call_does_not_wait_for_connections_of_handlers(
    postgres_url: str, kind: Kind, call: Calls
) -> None:
    """All connections of the pool are with handlers that each need another one."""
    with Shop(postgres_url, kind, settings=FEW) as shop:

        def outer(message: Message) -> Steps:
            yield wrote(message)
            yield Until(lambda: len(shop.runs) >= 2)
            yield call(shop, message)

        def inner(message: Message) -> Steps:
            yield once(shop, message)
            yield wrote(message)

        shop.handle(behaviour=outer)
        shop.handle("inner", behaviour=inner)
        receipts = shop.at_once("process", [arguments("m1"), arguments("m2")])
        assert [(receipt.status, receipt.finished) for receipt in receipts] == [("accepted", True)] * 2
        assert {"m1", "m2"} <= set(shop.effects())
        assert (shop.runs["m1"], shop.runs["m2"]) == (1, 1)


def test_an_effect_holds_no_connection_while_its_call_is_made(postgres_url: str, kind: Kind) -> None:
    """More calls at the same time than connections that record them."""
    with Shop(postgres_url, kind, settings=Settings(pool=3)) as shop:
        calls: list[str] = []

        def call(message: Message) -> Any:
            calls.append(message.id)
            return wait_until(lambda: len(calls) == 3)

        async def async_call(message: Message) -> Any:
            calls.append(message.id)

            async def all_called() -> bool:
                return len(calls) == 3

            return await wait_until_async(all_called)

        def behaviour(message: Message) -> Steps:
            make = call if kind == "def" else async_call
            yield Do(lambda _: message.once("charge", lambda: make(message)))
            yield wrote(message)

        shop.handle(behaviour=behaviour)
        shop.at_once("process", [arguments(f"m{number}") for number in range(3)])
        assert (sorted(calls), shop.effects()) == (["m0", "m1", "m2"], ["m0", "m1", "m2"])


class Slow:
    """A shop that processes one message until it may end, and whose copies come meanwhile."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.may_end = threading.Event()
        self.fails = False

    def __call__(self, message: Message) -> Steps:
        yield wrote(message)
        if message.id == "slow":
            yield Until(self.may_end.is_set)
            if self.fails:
                raise RuntimeError("not yet")


@contextmanager
def at_work(slow: Slow) -> Iterator[Future[Any]]:
    """The slow message is being processed, in a thread of its own."""
    inbox = slow.shop.inbox
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(inbox.process, **arguments("slow"))
        try:
            wait_until(lambda: slow.shop.runs["slow"])
            yield first
        finally:
            slow.may_end.set()


def copies(shop: Shop, method: str, count: int) -> list[Any]:
    """What so many copies at the same time are answered, or raise."""
    if shop.kind == "def":
        call = getattr(shop.inbox, method)
        with ThreadPoolExecutor(count) as pool:
            calls = [pool.submit(call, **arguments("slow")) for _ in range(count)]
            return [one.exception() or one.result() for one in calls]
    call = getattr(shop.inbox, f"a{method}")

    async def gathered() -> list[Any]:
        return await asyncio.gather(*(call(**arguments("slow")) for _ in range(count)), return_exceptions=True)

    answers: list[Any] = shop.await_(gathered())
    return answers


@pytest.mark.parametrize("method", ["process", "receive"])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_copies_of_a_slow_message_give_up_and_leave_connections_for_others(
    postgres_url: str, kind: Kind, method: str, where: str
) -> None:
    """They wait for `lock_wait`, in the process that has it without a connection, in another with one for all."""
    with Shop(postgres_url, kind, settings=FEW) as shop:
        slow = Slow(shop)
        shop.handle(behaviour=slow)
        copying = shop
        if where == "elsewhere":
            copying = shop.another(settings=FEW)
            copying.handle(behaviour=slow)
        with at_work(slow) as first:
            with ThreadPoolExecutor(1) as pool:
                several = pool.submit(copies, copying, method, 8)
                while not several.done():  # they are at it all the time
                    other = f"other {len(copying.seqs)}"
                    copying.seqs[other] = copying.inbox.receive(**arguments(other)).seq
            for error in several.result():
                assert isinstance(error, StoreBusy)
                assert isinstance(error, StoreUnavailable)
                assert "another copy" in str(error)
                assert "deliver it again" in str(error)
            slow.may_end.set()
            assert first.result().finished

        def known() -> bool:
            receipts = copies(copying, method, 8)
            if any(isinstance(each, StoreBusy) for each in receipts):
                return False  # on a busy machine one may wait longer than `lock_wait`: then it comes again
            assert {(receipt.status, receipt.finished) for receipt in receipts} == {("duplicate", True)}
            return True

        wait_until(known)
        shop.drain()
        assert shop.effects().count("slow") == 1
        assert copying.seqs


def test_copies_wait_for_the_first_and_learn_its_result(shop: Shop) -> None:
    """On each store: those that wait in the process take turns only when the first has failed."""
    slow = Slow(shop)
    shop.handle(behaviour=slow)
    with at_work(slow) as first:
        waiting = shop.inbox._receiver.copies.turns[("stripe", "slow")]
        with ThreadPoolExecutor(1) as pool:
            several = pool.submit(copies, shop, "process", 4)
            wait_until(lambda: len(waiting) == 4)
            slow.may_end.set()
        assert (first.result().status, [one.status for one in several.result()]) == ("accepted", ["duplicate"] * 4)
    assert (shop.effects(), shop.runs["slow"]) == (["slow"], 1)


def test_a_busy_copy_is_not_spooled(store_url: str, kind: Kind, tmp_path: Path) -> None:
    """The database is there: other messages need not wait in the spool for the end of a slow one."""
    with Shop(store_url, kind, settings=FEW, spool=tmp_path / "spool") as shop:
        slow = Slow(shop)
        shop.handle(behaviour=slow)
        with at_work(slow):
            errors = [*copies(shop, "process", 1), *copies(shop, "receive", 1)]
        assert [type(error) for error in errors] == [StoreBusy] * 2
        assert not (tmp_path / "spool").exists()
        assert shop.effects() == ["slow"]
