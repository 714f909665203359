"""Direct batches on real databases: what loses a transaction, who waits for whom, and what is stored first (R61)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

from onceward import Message, Receipt, Settings
from tests.contract.behaviour import Do, Sql, Steps, Until, wrote
from tests.contract.harness import QUICK, TYPE, Kind, Shop, arguments, in_threads
from tests.contract.test_timeouts import LIMIT, overrun, overrunning


def batch(shop: Shop, *names: str) -> list[str]:
    """Handle messages of these types, under these names; what became of each."""
    pairs = [one.partition("/") for one in names]
    given = [arguments(name, kind or TYPE) for name, _, kind in pairs]
    return [receipt.outcome for receipt in shop.process_many(given)]


def test_one_that_overruns_takes_the_batch_with_it_and_is_charged(store_url: str, kind: Kind) -> None:
    """R61, R13: all is rolled back and stored for the workers; no other is charged, nothing is doubled.

    Also where there is time enough to go on with the others.
    """
    with Shop(store_url, kind, settings=Settings(direct_time=timedelta(minutes=10))) as shop:
        shop.handle("calm")
        for name, step in overrunning(shop).items():
            shop.handle(name, behaviour=overrun(step), timeout=LIMIT)
            found = batch(shop, f"{name} 1/calm", f"{name} slow/{name}", f"{name} 2/calm")
            assert found == ["queued", "retrying", "queued"], name
            assert "longer than its timeout" in shop.error(f"{name} slow")
            assert [shop.detail(f"{name} {one}").attempts for one in (1, 2)] == [0, 0]
            assert not any(note.startswith(name) for note in shop.effects())
            shop.finish()
        assert shop.count("queue") == 0


def test_a_handler_that_calls_once_is_for_a_worker(shop: Shop) -> None:
    """R61: the first one is found out; from then on its messages are queued without being run."""
    calls: list[str] = []

    def ask(message: Message) -> str:
        calls.append(message.id)
        return message.id

    def handler(message: Message, tx: object) -> None:
        del tx
        message.once("ask", lambda: ask(message))

    async def async_handler(message: Message, tx: object) -> None:
        del tx
        await message.once("ask", lambda: ask(message))

    shop.handle()
    shop.inbox.on("asks")(handler if shop.kind == "def" else async_handler)
    assert batch(shop, "m1", "a1/asks", "m2") == ["done", "queued", "done"]
    assert batch(shop, "a2/asks", "m3") == ["queued", "done"]
    assert calls == []
    shop.drain()
    assert calls == ["a1", "a2"]


def test_a_batch_waits_for_a_batch_with_copies(postgres_shop: Shop) -> None:
    """R61: open and uncommitted in another process, in another order: each takes effect once, and nobody is refused."""
    shop, other = postgres_shop, postgres_shop.another()

    def slow(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "m1":
            yield Until(lambda: shop.waiting_for_locks() == 1)

    shop.handle(behaviour=slow)
    other.handle(behaviour=slow)
    batches = [[arguments(name) for name in names] for names in (("m1", "m2", "m3"), ("m3", "m4", "m1"))]
    both = list(zip((shop, other), batches, strict=True))
    if shop.kind == "def":
        found = in_threads(*(lambda one=one, these=these: one.inbox.process_many(these) for one, these in both))
    else:

        async def gathered() -> list[list[Receipt]]:
            return await asyncio.gather(*(one.inbox.aprocess_many(cast("Any", these)) for one, these in both))

        found = shop.await_(gathered())
    every = sorted(receipt.outcome for receipts in found for receipt in receipts)
    assert every == ["done"] * 4 + ["duplicate"] * 2
    assert shop.effects() == ["m1", "m2", "m3", "m4"]


def test_a_connection_that_is_lost_under_a_batch(postgres_shop: Shop) -> None:
    """R61, R13: nothing of it is committed; it is stored for the workers, and nobody is charged."""
    shop = postgres_shop

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "m2" and shop.runs["m2"] == 1:
            yield Do(lambda tx: shop.end_backend(tx.info.backend_pid))
            yield wrote(message)

    shop.handle(behaviour=behaviour)
    assert batch(shop, "m1", "m2", "m3") == ["queued"] * 3
    assert shop.effects() == []
    shop.drain()
    assert (shop.effects(), shop.count("attempt")) == (["m1", "m2", "m3"], 0)


def test_a_commit_that_is_refused_has_the_batch_stored(postgres_shop: Shop) -> None:
    """R61: a constraint that is checked at the end names no culprit; the workers find it, and the others are done."""
    shop = postgres_shop
    shop.sql("CREATE TABLE parent (id text PRIMARY KEY)")
    shop.sql("CREATE TABLE child (id text REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "orphan" and message.attempt == 1:
            yield Sql("INSERT INTO child VALUES ('nobody')")

    shop.handle(behaviour=behaviour)
    assert batch(shop, "m1", "orphan", "m2") == ["queued"] * 3
    shop.finish()
    assert shop.effects() == ["m1", "m2", "orphan"]
    assert len(shop.detail("orphan").history) == 1


def test_what_a_handler_has_committed_on_its_own_is_not_lost(postgres_shop: Shop) -> None:
    """R02, R61: the ledger has the batch already; each of it gets its queue row, and the culprit is dead by name."""
    shop = postgres_shop
    shop.handle("calm")

    def behaviour(message: Message) -> Steps:
        yield Sql("SELECT 1")
        yield Do(lambda tx: tx.pgconn.exec_(b"COMMIT; BEGIN"))
        yield wrote(message)

    shop.handle("rogue", behaviour=behaviour)
    receipts = batch(shop, "r1/rogue", "m1/calm", "m2/calm")
    assert receipts[1:] == ["queued", "queued"], shop.error("r1")
    assert shop.count("queue") == 3
    shop.finish()
    assert shop.status("r1") == "dead"
    assert [name for name in shop.effects() if name != "r1"] == ["m1", "m2"]


def test_after_a_death_a_batch_is_stored_first(store_url: str, kind: Kind) -> None:
    """R16, R61: somebody died while working inline, perhaps of one of these."""
    with Shop(store_url, kind, settings=QUICK) as shop:
        victim = shop.another(settings=QUICK)
        victim.handle()
        assert batch(victim, "before", "too") == ["done", "done"]
        shop.declare_dead(victim.inbox.admin.workers()[0].process)
        shop.handle("later")
        assert batch(shop, "m1/later", "m2/later") == ["queued", "queued"]
        shop.drain()
        assert shop.effects() == ["before", "m1", "m2", "too"]


def test_an_error_that_cannot_be_stored_is_stored_without_its_text(shop: Shop) -> None:
    """R61: the database refuses the attempt's row, and with it the batch: it is stored first, without the text."""
    from tests.contract.test_refused_messages import refuse  # noqa: PLC0415 - beside its own tests

    refuse(shop, "attempt", "error", "→")

    def failing(message: Message) -> Steps:
        yield wrote(message)
        if message.id == "bad":
            raise RuntimeError("a → b")

    shop.handle(behaviour=failing)
    assert batch(shop, "m1", "bad") == ["queued", "retrying"]
    assert shop.error("bad") == "RuntimeError: its text could not be stored"
    shop.drain()
    assert shop.effects() == ["m1"]
    shop.inbox.admin.discard(shop.seqs["bad"], reason="test")
