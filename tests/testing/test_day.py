"""A recorded day: careful handlers have the same effect however it is played, careless ones are found, in few steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from onceward import ConfigurationError, Inbox, Message, execute
from onceward.retention.archive import Archive
from onceward.retention.replay import copy
from onceward.testing import NotExactlyOnce, RecordedDay
from onceward.testing.day import Event, Play

MANY = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
PAY = "UPDATE orders SET paid = paid + 1, line = :line WHERE id = :order"
Effect = Callable[[Any], Any]


def effect(tx: Any) -> list[Any]:
    """What the messages have led to."""
    return list(tx.execute("SELECT id, paid, line FROM orders ORDER BY id").fetchall())


def opened(url: str) -> Inbox:
    """A shop without handlers."""
    inbox = Inbox(url)
    inbox.migrate()
    with inbox.transaction() as tx:
        tx.execute("CREATE TABLE orders (id integer PRIMARY KEY, paid integer NOT NULL, line text)")
        tx.execute("INSERT INTO orders VALUES (1, 0, ''), (2, 0, ''), (3, 0, '')")
    return inbox


@pytest.fixture
def day(tmp_path: Path) -> RecordedDay:
    """Nine messages of three orders, as they came."""
    with opened(f"sqlite:///{tmp_path / 'recorded.db'}") as inbox:
        inbox.on("order.paid", key="order")(lambda _message, _tx: None)
        for number in range(9):
            data = {"order": number % 3 + 1, "line": f"line {number}"}
            inbox.receive(source="shop", id=f"evt_{number}", type="order.paid", data=data)
        inbox.drain()
        assert copy(inbox, tmp_path / "day") == 9
        assert inbox.admin.message(1).body  # type: ignore[union-attr] # it is still there
    return RecordedDay(tmp_path / "day")


@pytest.fixture
def shop(store_url: str) -> Iterator[Inbox]:
    """A shop to play it in."""
    with opened(store_url) as inbox:
        yield inbox


def careful(message: Message, tx: Any) -> None:
    execute(tx, PAY, message.data)
    message.send("order.shipped", {"order": message.data["order"]})


def test_a_careful_handler_has_the_same_effect_however_the_day_is_played(shop: Inbox, day: RecordedDay) -> None:
    shop.on("order.paid", key="order")(careful)
    seen: list[Play] = []

    @MANY
    @given(day.plays())
    def prove(play: Play) -> None:
        seen.append(play)
        play.prove(shop, check=effect)

    prove()
    faults = {event.fault for play in seen for event in play.events if event.fault}
    assert len(faults) > 4
    assert any(len(play.events) > 2 * len(play.records) for play in seen)
    with shop.transaction() as tx:
        assert [paid for _, paid, _ in effect(tx)] == [0, 0, 0]  # put back


def test_messages_of_a_key_stay_in_their_order_and_others_do_not(day: RecordedDay) -> None:
    moved = False

    @MANY
    @given(day.plays(most=9))
    def look(play: Play) -> None:
        nonlocal moved
        first = list(dict.fromkeys(event.message for event in play.events if event.what == "deliver"))
        assert sorted(first) == list(range(len(play.records)))
        for order in {record["key"] for record in play.records}:
            of_key = [number for number in first if play.records[number]["key"] == order]
            assert of_key == sorted(of_key)
        moved = moved or first != sorted(first)

    look()
    assert moved


def least(shop: Inbox, day: RecordedDay, **options: Any) -> str:
    """What Hypothesis reports of a careless handler, at its shortest; of few messages, or it takes long."""

    @seed(1)
    @settings(
        MANY,
        max_examples=40,
        derandomize=False,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )
    @given(day.plays(most=4))
    def prove(play: Play) -> None:
        play.prove(shop, check=effect, **options)

    with pytest.raises(NotExactlyOnce) as caught:
        prove()
    return str(caught.value)


def test_a_handler_that_remembers_in_memory_is_found(sqlite_url: str, day: RecordedDay) -> None:
    seen: set[str] = set()

    def careless(message: Message, tx: Any) -> None:
        if message.id not in seen:
            seen.add(message.id)
            execute(tx, PAY, message.data)

    with opened(sqlite_url) as shop:
        shop.on("order.paid", key="order")(careless)
        report = least(shop, day, setup=seen.clear)
    assert report.startswith("LOST: the effect should be [(")
    assert "is delivered" in report
    assert report.count("\n") < 8  # of up to 4 messages with all that happens to them


def test_an_order_that_no_key_keeps_is_found(sqlite_url: str, day: RecordedDay) -> None:
    """It writes one line for all orders, so their order counts, and nothing keeps it."""
    with opened(sqlite_url) as shop:
        shop.on("order.paid", key="order")(
            lambda message, tx: execute(tx, "UPDATE orders SET line = :line WHERE id = 1", message.data) and None
        )
        report = least(shop, day)
    assert report.startswith("CHANGED: the effect should be")
    assert "is delivered" in report


def test_a_call_that_is_repeated_is_found(sqlite_url: str, day: RecordedDay) -> None:
    mails: list[str] = []

    def mails_first(message: Message, tx: Any) -> None:
        mails.append(message.id)
        execute(tx, PAY, message.data)

    with opened(sqlite_url) as shop:
        shop.on("order.paid", key="order")(mails_first)
        report = least(shop, day, external=lambda: mails)
        assert re.match(r"DOUBLED: external calls: \d+ instead of \d+\nwhen, of", report)
        play = Play(day.records[:1], (Event("deliver"), Event("work", 0, ("crash", "before", "commit"))))
        play.prove(shop, check=effect, external=lambda: mails, external_at_least_once=True)


def test_a_play_says_what_happens(day: RecordedDay) -> None:
    events = (
        Event("deliver", 0, ("crash", "after", "store")),
        Event("deliver", 0),
        Event("deliver", 0),
        Event("work", 0, ("loss", "before", 1)),
        Event("work"),
    )
    assert list(Play(day.records[:1], events).steps()) == [
        "order.paid evt_0 of shop is delivered, the process dies after the store",
        "order.paid evt_0 of shop is delivered",
        "order.paid evt_0 of shop is delivered again",
        "the workers run, the connection is lost before statement 1 of order.paid evt_0 of shop",
        "the workers run",
    ]


def test_every_consumer_has_its_own_order(tmp_path: Path) -> None:
    """Two consumers with other keys: what either keeps in order stays in order."""
    with opened(f"sqlite:///{tmp_path / 'recorded.db'}") as inbox:
        inbox.on("order.paid", consumer="orders", key="order")(lambda _message, _tx: None)
        inbox.on("order.paid", consumer="lines", key="line")(lambda _message, _tx: None)
        for number, (order, line) in enumerate([(1, "a"), (2, "a"), (2, "b")]):
            inbox.receive(source="shop", id=str(number), type="order.paid", data={"order": order, "line": line})
        inbox.drain()
        day = RecordedDay(inbox)
    assert [record["id"] for record in day.records] == ["0", "1", "2"]

    @MANY
    @given(day.plays(), st.none())
    def look(play: Play, _none: None) -> None:
        first = list(dict.fromkeys(event.message for event in play.events if event.what == "deliver"))
        assert first == sorted(first)

    look()


def test_what_is_recorded_is_an_archive(day: RecordedDay, tmp_path: Path) -> None:
    archive = Archive(tmp_path / "day")
    assert [record["id"] for record in archive.read()] == [record["id"] for record in day.records]
    (file,) = archive.files()
    archive.check(file)


def test_a_day_without_messages_is_refused(sqlite_url: str, tmp_path: Path, day: RecordedDay) -> None:
    with opened(sqlite_url) as inbox:
        with pytest.raises(ConfigurationError, match="no finished message"):
            RecordedDay(inbox)
        with pytest.raises(ConfigurationError, match="no handler of the inbox is registered"):
            Play(day.records[:1], (Event("deliver"),)).prove(inbox, check=effect)
    with pytest.raises(ConfigurationError, match="onceward archive shop:inbox tests/day --copy"):
        RecordedDay(tmp_path / "nothing")
