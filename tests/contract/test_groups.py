"""Groups that never hurt a neighbour: who fails is settled, the others stay, and nobody innocent is called again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from onceward import Message, Reject, Retry, Settings
from onceward.steps.group import SPACING
from tests.contract import behaviour as acts
from tests.contract.behaviour import Do, Inside, Sql, Steps
from tests.contract.harness import Kind, Shop, arguments

TOGETHER = Settings(group_time=timedelta(minutes=1))
"""A group ends when its messages do, however slow the machine is."""
MANY = 60


@pytest.fixture
def shop(store_url: str, kind: Kind) -> Iterator[Shop]:
    """A shop whose groups are as large as they may be."""
    with Shop(store_url, kind, settings=TOGETHER) as shop:
        yield shop


@pytest.fixture
def postgres_shop(postgres_url: str, kind: Kind) -> Iterator[Shop]:
    """The same, for what only PostgreSQL has."""
    with Shop(postgres_url, kind, settings=TOGETHER) as shop:
        yield shop


@pytest.fixture
def _slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every handler takes long enough to have called somebody."""
    monkeypatch.setattr("onceward.steps.group.SLOW", -1.0)


def receive(shop: Shop, count: int = MANY) -> list[str]:
    """So many messages in one go."""
    ids = [f"m{number:02}" for number in range(count)]
    receipts = shop.receive_many(arguments(message_id) for message_id in ids)
    shop.seqs |= {message_id: receipt.seq for message_id, receipt in zip(ids, receipts, strict=True)}
    return ids


def failing(*bad: str, error: Any = lambda: ValueError("no"), wrote: bool = True) -> acts.Behaviour:
    """One effect each; then those named raise."""

    def behaviour(message: Message) -> Steps:
        if wrote or message.id not in bad:
            yield acts.wrote(message)
        if message.id in bad:
            raise error()

    return behaviour


@pytest.mark.usefixtures("_slow")
@pytest.mark.parametrize("bad", [("m30",), ("m59",), ("m00", "m01", "m31", "m58")])
def test_innocents_are_called_once(shop: Shop, bad: tuple[str, ...]) -> None:
    """D34: whatever a neighbour of theirs did outside, in the middle or at the end, is not done again."""
    shop.handle(behaviour=failing(*bad))
    ids = receive(shop)
    shop.drain()
    good = sorted(set(ids) - set(bad))
    assert shop.effects() == good
    assert {shop.runs[one] for one in ids} == {1}
    assert [shop.status(one) for one in bad] == ["retrying"] * len(bad)


def test_one_that_wrote_nothing_disturbs_nobody(shop: Shop) -> None:
    """D34: also where handlers are quick and share a savepoint."""
    shop.handle(behaviour=failing("m07", "m35", wrote=False))
    ids = receive(shop)
    shop.drain()
    assert len(shop.effects()) == MANY - 2
    assert {shop.runs[one] for one in ids} == {1}


def test_quick_ones_share_a_savepoint(shop: Shop) -> None:
    """One that fails takes back what was written since the last, and no more than that; each takes effect once."""
    shop.handle(behaviour=failing("m35"))
    ids = receive(shop)
    shop.drain()
    assert shop.effects() == sorted(set(ids) - {"m35"})
    assert shop.runs["m35"] == 1
    assert sum(shop.runs.values()) < MANY + SPACING


def test_an_explicit_verdict_is_honoured_where_it_is_raised(shop: Shop) -> None:
    """D33: the handler is not asked again."""

    def behaviour(message: Message) -> Steps:
        yield acts.wrote(message)
        if message.id == "m10":
            raise Retry("later", after=3600)
        if message.id == "m20":
            raise Reject("never")

    shop.handle(behaviour=behaviour)
    receive(shop)
    shop.drain()
    assert (shop.runs["m10"], shop.runs["m20"]) == (1, 1)
    assert (shop.status("m10"), shop.status("m20")) == ("retrying", "dead")
    assert len(shop.effects()) == MANY - 2


