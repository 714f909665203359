"""Inline processing: effect, ledger row and result in one commit, before the broker is acknowledged (R03, R05)."""

from __future__ import annotations

import asyncio
import sqlite3

import psycopg
import pytest

from onceward import ConfigurationError, Message, Receipt, StoreUnavailable
from tests.contract.behaviour import Do, Steps, Until, stumbling, wrote
from tests.contract.harness import QUICK, Kind, Shop, arguments, in_threads
from tests.contract.journal import journal, journaling, open_journal
from tests.servers import FaultProxy
from tests.waiting import wait_until


def in_two_processes(shop: Shop, other: Shop) -> list[Receipt]:
    """Both process a copy at the same time."""
    if shop.kind == "def":
        return in_threads(*(lambda one=one: one.inbox.process(**arguments("m1")) for one in (shop, other)))

    async def gathered() -> list[Receipt]:
        return await asyncio.gather(*(one.inbox.aprocess(**arguments("m1")) for one in (shop, other)))

    receipts: list[Receipt] = shop.await_(gathered())
    return receipts


def test_a_copy_waits_for_the_one_in_flight(postgres_shop: Shop) -> None:
    """HZ-01: while the first runs its handler, the second is held by the unique key, not answered by a guess."""
    shop, other = postgres_shop, postgres_shop.another()

    def slow(message: Message) -> Steps:
        yield wrote(message)
        yield Until(lambda: shop.waiting_for_locks() == 1)
        return "first"

    shop.handle(behaviour=slow)
    other.handle(behaviour=slow)
    receipts = in_two_processes(shop, other)
    assert sorted((receipt.status, receipt.result) for receipt in receipts) == [
        ("accepted", "first"),
        ("duplicate", "first"),
    ]
    assert shop.runs["m1"] + other.runs["m1"] == 1


def test_a_copy_takes_over_from_one_that_fails(postgres_shop: Shop) -> None:
    """HZ-01: the first rolls back while the second waits: one effect, whoever has it, and no message lost."""
    shop, other = postgres_shop, postgres_shop.another()

    def first_fails(message: Message) -> Steps:
        yield wrote(message)
        if shop.runs[message.id] + other.runs[message.id] == 1:
            yield Until(lambda: shop.waiting_for_locks() == 1)
            raise RuntimeError("the first")

    shop.handle(behaviour=first_fails)
    other.handle(behaviour=first_fails)
    in_two_processes(shop, other)
    shop.finish()
    assert (shop.effects(), shop.count("ledger")) == (["m1"], 1)
    assert shop.process("m1").finished


def test_an_earlier_message_of_the_key_goes_first(shop: Shop) -> None:
    """R17: inline does not overtake; the message is queued behind, and the receipt says so."""
    open_journal(shop)
    shop.handle(key="k", key_required=False, behaviour=journaling)
    shop.receive("first", data={"k": 1})
    receipt = shop.process("second", data={"k": 1})
    assert (receipt.status, receipt.finished) == ("accepted", False)
    assert shop.process("elsewhere", data={"k": 2}).finished
    assert shop.process("without").finished
    shop.drain()
    assert journal(shop) == ["elsewhere", "without", "first", "second"]
    assert shop.process("third", data={"k": 1}).finished


def test_a_failed_inline_message_holds_its_key(shop: Shop) -> None:
    """R17, HZ-42: its retry comes before its successors, inline or not."""
    open_journal(shop)

    def head_fails(message: Message) -> Steps:
        if message.id == "head" and message.attempt == 1:
            raise RuntimeError("not yet")
        yield from journaling(message)

    shop.handle(key="k", behaviour=head_fails)
    assert not shop.process("head", data={"k": 1}).finished
    assert not shop.process("next", data={"k": 1}).finished
    shop.finish()
    assert journal(shop) == ["head", "next"]


def test_sync_code_inside_an_event_loop_is_told_what_to_do(sqlite_shop: Shop) -> None:
    """R05: blocking the loop that the handler needs would hang; it is refused with the way out."""
    sqlite_shop.handle(kind="async")

    async def wrong() -> None:
        sqlite_shop.inbox.process(**arguments("m1"))

    with pytest.raises(ConfigurationError, match="aprocess"):
        asyncio.run(wrong())
    assert sqlite_shop.count("ledger") == 0


def test_a_lost_database_is_said_and_nothing_is_stored(
    proxied_postgres_url: str, postgres_proxy: FaultProxy, kind: Kind
) -> None:
    """R23: `process` raises only because the store is away; the broker delivers again, and then it works."""
    with Shop(proxied_postgres_url, kind) as shop:
        shop.handle()
        shop.process("m0")
        postgres_proxy.cut()
        with pytest.raises(StoreUnavailable):
            shop.process("m1")
        assert shop.runs["m1"] == 0, "nothing is processed that cannot be stored"
        postgres_proxy.heal()
        wait_until(lambda: works(shop, "m1"))
        assert shop.effects() == ["m0", "m1"]


def works(shop: Shop, message_id: str) -> bool:
    try:
        return shop.process(message_id).finished
    except StoreUnavailable:
        return False


def test_an_error_of_the_database_in_the_handler_stores_nothing(shop: Shop) -> None:
    """R13, R23: not the message's fault, so it is not charged: the caller keeps it and tries again."""

    def broken() -> sqlite3.OperationalError:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        return error

    error = broken if shop.dialect == "sqlite" else psycopg.errors.DeadlockDetected
    shop.handle(behaviour=stumbling(error, runs=2))  # once more than it is repeated
    with pytest.raises(StoreUnavailable):
        shop.process("m1")
    assert (shop.count("ledger"), shop.count("attempt"), shop.effects()) == (0, 0, [])
    assert shop.process("m1").finished
    assert shop.effects() == ["m1"]


def test_a_connection_lost_under_an_inline_handler(postgres_shop: Shop) -> None:
    """R13, R23: the backend is ended while the handler runs; repeated or refused, there is one effect in the end."""
    shop = postgres_shop

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if shop.runs["m1"] == 1:
            yield Do(lambda tx: shop.end_backend(tx.info.backend_pid))
            yield wrote(message)

    shop.handle(behaviour=behaviour)
    wait_until(lambda: works(shop, "m1"))
    assert (shop.effects(), shop.count("attempt")) == (["m1"], 0)


def test_after_a_death_messages_are_stored_first(store_url: str, kind: Kind) -> None:
    """R16: somebody died while working inline; until that is long ago, a message is claimed before it runs."""
    with Shop(store_url, kind, settings=QUICK) as shop:
        victim = shop.another(settings=QUICK)
        victim.handle()
        victim.process("before")
        process = victim.inbox.admin.workers()[0].process
        shop.declare_dead(process)
        claimed: list[int] = []

        def looking(message: Message) -> Steps:
            claimed.append(shop.count("queue", f"seq = {message.seq} AND token IS NOT NULL"))
            yield wrote(message)
            if message.id == "moody" and message.attempt == 1:
                raise RuntimeError("not yet")
            return "result"

        shop.handle("stored first", behaviour=looking)
        shop.handle("keyed", behaviour=looking, key="id")
        receipt = shop.process("m1", "stored first")
        assert (receipt.status, receipt.finished, receipt.result) == ("accepted", True, "result")
        assert claimed == [1]
        assert shop.process("m1", "stored first").result == "result"
        assert not shop.process("moody", "stored first").finished
        assert (shop.status("moody"), shop.detail("moody").attempts) == ("retrying", 1)
        shop.process("keyed", "keyed")
        shop.finish()
        assert shop.effects() == ["before", "keyed", "m1", "moody"]
