"""Plots of the history, as SVG that is filled in on the server: axes, lines, and the values that a pointer reads.

Invariant: what is drawn is what `inbox.admin.history` says. Where nothing was measured a line has a gap; where nothing
was counted it is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from onceward.admin.history import RANGES, Period, together, together_by
from onceward.domain.text import span

WIDTH, HEIGHT = 600, 120
TICKS = 5
"""So many times stand below a plot."""
Value = float | None


class Line(NamedTuple):
    """One line of a plot."""

    label: str
    tone: str
    values: list[Value]


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot."""

    name: str
    title: str
    unit: str
    lines: list[Line]
    is_time: bool = False

    @property
    def top(self) -> float:
        """The end of its scale: a number that is easy to read."""
        return nice(max((value for line in self.lines for value in line.values if value is not None), default=0.0))

    @property
    def scale(self) -> list[str]:
        """The numbers beside it, from the top."""
        return [self.words(part * self.top) for part in (1, 0.5)] + ["0"]

    @property
    def summary(self) -> str:
        """What it shows, for those who do not see it."""
        return "; ".join(f"{line.label} {self._latest(line)}, at most {self._most(line)}" for line in self.lines)

    @property
    def latest(self) -> str:
        """The last values."""
        measured = [line for line in self.lines if line.values and line.values[-1] is not None]
        return ", ".join(f"{line.label} {self._latest(line)}" for line in measured) or "nothing yet"

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to see."""
        return not any(value for line in self.lines for value in line.values)

    def words(self, value: Value) -> str:
        """A value for people."""
        if value is None:
            return "none"
        if self.is_time:
            return brief(value)
        return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"

    def path(self, line: Line, *, closed: bool = False) -> str:
        """A line as SVG draws it; closed, the area below it."""
        parts: list[str] = []
        began, top = "", self.top
        for index, value in enumerate(line.values):
            if value is None:
                parts += _ended(began, parts, closed=closed)
                began = ""
                continue
            x = WIDTH * index / max(1, len(line.values) - 1)
            y = HEIGHT - (HEIGHT - 4) * (value / top if top else 0) - 1
            parts.append(f"{'L' if began else 'M'}{x:.1f} {y:.1f}")
            began = began or f"{x:.1f}"
        return "".join([*parts, *_ended(began, parts, closed=closed)])

    def _latest(self, line: Line) -> str:
        return self.words(line.values[-1] if line.values else None)

    def _most(self, line: Line) -> str:
        return self.words(max((value for value in line.values if value is not None), default=None))


def _ended(began: str, parts: Sequence[str], *, closed: bool) -> list[str]:
    """What ends a piece of a line: a dot where it is one point, the way back where it is an area."""
    if not began:
        return []
    if closed:
        return [f"V{HEIGHT}H{began}Z"]
    return ["h.01"] if parts[-1].startswith("M") else []


def nice(value: float) -> float:
    """The first of 1, 2, 4, 5 or 10, of some power of ten, that is not below.

    >>> nice(0), nice(3), nice(47), nice(0.013)
    (1.0, 4.0, 50.0, 0.02)
    """
    if value <= 0:
        return 1.0
    power = 1.0
    while power < value:
        power *= 10
    while power / 10 >= value:
        power /= 10
    return next(round(power * part, 9) for part in (0.1, 0.2, 0.4, 0.5, 1.0) if power * part >= value)


def brief(seconds: float) -> str:
    """A duration that may be short.

    >>> brief(0.0005), brief(0.25), brief(90)
    ('0.5 ms', '250 ms', '1 min 30 s')
    """
    if seconds < 0.01:  # noqa: PLR2004 - below ten milliseconds a tenth matters
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else span(seconds)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The plots of a range."""

    reach: str
    times: list[datetime]
    charts: list[Chart]

    @property
    def ticks(self) -> list[datetime]:
        """The times below each plot."""
        last = len(self.times) - 1
        return [self.times[round(last * part / (TICKS - 1))] for part in range(TICKS)]

    @property
    def present(self) -> str:
        """The time that the last values are of, which is not over."""
        return {"minute": "this minute", "hour": "this hour", "day": "today"}[RANGES[self.reach][1]]

    @property
    def form(self) -> str:
        """How its times look: a clock, or a date."""
        return {"hour": "clock", "day": "clock", "week": "date"}.get(self.reach, "day")


def drawn(periods: Sequence[Period], reach: str, now: datetime | None = None, *, due: int = 0) -> Drawn:
    """The plots of what happened in a range. `due` messages are due at present, whether workers have looked or not."""
    now = now or datetime.now(UTC)
    since, by = RANGES[reach]
    length = {"minute": 60, "hour": 3600, "day": 86400}[by]
    last = int(now.timestamp()) // length * length
    starts = [last - length * ago for ago in range(int(since.total_seconds()) // length - 1, -1, -1)]
    by_start: dict[int, list[Period]] = {start: [] for start in starts}
    for period in periods:
        by_start.get(int(period.start.timestamp()), []).append(period)
    sums = [together(by_start[start]) for start in starts]
    return Drawn(reach, [datetime.fromtimestamp(start, UTC) for start in starts], _charts(sums, f"per {by}", due))


def _charts(sums: Sequence[Period | None], unit: str, due: int) -> list[Chart]:
    def line(label: str, tone: str, read: Callable[[Period], Value], nothing: Value = 0.0) -> Line:
        return Line(label, tone, [nothing if one is None else read(one) for one in sums])

    def durations(name: str) -> list[Line]:
        return [
            line("p95", "warn", lambda one: getattr(one, name).percentile(95), None),
            line("p50", "accent", lambda one: getattr(one, name).percentile(50), None),
        ]

    backlog = line("due", "accent", _backlog, None)
    if due:
        backlog.values[-1] = max(backlog.values[-1] or 0, due)
    received, done = line("received", "soft", lambda one: one.received), line("done", "good", lambda one: one.done)
    return [
        Chart("throughput", "Throughput", unit, [received, done]),
        Chart(
            "failures",
            "Failures",
            unit,
            [line("failed attempts", "warn", lambda one: one.failed), line("dead", "bad", lambda one: one.dead)],
        ),
        Chart("backlog", "Backlog", "at most", [backlog]),
        Chart("wait", "Wait", "due until the first attempt", durations("wait"), is_time=True),
        Chart("run", "Run", "of a handler, per message", durations("run"), is_time=True),
        Chart(
            "duplicates",
            "Copies",
            unit,
            [
                line("duplicates stopped", "cool", lambda one: one.duplicates),
                line("mismatches", "warn", lambda one: one.mismatches),
            ],
        ),
    ]


def _backlog(one: Period) -> Value:
    """It is zero where workers were at work and have found none; where none was at work it is not known."""
    return 0 if one.backlog is None and one.done + one.failed else one.backlog


class OfType(NamedTuple):
    """What happened to the messages of a type, or of a destination, in a range."""

    type: str
    consumer: str
    known: Period
    a_minute: float
    """How many were done in a minute, on average."""
    failed_share: float | None
    """How many of 100 attempts failed."""


def by_type(periods: Sequence[Period], reach: str) -> list[OfType]:
    """What happened, type by type, the busiest first."""
    minutes = RANGES[reach][0].total_seconds() / 60
    found = []
    for (consumer, kind), known in together_by(periods, lambda one: (one.consumer, one.type)).items():
        attempts = known.done + known.failed
        share = 100 * known.failed / attempts if attempts else None
        found.append(OfType(kind, consumer, known, known.done / minutes, share))
    return sorted(found, key=lambda one: (-one.known.received - one.known.done, one.type, one.consumer))
