"""The history, on stores that keep one: what is read is what was recorded, however far it is folded."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from onceward.admin.history import COUNTS, LENGTHS, PERS, Per, Period
from onceward.domain.histogram import Histogram
from onceward.message import microseconds
from onceward.stores.moves.history import COUNTED, DAYS, HOURS, MINUTES, HistoryRow
from onceward.testing.store_suite.shop import Shop

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
KEPT = (
    (DAYS, timedelta(days=1), 3),
    (HOURS, timedelta(hours=1), 30),
    (MINUTES, timedelta(minutes=1), 90),
    (COUNTED, timedelta(seconds=7), 20),
)
"""What lies behind that noon: so many rows of a level and a series, so far from each other."""
SERIES = (("billing", "stripe", "order.paid"), ("billing", "paypal", "order.paid"), ("mail", "stripe", "order.paid"))


def rows() -> list[HistoryRow]:
    """Rows of each level, no two alike; some have no durations, and a backlog is of all sources."""
    found: list[HistoryRow] = []
    for level, distance, count in KEPT:
        for ago in range(count):
            for place, (consumer, source, kind) in enumerate(SERIES):
                number = 1000 * level + 10 * ago + place
                bucket = number % 23
                text = Histogram({bucket: number + 1, bucket + 2: 1}).text() if number % 3 else None
                found.append(
                    {
                        "level": level,
                        "starts_at": microseconds(NOON - distance * ago),
                        "consumer": consumer,
                        "source": "" if number % 5 == 0 else source,
                        "type": kind,
                        **{name: number + which for which, name in enumerate(COUNTS)},  # type: ignore[typeddict-item] # each
                        "backlog": number if number % 5 == 0 else None,
                        "oldest": number * 1_000_000 if number % 5 == 0 else None,
                        "lateness": text,
                        "wait": text,
                        "run": None,
                    }
                )
    return found


def added_up(of: list[HistoryRow], length: timedelta, per: Per) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What such rows are together, row by row."""
    width = int(length.total_seconds() * 1_000_000)
    together: dict[tuple[Any, ...], list[HistoryRow]] = {}
    for row in of:
        start = (row["starts_at"] or 0) // width * width
        together.setdefault((start, *PERS[per](row)), []).append(row)
    return {place: _sums(several) for place, several in together.items()}


def _sums(several: list[HistoryRow]) -> tuple[Any, ...]:
    backlogs: dict[str, int] = {}
    durations: Counter[int] = Counter()
    for row in several:
        if row["backlog"] is not None:
            backlogs[row["consumer"]] = max(backlogs.get(row["consumer"], 0), row["backlog"])
        for pair in (row["wait"] or "").split():
            bucket, _, count = pair.partition(":")
            durations[int(bucket)] += int(count)
    counts = [sum(row[name] for row in several) for name in COUNTS]  # type: ignore[literal-required] # each is a count
    oldest = max((row["oldest"] / 1_000_000 for row in several if row["oldest"] is not None), default=None)
    spread = Histogram(dict(durations))
    return *counts, sum(backlogs.values()) if backlogs else None, oldest, spread, spread, Histogram()


def read(periods: list[Period]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Periods in the same form."""
    return {
        (microseconds(one.start), one.consumer, one.source, one.type): (
            *(getattr(one, name) for name in COUNTS),
            one.backlog,
            one.oldest_seconds,
            one.lateness,
            one.wait,
            one.run,
        )
        for one in periods
    }


class Past:
    """The history, on stores that keep one."""

    @pytest.mark.parametrize("per", get_args(Per))
    @pytest.mark.parametrize("by", LENGTHS)
    def test_the_history_is_what_its_rows_are_together(self, shop: Shop, by: str, per: Per) -> None:
        """By minute, hour and day, in total, by type and by source, also where the database adds up."""
        if "history" not in shop.inbox.store.capabilities:
            return
        given = rows()
        shop.step(shop.inbox.context.moves.history.record(given))
        asked: dict[str, Any] = {"since": NOON - timedelta(days=9), "until": NOON + timedelta(days=1)}
        found = shop.call(shop.inbox.admin, "history", by=by, per=per, **asked)
        assert read(found) == added_up(given, LENGTHS[by], per)
        assert [one.start for one in found] == sorted(one.start for one in found)
        paid = shop.call(shop.inbox.admin, "history", by=by, per=per, source="stripe", **asked)
        assert read(paid) == added_up([row for row in given if row["source"] == "stripe"], LENGTHS[by], per)

    def test_a_time_of_the_history_ends_before_its_end(self, shop: Shop) -> None:
        """And begins with its first minute."""
        if "history" not in shop.inbox.store.capabilities:
            return
        (row, *_) = rows()
        starts = [microseconds(NOON + timedelta(minutes=minute)) for minute in (-1, 0, 1, 2)]
        given: list[HistoryRow] = [{**row, "level": MINUTES, "starts_at": start} for start in starts]
        shop.step(shop.inbox.context.moves.history.record(given))
        asked = {"since": NOON + timedelta(seconds=30), "until": NOON + timedelta(minutes=2), "by": "minute"}
        found = shop.call(shop.inbox.admin, "history", **asked)
        assert [microseconds(one.start) for one in found] == starts[1:3]
