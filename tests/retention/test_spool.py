"""Receiving while the database is away (R24): nothing lost, nothing doubled, in order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onceward import Settings, StoreError, StoreUnavailable
from onceward.message import Delivery
from onceward.runtime.spool import Spool
from onceward.runtime.spooling import BATCH
from tests.contract.harness import SOURCE, TYPE, Kind, Shop, arguments
from tests.outage import away
from tests.retention.test_spool_file import refused
from tests.servers import PostgresServer
from tests.waiting import wait_until

SOON = Settings(lease=timedelta(seconds=1), poll=timedelta(milliseconds=50))


@pytest.fixture(params=["def", "async"])
def spooling(store_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A shop with a spool, on each store, of each kind."""
    with Shop(store_url, request.param, settings=SOON, spool=tmp_path / "spool") as shop:
        shop.handle(key="k")
        yield shop


def drained(shop: Shop) -> None:
    spool = shop.inbox._receiver.spooling.spool
    assert spool is not None
    wait_until(lambda: spool.is_empty, message="an empty spool")


def test_messages_wait_on_the_disk_and_then_run_in_order(spooling: Shop) -> None:
    """Also copies, and what comes while the spool is not yet empty."""
    shop = spooling
    assert shop.receive("m0", data={"k": 1}).status == "accepted"
    with away(shop.inbox):
        for number in (1, 2, 1, 0, 3):
            receipt = shop.receive(f"m{number}", data={"k": 1})
            assert (receipt.status, receipt.seq, receipt.finished) == ("spooled", 0, False)
        assert [one.status for one in shop.receive_many([arguments("m4", more={"data": {"k": 1}})])] == ["spooled"]
        assert shop.process("m5", data={"k": 1}).status == "spooled"
    drained(shop)
    assert [row.id for row in reversed(shop.inbox.admin.messages())] == [f"m{number}" for number in range(6)]
    shop.drain()
    assert shop.effects() == [f"m{number}" for number in range(6)]
    assert shop.inbox.admin.stats().duplicates == 2
    assert shop.receive("m6", data={"k": 1}).status == "accepted"
    shop.drain()


def test_while_it_is_not_empty_everything_goes_there(spooling: Shop) -> None:
    """Else a later message would be before an earlier one of its key."""
    shop = spooling
    spooled = shop.inbox._receiver.spooling
    assert spooled.spool is not None
    with away(shop.inbox):
        shop.receive("m1", data={"k": 1})
        spooled.stop()
    assert shop.receive("m2", data={"k": 1}).status == "spooled"
    drained(shop)
    assert shop.receive("m3", data={"k": 1}).status == "accepted"
    shop.drain()
    assert shop.effects() == ["m1", "m2", "m3"]


def test_what_a_dead_process_left_is_drained_by_the_next(spooling: Shop) -> None:
    """By whoever works or receives next, or is asked to."""
    shop = spooling
    other = Spool(shop.inbox._receiver.spooling.spool.path)  # type: ignore[union-attr] # it has one
    other.append([Delivery.of(source=SOURCE, id="left", type=TYPE, data={"k": 1})])
    assert shop.inbox.retention.drain_spool() == 1
    assert shop.drain() == 1
    other.append([Delivery.of(source=SOURCE, id="left2", type=TYPE, data={"k": 1})])
    with shop.running():
        wait_until(lambda: "left2" in shop.effects())


def test_a_drain_that_dies_is_done_again(spooling: Shop) -> None:
    """What it had stored is then a duplicate."""
    shop = spooling
    spooled = shop.inbox._receiver.spooling
    with away(shop.inbox):
        for number in range(5):
            shop.receive(f"m{number}", data={"k": number})
        spooled.stop()
    store = spooled._store
    calls = []

    def dies(deliveries: Any) -> Any:
        calls.append(store(deliveries))
        raise StoreUnavailable("gone, after the commit")

    spooled._store = dies
    spooled._stopping.clear()
    with pytest.raises(StoreUnavailable):
        spooled.drain()
    spooled._store = store
    assert spooled.drain() == 5
    shop.drain()
    assert shop.effects() == [f"m{number}" for number in range(5)]


def test_a_joined_transaction_is_not_spooled(store_url: str, tmp_path: Path) -> None:
    """It is stored when the caller's own transaction commits, or not at all."""
    with Shop(store_url, "def", settings=SOON, spool=tmp_path / "spool") as shop:
        shop.handle()
        with shop.inbox.transaction() as tx:
            assert shop.inbox.receive(source=SOURCE, id="a", type=TYPE, data=1, tx=tx).status == "accepted"
        shop.drain()
        assert not (tmp_path / "spool").exists()


def test_without_a_spool_the_caller_is_told(store_url: str) -> None:
    """As ever."""
    with Shop(store_url, "def") as shop, away(shop.inbox), pytest.raises(StoreUnavailable):
        shop.receive("a")


