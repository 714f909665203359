"""How far a source was read is kept beside the effects: a database that went back is read up again (R72)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta

import pytest

from onceward import StoreUnavailable
from onceward.admin.doctor import examine
from onceward.brokers.consumer import MODES, Consumer, Mode
from onceward.brokers.envelope import Envelope
from onceward.brokers.kafka import KafkaTopic
from onceward.brokers.positions import Positions
from onceward.brokers.protocol import Arrival
from onceward.flow import run_sync
from onceward.testing.broker_suite.reading import names, publish, settled
from tests.contract.harness import SOURCE, TYPE, Shop
from tests.sources.conftest import reading
from tests.sources.kafka_broker import KafkaBroker
from tests.waiting import wait_until

PART = "log/0"


class Log:
    """A source of one part that keeps everything, as Kafka does; it is told to go back."""

    name, redelivery, positions = "a log", timedelta(days=1), True

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.records: list[str] = []
        self.read = self.committed = 0
        self.before: Callable[[int], None] = lambda _: None
        self._positions: Callable[[], Mapping[str, str]] = dict

    def follow(self, positions: Callable[[], Mapping[str, str]]) -> None:
        self._positions = positions

    async def rewind(self, positions: Mapping[str, str | None]) -> None:
        self.read = min(self.read, int(positions[PART] or 0))

    def reaches_back(self) -> timedelta | None:
        return timedelta(days=7)

    async def open(self) -> None:
        known = self._positions().get(PART)
        self.read = self.committed if known is None else min(self.committed, int(known))

    async def next(self, limit: int, seconds: float) -> list[Arrival]:  # noqa: ARG002 - those of a source
        self.before(self.read)
        found = self.records[self.read : self.read + limit]
        arrivals = [
            Arrival(b"{}", {}, self.read + n, f"log:{one}", one, TYPE, part=PART, behind=str(self.read + n + 1))
            for n, one in enumerate(found)
        ]
        self.read += len(found)
        if not found and self.committed == len(self.records):
            self.stopping.set()
        return arrivals

    async def ack(self, arrivals: Sequence[Arrival]) -> None:
        self.committed = arrivals[-1].handle + 1

    async def nack(self, arrivals: Sequence[Arrival]) -> None:
        self.read = arrivals[0].handle

    async def close(self) -> None:
        """Nothing is open."""


def positions(shop: Shop) -> Mapping[str, str]:
    """Where the database is."""
    with shop.inbox.store.session() as session:
        return run_sync(shop.inbox.context.moves.ledger.positions(SOURCE), session.perform)


def read(shop: Shop, log: Log, mode: Mode, batch: int = 3) -> None:
    """Read the log to its end."""
    log.stopping = asyncio.Event()
    consumer = Consumer(log, Envelope(SOURCE), batch, mode)

    async def run() -> None:
        try:
            await consumer.run(shop.inbox, log.stopping, ask=lambda _: positions(shop))
        finally:
            await shop.inbox.store.async_close()

    asyncio.run(run())
    shop.drain()


@pytest.mark.parametrize("mode", MODES)
def test_the_position_is_kept_with_what_was_read(shop: Shop, mode: Mode) -> None:
    """One row for the part; also where all of a batch is known, and where a single message is all of it."""
    log = Log()
    log.records = list(names(7))
    read(shop, log, mode)
    assert (positions(shop), shop.count("position")) == ({PART: "7"}, 1)
    log.committed = 2
    shop.sql(f"UPDATE {shop.prefix}position SET position = '3'")
    read(shop, log, mode)
    assert (positions(shop), shop.effects()) == ({PART: "7"}, names(7))


@pytest.mark.parametrize("mode", MODES)
def test_a_database_that_was_restored_is_read_up_again(sqlite_url: str, mode: Mode) -> None:
    """R72: from an older copy of the file; what the broker still has comes again by itself, and nothing is doubled."""
    path = sqlite_url.removeprefix("sqlite:///")
    log = Log()
    with Shop(sqlite_url, "def") as shop:
        shop.handle()
        log.records = list(names(6))
        read(shop, log, mode)
        with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(f"{path}.backup")) as backup:
            live.backup(backup)
        log.records = list(names(14))
        read(shop, log, mode)
        assert (shop.effects(), log.committed) == (names(14), 14)
    with closing(sqlite3.connect(f"{path}.backup")) as backup, closing(sqlite3.connect(path)) as live:
        backup.backup(live)
    with Shop(sqlite_url, "def", migrate=False) as shop:
        shop.sql(f"DELETE FROM {shop.prefix}worker")  # who worked when the copy was made is gone
        shop.handle()
        assert shop.effects() == names(6)
        log.records = list(names(16))
        read(shop, log, mode)
        assert (shop.effects(), positions(shop)) == (names(16), {PART: "16"})


@pytest.mark.parametrize("mode", MODES)
def test_commits_that_a_failover_loses_are_read_again(shop: Shop, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    """R72: the reader goes on meanwhile; what it stores then does not hide the gap, and the next look finds it."""
    monkeypatch.setattr("onceward.brokers.positions.LOOK_SECONDS", 0.0)
    log = Log()
    log.records = list(names(20))

    def lose(at: int) -> None:
        """The transactions of messages 6 to 8 are gone, and so is where they brought the position."""
        if at != 9 or not log.records:
            return
        log.before = lambda _: None
        gone = f"(SELECT seq FROM {shop.prefix}body WHERE id IN ('m-006', 'm-007', 'm-008'))"
        shop.sql(f"DELETE FROM {shop.prefix}run WHERE first_seq IN {gone}")
        for table in ("queue", "ledger"):
            shop.sql(f"DELETE FROM {shop.prefix}{table} WHERE seq IN {gone}")
        shop.sql(f"DELETE FROM {shop.prefix}body WHERE id IN ('m-006', 'm-007', 'm-008')")
        shop.sql("DELETE FROM effects WHERE message_id IN ('m-006', 'm-007', 'm-008')")
        shop.sql(f"UPDATE {shop.prefix}position SET position = '6'")

    log.before = lose
    read(shop, log, mode)
    assert (shop.effects(), positions(shop)) == (names(20), {PART: "20"})


def test_a_gap_is_not_hidden_by_what_is_stored_behind_it() -> None:
    """The mark says from where on; a database that is elsewhere keeps none."""
    known = Positions("shop", lambda _: {PART: "5"})
    known.asked()
    (mark,) = known.marks([Arrival(b"", {}, 0, "x", part=PART, behind="9")])
    assert (mark.since, mark.position) == ("5", "9")
    known.kept([mark])
    (later,) = known.marks([Arrival(b"", {}, 0, "y", part=PART, behind="12")])
    assert later.since == "9"


def test_a_look_while_the_database_is_away_leaves_the_parts_to_their_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made again; what is read meanwhile waits in hand. So an outage does not shuffle the parts of a group."""
    monkeypatch.setattr("onceward.brokers.positions.LOOK_SECONDS", 0.0)
    log, answers = Log(), iter(["5", "", "3"])
    log.read = 5

    def ask(_: str) -> Mapping[str, str]:
        if answer := next(answers):
            return {PART: answer}
        raise StoreUnavailable("away")

    known = Positions("shop", ask)
    known.asked()
    asyncio.run(known.look(log))
    assert log.read == 5
    asyncio.run(known.look(log))
    assert log.read == 3


