"""History: what processes have counted is written, and folded into minutes, hours and days.

Invariant: whatever is folded twice, late or by several processes, each count is in exactly one row; a reader adds up
the rows of a time, however far each of them is folded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal, NamedTuple, get_args

from onceward.domain.activity import Counts, Series
from onceward.domain.histogram import Histogram
from onceward.errors import StoreError
from onceward.flow import ROLLBACK, Flow
from onceward.registry import OUTBOX
from onceward.steps.context import Context
from onceward.stores.moves.history import COUNTED, DAYS, HOURS, MINUTES, Fold, HistoryRow

log = logging.getLogger("onceward")

EVERY = timedelta(minutes=1)
"""How often one of the running processes folds, and looks at the backlog."""
LENGTHS = {MINUTES: timedelta(minutes=1), HOURS: timedelta(hours=1), DAYS: timedelta(days=1)}
KEPT = {
    COUNTED: timedelta(0),
    MINUTES: timedelta(hours=48),
    HOURS: timedelta(days=14),
    DAYS: timedelta(days=90),
}
"""How long rows stay before they are folded into longer times, or forgotten."""
MOST_FOLDED = 2_000
"""In one transaction."""
_COUNTS = ("received", "duplicates", "mismatches", "done", "failed", "dead")
Duration = Literal["lateness", "wait", "run"]
_DURATIONS: tuple[Duration, ...] = get_args(Duration)


class Place(NamedTuple):
    """Which row something belongs to."""

    start: int
    series: Series


def save_activity(context: Context) -> Flow[None]:
    """Write what this process has counted. What cannot be written now is written later, and the caller goes on."""
    taken = context.activity.take(context.clock())
    if not taken:
        return
    try:
        yield from context.moves.history.record([_counted(series, counts) for series, counts in taken.items()])
    except StoreError as error:
        log.debug("the history is written later: %s", error)
        context.activity.give_back(taken)
        with suppress(StoreError):  # the next one on this connection finds it as it must be, or broken
            yield ROLLBACK


def keep_history(context: Context) -> Flow[int]:
    """Write what was counted. Fold what is old enough, look at the backlog, forget what is too old.

    All but the first is for one process at a time, once a minute.
    """
    if context.clock() >= context.activity.due_at:
        yield from save_activity(context)
    if context.settings.maintenance is None or not context.settings.history:
        return 0
    if not (yield from context.moves.retention.take_turn("history", EVERY.total_seconds())):
        return 0
    yield from _look_at_backlog(context)
    for level in (COUNTED, MINUTES, HOURS):
        folded = MOST_FOLDED
        while folded == MOST_FOLDED:
            fold = Fold(level, _micros(LENGTHS[level + 1]), KEPT[level].total_seconds(), MOST_FOLDED)
            folded = yield from context.moves.history.fold(fold, merged)
    yield from context.moves.history.forget(KEPT[DAYS].total_seconds())
    return 0  # nothing that a lane should wake up for


def _look_at_backlog(context: Context) -> Flow[None]:
    found = yield from context.moves.reports.unserved()
    most: dict[Series, HistoryRow] = {}
    for one in found:
        consumer, what = (OUTBOX, one.destination) if one.destination else (one.consumer, one.type)
        row = _row(Series(consumer, "", what))
        row["backlog"], row["oldest"] = one.messages, int(one.oldest_seconds * 1_000_000)
        most[Series(consumer, "", what)] = row
    if most:
        yield from context.moves.history.record(list(most.values()))


def merged(rows: Sequence[HistoryRow]) -> list[HistoryRow]:
    """Rows of one level as rows of the next one."""
    together: dict[Place, list[HistoryRow]] = {}
    for row in rows:
        length = _micros(LENGTHS[row["level"] + 1])
        start = (row["starts_at"] or 0) // length * length
        place = Place(start, Series(row["consumer"], row["source"], row["type"]))
        together.setdefault(place, []).append(row)
    return [
        {**added_up(several), "level": several[0]["level"] + 1, "starts_at": place.start}
        for place, several in together.items()
    ]


def added_up(rows: Sequence[HistoryRow]) -> HistoryRow:
    """Rows of one time and series as one: counts are added, of a backlog the largest stays."""
    values: dict[str, Any] = dict(rows[0])
    for name in _COUNTS:
        values[name] = sum(row[name] for row in rows)  # type: ignore[literal-required] # each is a count
    for name in _DURATIONS:
        values[name] = durations(rows, name).text()
    values["backlog"] = largest(row["backlog"] for row in rows)
    values["oldest"] = largest(row["oldest"] for row in rows)
    return values  # type: ignore[return-value] # the same names


def durations(rows: Sequence[HistoryRow], name: Duration) -> Histogram:
    """Those of some rows together; their texts are read at once."""
    return Histogram.read(" ".join(row[name] or "" for row in rows))


def largest(values: Iterable[Any]) -> Any:
    """The largest of those that are there."""
    return max((value for value in values if value is not None), default=None)


def _counted(series: Series, counts: Counts) -> HistoryRow:
    row = _row(series)
    for name in _COUNTS:
        row[name] = getattr(counts, name)  # type: ignore[literal-required] # each is a count
    for name in _DURATIONS:
        row[name] = getattr(counts, name).text()
    return row


def _row(series: Series) -> HistoryRow:
    return {
        "level": COUNTED,
        "starts_at": None,
        "consumer": series.consumer,
        "source": series.source,
        "type": series.type,
        **dict.fromkeys(_COUNTS, 0),  # type: ignore[typeddict-item] # each is a count
        "backlog": None,
        "oldest": None,
        **dict.fromkeys(_DURATIONS),
    }


def _micros(time: timedelta) -> int:
    return int(time.total_seconds() * 1_000_000)
