"""The read side of the history: what happened in each minute, hour or day, by type or by source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar

from onceward.domain import checks
from onceward.domain.histogram import Histogram, sum_of
from onceward.flow import Flow
from onceward.message import microseconds, moment
from onceward.registry import OUTBOX
from onceward.steps.context import Context
from onceward.steps.history import durations, largest
from onceward.stores.moves.history import HistoryRow

T = TypeVar("T")

Per = Literal["total", "type", "source"]
PERS: dict[Per, Callable[[HistoryRow], tuple[str, str, str]]] = {
    "total": lambda _: ("", "", ""),
    "type": lambda row: (row["consumer"], "", row["type"]),
    "source": lambda row: ("", row["source"], ""),
}
"""What is counted together: consumer, source and type of a period."""
LENGTHS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
RANGES = {
    "hour": (timedelta(hours=1), "minute"),
    "day": (timedelta(days=1), "hour"),
    "week": (timedelta(days=7), "hour"),
    "quarter": (timedelta(days=90), "day"),
}
"""How far back, and by which length then."""


COUNTS = ("received", "duplicates", "mismatches", "done", "failed", "dead")


@dataclass(frozen=True, slots=True)
class Period:
    """What happened in some time. Outgoing messages: consumer `onceward.outbox`, their destination as type."""

    start: datetime
    length: timedelta
    consumer: str
    source: str
    type: str
    received: int
    duplicates: int
    mismatches: int
    done: int
    failed: int
    """Failed attempts."""
    dead: int
    backlog: int | None
    """The most due messages that no worker had claimed, where it was looked at: once a minute. Of several types it is
    the sum of what was the most of each."""
    oldest_seconds: float | None
    """The longest that one of these had been due."""
    lateness: Histogram
    """How long after the first delivery copies came."""
    wait: Histogram
    """How long messages were due until their first attempt began."""
    run: Histogram
    """How long handlers took, for each message."""


class Asked(TypedDict, total=False):
    """The arguments of `inbox.admin.history`."""

    since: datetime | timedelta
    """From when on, or how far back; an hour if nothing is said."""
    until: datetime
    by: str
    """`minute`, `hour` or `day`; else as fits the time."""
    per: Per
    consumer: str
    type: str
    source: str


class Wanted(NamedTuple):
    """What is looked for."""

    since: datetime
    until: datetime
    length: timedelta
    per: Per
    filters: Mapping[str, str]


def wanted(asked: Mapping[str, Any]) -> Wanted:
    """Check what was asked for, and complete it."""
    where = "history()"
    checks.no_others(where, asked, Asked.__annotations__)
    until = _aware("until", asked.get("until") or datetime.now(UTC))
    since = asked.get("since", timedelta(hours=1))
    since = until - checks.duration(where, "since", since) if isinstance(since, timedelta) else _aware("since", since)
    fitting = next((length for reach, length in RANGES.values() if until - since <= reach), "day")
    by = checks.one_of(where, "by", asked.get("by", fitting), LENGTHS)
    per = checks.one_of(where, "per", asked.get("per", "total"), PERS)
    names = ("consumer", "type", "source")
    filters = {name: checks.text(where, name, asked[name]) for name in names if asked.get(name) is not None}
    return Wanted(since, until, LENGTHS[by], per, filters)


def _aware(argument: str, given: Any) -> datetime:
    if checks.moment("history()", argument, given).tzinfo is None:
        checks.refuse("history()", argument, given, "a datetime with its time zone, such as datetime.now(UTC)")
    return given  # type: ignore[no-any-return] # it is one


def history(context: Context, wanted: Wanted) -> Flow[list[Period]]:
    """What happened, the first first. What is kept by hour or day only stands at the beginning of that."""
    width = int(wanted.length.total_seconds() * 1_000_000)
    begin = microseconds(wanted.since) // width * width
    rows = yield from context.moves.history.read(begin, microseconds(wanted.until), width)
    together: dict[tuple[int, tuple[str, str, str]], list[HistoryRow]] = {}
    for row in rows:
        fits = all(row[name] == value for name, value in wanted.filters.items())  # type: ignore[literal-required] # a name
        if fits and (row["consumer"] != OUTBOX or wanted.per == "type" or wanted.filters):
            start = (row["starts_at"] or 0) // width * width
            together.setdefault((start, PERS[wanted.per](row)), []).append(row)
    return [
        _period(start, wanted.length, names, several)
        for (start, names), several in sorted(together.items(), key=_first)
    ]


def _first(item: tuple[tuple[int, tuple[str, str, str]], list[HistoryRow]]) -> tuple[int, tuple[str, str, str]]:
    return item[0]


def _period(start: int, length: timedelta, names: tuple[str, str, str], rows: Sequence[HistoryRow]) -> Period:
    oldest = largest(row["oldest"] for row in rows)
    return Period(
        moment(start),
        length,
        *names,
        **_counts(rows),
        backlog=_summed((row["consumer"], row["type"], row["backlog"]) for row in rows),
        oldest_seconds=None if oldest is None else oldest / 1_000_000,
        lateness=durations(rows, "lateness"),
        wait=durations(rows, "wait"),
        run=durations(rows, "run"),
    )


def _counts(rows: Sequence[HistoryRow]) -> dict[str, Any]:
    return {name: sum(row[name] for row in rows) for name in COUNTS}  # type: ignore[literal-required] # their names


def together(periods: Sequence[Period]) -> Period | None:
    """Periods of several times or types as one, which begins with the first; None where there are none."""
    if not periods:
        return None
    counts: dict[str, Any] = {name: sum(getattr(one, name) for one in periods) for name in COUNTS}
    return replace(
        min(periods, key=lambda one: one.start),
        **counts,
        lateness=sum_of(one.lateness for one in periods),
        wait=sum_of(one.wait for one in periods),
        run=sum_of(one.run for one in periods),
        backlog=_summed((one.consumer, one.type, one.backlog) for one in periods),
        oldest_seconds=largest(one.oldest_seconds for one in periods),
    )


def together_by(periods: Iterable[Period], key: Callable[[Period], T]) -> dict[T, Period]:
    """Periods that are alike as one."""
    grouped: dict[T, list[Period]] = {}
    for period in periods:
        grouped.setdefault(key(period), []).append(period)
    return {which: known for which, several in grouped.items() if (known := together(several)) is not None}


def _summed(backlogs: Iterable[tuple[str, str, int | None]]) -> int | None:
    """The most of each consumer and type, added up."""
    most: dict[tuple[str, str], int] = {}
    for consumer, what, number in backlogs:
        if number is not None:
            most[consumer, what] = max(number, most.get((consumer, what), 0))
    return sum(most.values()) if most else None
