"""History: what happened, by time, consumer, source and type. It is counted by each process and only ever added to.

A store that lacks the capability `history` has none of these moves; what was counted is then forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypedDict

from onceward.flow import Flow

COUNTED, MINUTES, HOURS, DAYS = range(4)
"""How far rows are folded: as a process has counted them, by minute, by hour, by day."""


class HistoryRow(TypedDict):
    """What happened in some time. A mapping, for it is what the store's statements take as it is."""

    level: int
    starts_at: int | None
    """When that time begins, in microseconds; None for now."""
    consumer: str
    source: str
    """Empty in the rows that have a backlog, which is of all sources."""
    type: str
    received: int
    duplicates: int
    mismatches: int
    done: int
    failed: int
    """Attempts that failed, those with which a message was dead too."""
    dead: int
    backlog: int | None
    """The most due messages that were not claimed when it was looked at."""
    oldest: int | None
    """The longest that such a message had been due, in microseconds."""
    lateness: str | None
    """How long after its first a copy came, as `domain.histogram` writes it;"""
    wait: str | None
    """how long a message was due until its first attempt began;"""
    run: str | None
    """how long its handler took."""


class Fold(NamedTuple):
    """Make rows of one level into rows of the next one, whose time is longer."""

    level: int
    longer: int
    """The time of the rows they become, in microseconds: it is over before they go."""
    keep: float
    """For how many seconds after that they stay as they are."""
    limit: int


Merge = Callable[[Sequence[HistoryRow]], Sequence[HistoryRow]]


class HistoryMoves(Protocol):
    """What happened."""

    def record(self, rows: Sequence[HistoryRow], /) -> Flow[None]:
        """Add rows."""

    def fold(self, fold: Fold, merge: Merge, /) -> Flow[int]:
        """Put what `merge` makes of old rows in their place, in one transaction; returns how many there were."""

    def forget(self, keep: float, /) -> Flow[None]:
        """Remove the rows by day that are older than so many seconds."""

    def read(self, since: int, until: int, width: int, /) -> Flow[list[HistoryRow]]:
        """The rows of a time, in microseconds.

        A database that can adds up those of a level and a series that begin in the same `width`: one row then, which
        begins when that begins, and whose durations are the texts of all, with spaces between.
        """


def row_of(values: Sequence[Any]) -> HistoryRow:
    """A row as a statement returns it."""
    names: Mapping[str, Any] = HistoryRow.__annotations__
    return dict(zip(names, values, strict=True))  # type: ignore[return-value] # the names are those
