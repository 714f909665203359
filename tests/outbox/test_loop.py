"""Inbox, outbox, inbox: exactly once on both sides, on one database or two, whoever is killed (R25, HZ-80)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onceward.steps.introduce import subscribe
from onceward.steps.membership import take_over_process
from tests.contract.harness import Shop, arguments
from tests.contract.health import assert_healthy
from tests.nursery import Child, Nursery
from tests.order.conftest import ALL
from tests.order.ledger import NUMBER
from tests.outbox.post import into
from tests.outbox.program import register
from tests.waiting import wait_until

KEYS = "abcdef"


class Loop:
    """Two inboxes, the first one's outbox leading into the second; each handler writes a row into its own table."""

    def __init__(self, first: Shop, second: Shop) -> None:
        self.first, self.second = first, second
        for shop, table in ((first, "first_rows"), (second, "second_rows")):
            shop.sql(f"CREATE TABLE {table} (n {NUMBER[shop.dialect]}, name text, account text)")

    def rows(self, which: str) -> list[tuple[str, str]]:
        """The rows of one side, in the order of their commits (a key's are in order)."""
        shop = self.first if which == "first" else self.second
        return [(name, key) for name, key in shop.sql(f"SELECT name, account FROM {which}_rows ORDER BY n")]

    def feed(self, *batches: list[dict[str, Any]]) -> None:
        """Deliver messages, and wait until something more has come through."""
        reached = len(self.rows("second"))
        for batch in batches:
            self.first.receive_many(batch)
        wait_until(lambda: len(self.rows("second")) > reached, message="some progress")

    def assert_exactly_once(self, names: list[str]) -> None:
        """Every message took effect once on either side, each key in order, and nothing is left or dead."""
        for which in ("first", "second"):
            rows = self.rows(which)
            assert Counter(name for name, _ in rows) == Counter(names), which
            for key in KEYS:
                assert [name for name, its in rows if its == key] == [name for name in names if name[0] == key], which
        for shop in (self.first, self.second):
            stats = shop.inbox.admin.stats()
            assert (stats.dead, stats.outbox_dead, stats.outbox_unsent, stats.waiting, stats.due) == (0, 0, 0, 0, 0)
            assert_healthy(shop.inbox)


def named(count: int) -> list[str]:
    """Names `a0 b0 ... a1 b1 ...`, whose first letter is their key."""
    return [f"{KEYS[number % len(KEYS)]}{number // len(KEYS)}" for number in range(count)]


def deliveries(names: list[str]) -> list[dict[str, Any]]:
    """The arguments of `receive`."""
    return [arguments(name, "step", more={"data": {"k": name[0], "name": name}}) for name in names]


@contextmanager
def two_prefixes(url: str, kind: Any) -> Iterator[Loop]:
    """One database, two prefixes."""
    with Shop(url, kind) as first:
        second = first.another(prefix="second_")
        second.inbox.migrate()
        yield Loop(first, second)


@contextmanager
def two_databases(url: str, other: str, kind: Any) -> Iterator[Loop]:
    """Two databases of their own."""
    with Shop(url, kind) as first, Shop(other, kind, prefix="second_") as second:
        yield Loop(first, second)
        second.inbox.close()
        first.inbox.close()


@pytest.mark.parametrize("where", ALL)
def test_on_one_database(request: pytest.FixtureRequest, where: str) -> None:
    """Two prefixes; every message is delivered twice, and sent once more by hand, as a relay that died would."""
    store, _, kind = where.partition("-")
    with two_prefixes(request.getfixturevalue(f"{store}_url"), kind) as loop:
        register(loop.first, "first_rows", sends=True)
        register(loop.second, "second_rows", sends=False)
        sink = into(loop.second.inbox, source="loop")
        loop.first.inbox.add_sink("default", sink)
        names = named(30)
        loop.first.receive_many([*deliveries(names), *deliveries(names)])
        loop.first.drain()
        for row in loop.first.inbox.admin.messages(outgoing=True, limit=5):
            detail = loop.first.detail(row.seq)
            receipt = loop.second.receive(row.id, row.type, "loop", body=detail.body, key=row.key)
            assert receipt.status == "duplicate"
        loop.second.drain()
        loop.assert_exactly_once(names)


@pytest.mark.parametrize("kind", ["def", "async"])
def test_on_two_databases(sqlite_url: str, postgres_url: str, kind: Any) -> None:
    """From SQLite to PostgreSQL."""
    with two_databases(sqlite_url, postgres_url, kind) as loop:
        register(loop.first, "first_rows", sends=True)
        register(loop.second, "second_rows", sends=False)
        loop.first.inbox.add_sink("default", into(loop.second.inbox, source="loop"))
        names = named(30)
        loop.first.receive_many(deliveries(names))
        loop.first.drain()
        loop.second.drain()
        loop.assert_exactly_once(names)