def test_a_message_whose_key_function_is_elsewhere_is_placed_there(store_url: str, tmp_path: Path) -> None:
    """Its key comes from a function that the process with the spool does not have."""
    with Shop(store_url, "def", settings=SOON) as shop:
        shop.handle("keyed", key=lambda message: message.data["k"])
        shop.handle()
        shop.receive("first")
        web = shop.another(settings=SOON, spool=tmp_path / "spool")
        with away(web.inbox):
            web.receive("a")
            web.receive("theirs", "keyed", data={"k": 1})
            web.receive("b")
        drained(web)
        shop.drain()
        assert shop.effects() == ["a", "b", "first", "theirs"]


def test_a_message_that_the_database_refuses_holds_nobody_up(spooling: Shop, tmp_path: Path) -> None:
    """It is put aside, whole, once others can be stored; while none can, the database may be at fault, and all wait."""
    shop, spooled = spooling, spooling.inbox._receiver.spooling
    with away(shop.inbox):
        for name in ("bad", "worse"):
            shop.receive(name, data={"k": 1})
        spooled.stop()
    store = spooled._store

    def refusing(deliveries: Any) -> Any:
        if {one.id for one in deliveries} & {"bad", "worse"}:
            raise StoreError("refused on purpose")
        return store(deliveries)

    spooled._store = refusing
    spooled._stopping.clear()
    with pytest.raises(StoreError, match="on purpose"):
        shop.inbox.retention.drain_spool()
    assert not refused(tmp_path / "spool")
    spooled.spool.append([Delivery.of(source=SOURCE, id="good", type=TYPE, data={"k": 2})])  # type: ignore[union-attr]
    assert shop.inbox.retention.drain_spool() == 3
    aside = "StoreError('refused on purpose')"
    assert refused(tmp_path / "spool") == [("bad", aside), ("worse", aside)]
    shop.drain()
    assert shop.effects() == ["good"]


def spooled(shop: Shop, *ids: str) -> list[list[str]]:
    """Put messages into the spool; answers what a drain tries to store from now on, refusing what begins with "bad"."""
    spooling, tried = shop.inbox._receiver.spooling, list[list[str]]()
    assert spooling.spool is not None
    spooling.spool.append([Delivery.of(source=SOURCE, id=one, type=TYPE, data={"k": one}) for one in ids])
    store = spooling._store

    def refusing(deliveries: Any) -> Any:
        tried.append([one.id for one in deliveries])
        if any(one.id.startswith("bad") for one in deliveries):
            raise StoreError("refused on purpose")
        if any(one.id.startswith("later") for one in deliveries):
            raise StoreUnavailable("away")
        return store(deliveries)

    spooling._store = refusing
    return tried


def test_a_drain_that_fails_half_way_goes_on_from_there(spooling: Shop) -> None:
    """What was placed is not stored once more with every try."""
    ids = [f"m{number:03}" for number in range(BATCH)]
    tried = spooled(spooling, *ids, "later")
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            spooling.inbox.retention.drain_spool()
    assert tried == [ids, ["later"], ["later"]]
    spooling.drain()
    assert len(spooling.effects()) == BATCH


def test_many_that_are_refused_do_not_keep_those_behind_them(spooling: Shop, tmp_path: Path) -> None:
    """Also a whole batch of them: it is put aside when one behind it can be stored."""
    bad = [f"bad{number}" for number in range(BATCH + 1)]
    spooled(spooling, *bad, "good")
    assert spooling.inbox.retention.drain_spool() == BATCH + 2
    assert [one for one, _ in refused(tmp_path / "spool")] == bad
    spooling.drain()
    assert spooling.effects() == ["good"]


def test_one_that_is_refused_alone_waits_longer_and_longer_until_another_comes(
    spooling: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not tried for ever in the same way, and delays nobody."""
    tried = spooled(spooling, "bad")
    with spooling.running():
        wait_until(lambda: "0 s, or when another" in caplog.text and len(tried) >= 2)
        told = [record for record in caplog.records if "could not be drained" in record.msg]
        pauses: list[Any] = [record.args[1] for record in told]  # type: ignore[index] # they have two
        assert pauses == sorted(set(pauses))
        assert spooling.receive("good", data={"k": 1}).status in {"spooled", "accepted"}
        wait_until(lambda: "good" in spooling.effects())
    assert [one for one, _ in refused(tmp_path / "spool")] == ["bad"]


@pytest.mark.parametrize("kind", ["def", "async"])
def test_a_real_outage(private_postgres: PostgresServer, tmp_path: Path, kind: Kind) -> None:
    """The server dies and comes back; the sender was never told to come again."""
    with Shop(private_postgres.url(), kind, settings=SOON, spool=tmp_path / "spool") as shop:
        shop.handle()
        assert shop.receive("before").status == "accepted"
        private_postgres.kill()
        assert [shop.receive(f"m{number}").status for number in range(20)] == ["spooled"] * 20
        private_postgres.start()
        drained(shop)
        assert shop.receive("after").status == "accepted"
        shop.drain()
        assert len(shop.effects()) == 22
