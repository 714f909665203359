"""Receiving while the database is away: what goes to the spool, and how it leaves it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from onceward.errors import InvalidMessage, StoreBusy, StoreConflict, StoreUnavailable
from onceward.message import Delivery, Receipt
from onceward.runtime.spool import Spool
from onceward.runtime.spooling import BATCH, Spooling
from tests.unit.builders import delivery

ACCEPTED = [Receipt("accepted", 1)]


class Database:
    """Stores what it is given, or raises; notes what was still in the spool at that moment."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.refuses: frozenset[str] = frozenset()
        self.stored: list[str] = []
        self.spool: Spool | None = None
        self.left: list[list[str]] = []

    def __call__(self, deliveries: Sequence[Delivery]) -> list[Receipt]:
        if self.spool is not None:
            self.left.append([one.delivery.id for one in self.spool.read(0, 1000)])
        if self.error:
            raise self.error
        if self.refuses & {one.id for one in deliveries}:
            raise InvalidMessage("refused")
        self.stored += [one.id for one in deliveries]
        return ACCEPTED

    def attempt(self) -> list[Receipt]:
        return self([])


def opened(tmp_path: Path) -> tuple[Spooling, Database]:
    """A spool that nothing drains but the test itself."""
    database = Database()
    spooling = Spooling(tmp_path / "spool", database, every=3600)
    spooling.start = lambda: None  # type: ignore[method-assign] # no thread
    database.spool = spooling.spool
    return spooling, database


def many(*names: str) -> list[Delivery]:
    return [delivery(id=name) for name in names]


@pytest.mark.parametrize("kind", ["def", "async"])
@pytest.mark.parametrize("error", [None, StoreUnavailable("away"), StoreBusy("a copy"), InvalidMessage("no")])
def test_only_an_absent_database_leads_to_the_spool(tmp_path: Path, kind: str, error: Exception | None) -> None:
    """What it refuses, and what has another copy in hand, is the caller's."""
    spooling, database = opened(tmp_path)
    database.error = error

    async def attempt() -> list[Receipt]:
        return database.attempt()

    def called() -> list[Receipt]:
        if kind == "def":
            return spooling.attempt(many("m1"), database.attempt)
        return asyncio.run(spooling.attempt_async(many("m1"), attempt))

    if error is None:
        assert (called(), spooling.waiting) == (ACCEPTED, False)
    elif type(error) is StoreUnavailable:
        assert ([one.status for one in called()], spooling.waiting) == (["spooled"], True)
        database.error = None
        assert [one.status for one in called()] == ["spooled"], "behind what waits already"
    else:
        with pytest.raises(type(error)):
            called()
        assert not spooling.waiting


def test_a_message_is_stored_before_it_leaves(tmp_path: Path) -> None:
    """In order, in batches; at each moment of storing all of the batch is still there."""
    spooling, database = opened(tmp_path)
    assert spooling.spool is not None
    names = [f"m{number:03}" for number in range(BATCH + 5)]
    spooling.spool.append(many(*names))
    assert spooling.drain() == len(names)
    assert database.stored == names
    assert database.left == [names, names[BATCH:]]
    assert not spooling.waiting


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreConflict("deadlock")])
def test_while_the_database_is_away_everything_stays(tmp_path: Path, error: Exception) -> None:
    spooling, database = opened(tmp_path)
    assert spooling.spool is not None
    spooling.spool.append(many("m1", "m2"))
    database.error = error
    with pytest.raises(type(error)):
        spooling.drain()
    assert [one.delivery.id for one in spooling.spool.read(0, 10)] == ["m1", "m2"]


def test_one_that_is_refused_is_put_aside_once_another_is_stored(tmp_path: Path) -> None:
    """Until then the database may be at fault, and all wait."""
    spooling, database = opened(tmp_path)
    assert spooling.spool is not None
    database.refuses = frozenset({"bad"})
    spooling.spool.append(many("bad"))
    with pytest.raises(InvalidMessage):
        spooling.drain()
    assert spooling.waiting
    spooling.spool.append(many("good"))
    assert spooling.drain() == 2
    assert (database.stored, spooling.waiting) == (["good"], False)


def test_while_another_process_drains_nothing_is_taken(tmp_path: Path) -> None:
    spooling, database = opened(tmp_path)
    assert spooling.spool is not None
    spooling.spool.append(many("m1"))
    with Spool(spooling.spool.path).draining() as mine:
        assert mine
        assert (spooling.drain(), database.stored, spooling.waiting) == (0, [], True)


def test_without_a_path_there_is_no_spool() -> None:
    spooling = Spooling(None, Database(), every=1)
    with pytest.raises(StoreUnavailable):
        spooling.attempt(many("m1"), away)
    assert (spooling.waiting, spooling.drain()) == (False, 0)
    spooling.stop()


def away() -> list[Receipt]:
    raise StoreUnavailable("away")