def test_a_receiver_that_is_away_is_waited_for(sqlite_url: str, postgres_url: str) -> None:
    """What cannot be handed over stays in the outbox, and goes when the other side is there: here, has tables."""
    with Shop(sqlite_url, "def") as first:
        away = Shop(postgres_url, "def", prefix="second_", migrate=False)
        first.handle("step", lambda message: iter(message.send("step", message.data) and ()), key="k")  # type: ignore[arg-type, return-value]
        first.inbox.add_sink("default", into(away.inbox, source="loop"))
        first.receive("a0", "step", data={"k": "a", "name": "a0"})
        first.drain()
        assert first.inbox.admin.stats().outbox_unsent == 1
        away.inbox.migrate()
        first.hurry()
        first.drain()
        assert [row.id for row in away.inbox.admin.messages()] == [first.detail("a0").sent[0].id]
        away.close()


def test_all_that_a_message_is_goes_over(sqlite_url: str) -> None:
    """Id, type, version, key, bytes and headers: what the other side keeps it apart and in order by."""
    with two_prefixes(sqlite_url, "def") as loop:
        loop.first.inbox.add_sink("default", into(loop.second.inbox, source="loop"))
        name = loop.first.inbox.send("step", {"n": 1}, key="a", version=3, headers={"x-note": "kept"})
        loop.first.drain()
        (row,) = loop.second.inbox.admin.messages(source="loop")
        assert (row.id, row.type, row.version, row.key) == (name, "step", 3, "a")
        detail = loop.second.detail(row.seq)
        assert (detail.body, detail.headers["x-note"]) == (b'{"n":1}', "kept")


class Sides:
    """The processes of both sides, killed and replaced at random."""

    def __init__(self, nursery: Nursery, loop: Loop, folder: Path) -> None:
        self._nursery, self._loop, self._folder = nursery, loop, folder
        self._living: dict[str, Child] = {}
        self.killed = 0

    def start(self, which: str) -> None:
        """Start the process of a side."""
        shop = self._loop.first if which == "first" else self._loop.second
        other = self._loop.second
        self._living[which] = self._nursery.start(
            "tests.outbox.program:forward",
            self._folder,
            url=shop.url,
            kind=shop.kind,
            prefix=shop.prefix,
            table=f"{which}_rows",
            next={"url": other.url, "prefix": other.prefix} if which == "first" else None,
        )
        self._living[which].hear("ready")

    def kill(self, which: str) -> None:
        """Kill the process of a side, and do for it what a supervisor does."""
        child = self._living.pop(which)
        child.kill()
        self.killed += 1
        shop = self._loop.first if which == "first" else self._loop.second
        for row in shop.inbox.admin.workers():
            if row.pid == child.pid:
                shop.step(take_over_process(shop.inbox.context, row.process, "killed"))

    def stop(self) -> None:
        """Let both end well; one that has only just started does not know yet what a signal means."""
        for which, child in self._living.items():
            shop = self._loop.first if which == "first" else self._loop.second
            wait_until(partial(self._works, shop, child), message=f"the worker of the {which} side")
            child.stop()

    @staticmethod
    def _works(shop: Shop, child: Child) -> bool:
        return any(row.pid == child.pid for row in shop.inbox.admin.workers())


@pytest.mark.parametrize("kind", ["def", "async"])
@pytest.mark.parametrize("where", ["sqlite", "postgres", "sqlite to postgres"])
def test_both_sides_are_killed_at_random(
    request: pytest.FixtureRequest, nursery: Nursery, tmp_path: Path, where: str, kind: Any
) -> None:
    """120 messages, half of them twice, kill -9 on both sides under load: each takes effect once, in order."""
    first, _, second = where.partition(" to ")
    url = request.getfixturevalue(f"{first}_url")
    making = two_databases(url, request.getfixturevalue(f"{second}_url"), kind) if second else two_prefixes(url, kind)
    with making as loop:
        names = named(120)
        batch = deliveries(names)
        register(loop.first, "first_rows", sends=True)
        register(loop.second, "second_rows", sends=False)
        for shop in (loop.first, loop.second):  # so that keys are known whichever process receives first
            shop.step(subscribe(shop.inbox.context, shop.inbox.context.cache))
        sides = Sides(nursery, loop, tmp_path)
        for which in ("first", "second"):
            sides.start(which)
        for part in range(4):
            loop.feed(batch[part * 30 : part * 30 + 30], random.sample(batch[: part * 30 + 30], 15))
            which = random.choice(("first", "second"))
            sides.kill(which)
            sides.start(which)
        wait_until(lambda: len(loop.rows("second")) >= 120, timeout=60, message="everything through the loop")
        wait_until(lambda: loop.first.inbox.admin.stats().outbox_unsent == 0, message="an empty outbox")
        wait_until(lambda: loop.second.count("queue") == 0, message="an empty inbox")
        sides.stop()
        assert sides.killed == 4
        loop.assert_exactly_once(names)