@pytest.mark.usefixtures("_slow")
def test_the_key_of_one_that_failed_waits_and_others_go_on(shop: Shop) -> None:
    """Its followers go back in the same commit, in whatever group they are."""
    shop.handle(behaviour=failing("a1"), key="k", group=4)
    ids = [f"{key}{number}" for number in range(5) for key in "ab"]
    shop.receive_many(arguments(one, more={"data": {"k": one[0]}}) for one in ids)
    shop.drain()
    assert shop.effects() == ["a0", "b0", "b1", "b2", "b3", "b4"]
    assert [shop.runs[f"a{number}"] for number in range(5)] == [1, 1, 0, 0, 0]


@pytest.mark.usefixtures("_slow")
def test_whoever_swallows_an_error_of_the_database_is_found_at_once(postgres_shop: Shop) -> None:
    """D64: it is called once, its neighbours are not called again, and it is told why."""
    shop = postgres_shop

    def behaviour(message: Message) -> Steps:
        yield acts.wrote(message)
        if message.id == "m30":
            with suppress(Exception):  # what nobody should do
                yield Sql("SELECT 1 / 0")

    shop.handle(behaviour=behaviour)
    ids = receive(shop)
    shop.drain()
    assert {shop.runs[one] for one in ids} == {1}
    assert len(shop.effects()) == MANY - 1
    assert "swallowed a database error" in shop.detail("m30").history[0].error


@pytest.mark.usefixtures("_slow")
def test_a_neighbour_that_runs_too_long_hurts_nobody(postgres_shop: Shop) -> None:
    """Its statement is cancelled, its part of the transaction undone; what the others did stays."""
    shop = postgres_shop

    def behaviour(message: Message) -> Steps:
        yield acts.wrote(message)
        if message.id == "m05":
            yield Sql("SELECT pg_sleep(60)")

    shop.handle(behaviour=behaviour, timeout=0.5)
    ids = receive(shop, 10)
    shop.drain()
    assert {shop.runs[one] for one in ids} == {1}
    assert shop.effects() == sorted(set(ids) - {"m05"})
    assert "HandlerTimeout" in shop.detail("m05").history[0].error


def copies(tx: Any) -> Any:
    """COPY, to its end."""
    cursor = tx.cursor()
    copy = cursor.copy("COPY extra (note) FROM STDIN")
    if hasattr(copy, "__aenter__"):

        async def written() -> None:
            async with copy as rows:
                await rows.write_row(("copied",))

        return written()
    with copy as rows:
        rows.write_row(("copied",))
    return None


WAYS: dict[str, acts.Step] = {
    "copy": Do(copies),
    "pipeline": Inside(lambda tx: tx.pipeline(), (Sql("INSERT INTO extra VALUES ('piped')"),)),
    "savepoint": Inside(lambda tx: tx.transaction(), (Sql("INSERT INTO extra VALUES ('nested')"),)),
}


@pytest.fixture
def extra(postgres_shop: Shop) -> Shop:
    """With a table for what handlers write besides their one effect."""
    postgres_shop.sql("CREATE TABLE extra (note text)")
    return postgres_shop


@pytest.mark.parametrize("way", sorted(WAYS))
def test_what_a_handler_may_do_with_its_transaction(extra: Shop, way: str) -> None:
    """COPY, pipelines and savepoints of its own: undone with the one that fails, kept with the others."""

    def behaviour(message: Message) -> Steps:
        yield WAYS[way]
        yield acts.wrote(message)
        if message.id == "m13":
            raise ValueError("no")

    extra.handle(behaviour=behaviour)
    receive(extra, 30)
    extra.drain()
    assert len(extra.effects()) == 29
    assert extra.sql("SELECT count(*) FROM extra") == [(29,)]


def test_a_transaction_has_few_savepoints(extra: Shop) -> None:
    """Those of handlers count: beyond 64 PostgreSQL is slow for everybody. The group is committed before."""

    def behaviour(message: Message) -> Steps:
        for _ in range(5):
            yield WAYS["savepoint"]
        yield acts.wrote(message)

    extra.handle(behaviour=behaviour)
    receive(extra, 30)
    extra.drain()
    # Every savepoint that something was written under has a number of its own; a run is a transaction.
    sizes = [messages for (messages,) in extra.sql("SELECT messages FROM onceward_run")]
    assert sum(sizes) == 30
    assert max(sizes) <= 10
