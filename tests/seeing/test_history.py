"""History (R63): each thing that happened is counted once, however often rows are folded, on every store."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from click.testing import CliRunner

from onceward import Inbox, Reject
from onceward.admin.history import Period, together
from onceward.cli.app import application
from onceward.domain.histogram import LAST, Histogram, bound, bucket_of, sum_of
from onceward.errors import ConfigurationError, StoreUnavailable
from onceward.flow import run_sync
from onceward.runtime.runner import perform
from onceward.steps.history import KEPT, keep_history, save_activity
from onceward.steps.membership import take_over_process
from onceward.stores.moves.history import COUNTED, DAYS, HOURS, MINUTES, HistoryRow
from onceward.testing import MemoryStore
from tests.stores import with_mariadb
from tests.waiting import wait_until

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@contextmanager
def shop(store: Any) -> Iterator[Inbox]:
    with Inbox(store) as inbox:
        inbox.migrate()

        @inbox.on("order.paid")
        def pay(message: Any) -> None:
            if message.data["amount"] < 0:
                raise Reject("negative")

        yield inbox


def deliver(inbox: Inbox, number: int, amount: int = 1, source: str = "shop") -> str:
    message: dict[str, Any] = {"id": f"evt-{number}", "type": "order.paid", "data": {"amount": amount}}
    return inbox.receive(source=source, **message).status


def save(inbox: Inbox) -> None:
    perform(inbox.store, lambda: save_activity(inbox.context))


def fold(inbox: Inbox) -> None:
    """As a worker does every minute, now."""
    perform(inbox.store, lambda: inbox.context.moves.retention.give_turn("history"))
    perform(inbox.store, lambda: keep_history(inbox.context))


def rows(inbox: Inbox) -> list[HistoryRow]:
    return perform(inbox.store, lambda: inbox.context.moves.history.read(0, 2**62, 1))


def write(inbox: Inbox, *ages: timedelta, level: int = COUNTED, received: int = 1) -> None:
    """Counts of long ago."""
    row: dict[str, Any] = dict.fromkeys(("duplicates", "mismatches", "done", "failed", "dead"), 0)
    row |= {"consumer": "default", "source": "shop", "type": "order.paid", "backlog": 3, "oldest": 1_500_000}
    row |= {"level": level, "received": received, "lateness": None, "wait": "3:2 7:1", "run": None}
    now = datetime.now(UTC)
    starts = [int((now - age).timestamp() * 1_000_000) for age in ages]
    perform(
        inbox.store,
        lambda: inbox.context.moves.history.record([cast("HistoryRow", {**row, "starts_at": one}) for one in starts]),
    )


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def store(request: pytest.FixtureRequest) -> Any:
    return MemoryStore() if request.param == "memory" else request.getfixturevalue(f"{request.param}_url")


def test_everything_that_happens_is_in_the_history(store: Any) -> None:
    with shop(store) as inbox:
        for number in range(5):
            deliver(inbox, number, amount=-1 if number == 4 else 1)
        assert [deliver(inbox, 1), deliver(inbox, 2, amount=7)] == ["duplicate", "mismatch"]
        inbox.drain()
        save(inbox)
        (hour,) = inbox.admin.history(by="day", since=DAY)
        assert (hour.received, hour.duplicates, hour.mismatches) == (5, 1, 1)
        assert (hour.done, hour.failed, hour.dead) == (4, 1, 1)
        assert (hour.lateness.count, hour.wait.count, hour.run.count) == (1, 4, 4)


def test_a_charged_crash_is_a_failed_attempt(store: Any) -> None:
    """Of a message that kills its process each time: counted once for each charge, and dead once."""
    with shop(store) as inbox:

        @inbox.on("order.heavy")
        def heavy(message: Any) -> None:
            del message
            (worker,) = inbox.admin.workers()
            perform(inbox.store, lambda: take_over_process(inbox.context, worker.process, "killed by the test"))

        seq = inbox.receive(source="shop", id="evt-1", type="order.heavy", data={}).seq

        def is_dead() -> bool:
            inbox.drain()
            detail = inbox.admin.message(seq)
            return detail is not None and detail.status == "dead"

        wait_until(is_dead, message="the last charge")
        save(inbox)
        (period,) = inbox.admin.history(by="day", since=DAY, per="type", type="order.heavy")
        limit = inbox.settings.crash_limit
        assert (period.source, period.consumer) == ("", "default")
        assert (period.received, period.done, period.failed, period.dead) == (1, 0, limit, 1)


def test_backlogs_of_several_types_are_added_up(store: Any) -> None:
    with shop(store) as inbox:
        inbox.on("order.other")(lambda message: None)  # noqa: ARG005 - its signature
        for number in range(3):
            deliver(inbox, number)
        inbox.receive(source="shop", id="evt-9", type="order.other", data={})
        fold(inbox)
        fold(inbox)
        (period,) = inbox.admin.history(by="day", since=DAY)
        assert period.backlog == 4
        assert together(inbox.admin.history(by="minute", per="type")) is not None
        assert together([]) is None


def test_what_is_closed_is_written_and_what_has_nothing_to_say_writes_nothing(store_url: str) -> None:
    with shop(store_url) as inbox:
        deliver(inbox, 1)
    with shop(store_url) as inbox:
        (period,) = inbox.admin.history(by="day", since=DAY)
        assert period.received == 1
        assert len(rows(inbox)) == 1


def test_counts_are_folded_and_none_is_lost_or_doubled(store: Any) -> None:
    """Minutes for 48 hours, hours for 14 days, days for 90; then they go."""
    with shop(store) as inbox:
        ages = [timedelta(minutes=one) for one in (3, 3, 200)] + [3 * DAY, 3 * DAY, 20 * DAY, 20 * DAY]
        write(inbox, *ages)
        for _ in range(3):  # by minute, by hour, by day: each turn may do all of it, and does it once
            fold(inbox)
        found = rows(inbox)
        assert sum(row["received"] for row in found) == len(ages)
        at = {level: [row for row in found if row["level"] == level] for level in (COUNTED, MINUTES, HOURS, DAYS)}
        assert not at[COUNTED]
        assert {row["received"] for row in at[HOURS] + at[DAYS]} <= {1, 2}
        assert sum(row["received"] for row in at[DAYS]) == 2
        assert sum(row["received"] for row in at[HOURS]) == 2
        assert {row["backlog"] for row in found} == {3}
        assert sum(Histogram.read(row["wait"]).count for row in found) == 3 * len(ages)
        write(inbox, KEPT[DAYS] + 2 * DAY, level=DAYS)
        fold(inbox)
        assert sum(row["received"] for row in rows(inbox)) == len(ages)


@with_mariadb
def test_the_database_adds_up(store_url: str) -> None:
    """Five days of minutes are read by day as a row for each day, not for each minute, and none of it is cut off."""
    with shop(store_url) as inbox:
        write(inbox, *(timedelta(minutes=one) for one in range(5 * 24 * 60)), level=MINUTES)
        day = int(DAY.total_seconds() * 1_000_000)
        found = perform(inbox.store, lambda: inbox.context.moves.history.read(0, 2**62, day))
        assert len(found) in {5, 6}
        assert sum(row["received"] for row in found) == 5 * 24 * 60
        assert sum(Histogram.read(row["wait"]).count for row in found) == 3 * 5 * 24 * 60
        assert {row["run"] for row in found} == {None}


def test_two_processes_that_fold_at_once_count_everything_once(store_url: str) -> None:
    """The one that comes second waits, and finds the rows gone."""
    with shop(store_url) as inbox, shop(store_url) as other:
        write(inbox, *[timedelta(minutes=5)] * 40)
        moves = inbox.context.moves.history
        go = threading.Barrier(2)

        def folding(which: Inbox) -> None:
            from onceward.steps.history import LENGTHS, merged  # noqa: PLC0415 - of the move below alone
            from onceward.stores.moves.history import Fold  # noqa: PLC0415 - so

            minute = int(LENGTHS[MINUTES].total_seconds() * 1_000_000)
            go.wait()
            perform(which.store, lambda: moves.fold(Fold(COUNTED, minute, 0.0, 1000), merged))

        threads = [threading.Thread(target=folding, args=[which]) for which in (inbox, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(row["received"] for row in rows(inbox)) == 40


def test_what_cannot_be_written_is_written_later(store_url: str) -> None:
    with shop(store_url) as inbox:
        deliver(inbox, 1)

        def away(_: Any) -> Any:
            raise StoreUnavailable("away")

        run_sync(save_activity(inbox.context), away)
        assert not rows(inbox)
        deliver(inbox, 2)
        save(inbox)
        assert [row["received"] for row in rows(inbox)] == [2]


def test_a_backlog_is_looked_at(store: Any) -> None:
    with shop(store) as inbox:
        for number in range(3):
            deliver(inbox, number)
        fold(inbox)
        (period,) = inbox.admin.history(per="type", type="order.paid", by="day", since=DAY)
        assert period.backlog == 3
        assert period.oldest_seconds is not None
        assert period.oldest_seconds >= 0


@pytest.mark.parametrize(
    ("per", "names"),
    [
        ("total", [("", "", "")]),
        ("type", [("default", "", "order.paid")]),
        ("source", [("", "a", ""), ("", "b", "")]),
    ],
)
def test_what_is_counted_together(store_url: str, per: Any, names: list[tuple[str, str, str]]) -> None:
    with shop(store_url) as inbox:
        deliver(inbox, 1, source="a")
        deliver(inbox, 1, source="b")
        save(inbox)
        periods = inbox.admin.history(per=per, by="day", since=DAY)
        assert [(one.consumer, one.source, one.type) for one in periods] == names
        (only,) = inbox.admin.history(source="a", by="day", since=DAY)
        assert only.received == 1


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"by": "week"}, r"history\(\): by='week' must be one of 'minute', 'hour', 'day'"),
        ({"per": "key"}, r"history\(\): per='key' must be one of"),
        ({"since": datetime(2026, 1, 1)}, "with its time zone"),  # noqa: DTZ001 - that is what is refused
        ({"since": timedelta(0)}, "above zero"),
        ({"types": "x"}, r"history\(\) has no argument types="),
    ],
)
def test_a_wrong_question_is_refused(sqlite_url: str, asked: dict[str, Any], sentence: str) -> None:
    with shop(sqlite_url) as inbox, pytest.raises(ConfigurationError, match=sentence):
        inbox.admin.history(**asked)


def test_the_command_shows_what_python_does(store_url: str) -> None:
    with shop(store_url) as inbox:
        deliver(inbox, 1)
        deliver(inbox, 1)
        inbox.drain()
    run: Callable[..., Any] = lambda *more: CliRunner().invoke(application, ["history", "--store", store_url, *more])  # noqa: E731 - short
    (shown,) = json.loads(run("--json", "--by", "day").stdout)
    assert (shown["received"], shown["done"], shown["duplicates"]) == (1, 1, 1)
    assert shown["run"]["count"] == 1
    table = run("--per", "type", "--by", "day").stdout
    assert "order.paid" in table
    assert "RUN P50" in table
    assert "Nothing happened" in run("--type", "other").stdout


def test_a_bound_is_never_below_the_duration() -> None:
    for seconds in (0.0, 0.0005, 0.001, 0.0011, 0.02, 1.0, 59.9, 86_400.0):
        assert seconds <= bound(bucket_of(seconds)) <= max(seconds * 1.4143, 0.001)
    assert bucket_of(1e12) == LAST


def test_histograms_add_up_and_are_read_as_they_were_written() -> None:
    one, two = Histogram(), Histogram()
    for number in range(100):
        (one if number % 2 else two).add([number / 1000])
    both, at_once = sum_of((one, two)), Histogram()
    at_once.add([number / 1000 for number in range(100)])
    assert both.count == 100
    assert both == at_once
    assert Histogram.read(both.text()) == both
    assert 0.049 <= (both.percentile(50) or 0) <= 0.07
    assert 0.095 <= (both.percentile(95) or 0) <= 0.14
    assert Histogram().percentile(50) is None
    assert Histogram().text() is None


def test_periods_are_plain_values() -> None:
    """What the dashboard and the metrics read is what the annotations say."""
    assert {"wait", "run", "lateness"} <= set(Period.__dataclass_fields__)