def _kept_after_a_restore(shop: Shop, lost: int) -> int:
    """The last number that is left when so many are lost: they share no run with those that are not."""
    runs = shop.sql(f"SELECT first_seq, last_seq FROM {shop.prefix}run")
    ((last,),) = shop.sql(f"SELECT max(seq) FROM {shop.prefix}ledger")
    kept: int = last - lost
    while torn := [first for first, end in runs if first <= kept < end]:
        kept = min(torn) - 1
    return kept


@pytest.mark.parametrize("mode", MODES)
def test_kafka_is_read_from_the_lower_of_database_and_group(shop: Shop, kafka_broker: KafkaBroker, mode: Mode) -> None:
    """R72: a database that is behind the group, as after a restore; and one that is ahead of it."""
    shop.inbox.add_source(kafka_broker.url(), source="broker", mode=mode, batch=5)
    publish(kafka_broker, *names(30))
    with reading(shop):
        settled(kafka_broker)
        wait_until(lambda: shop.effects() == names(30))
    kept = _kept_after_a_restore(shop, 10)
    ids = [row[0] for row in shop.sql(f"SELECT id FROM {shop.prefix}body WHERE seq > {kept}")]
    marks = ", ".join(f"'{one}'" for one in ids)
    for table, which in (("ledger", "seq"), ("run", "last_seq"), ("body", "seq")):
        shop.sql(f"DELETE FROM {shop.prefix}{table} WHERE {which} > {kept}")
    shop.sql(f"DELETE FROM effects WHERE message_id IN ({marks})")
    shop.sql(f"UPDATE {shop.prefix}position SET position = '0'")
    with reading(shop):
        wait_until(lambda: shop.effects() == names(30))
        settled(kafka_broker)
    found = [finding.what for finding in examine(shop.inbox) if "after a restore" in finding.what]
    assert len(found) == 1
    assert "keeps the last 7 d" in found[0]
    assert KafkaTopic(kafka_broker.url()).reaches_back() == timedelta(days=7)
