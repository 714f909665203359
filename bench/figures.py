"""Every repetition of every contender, and what could not be measured and why."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.contest import Contender


class Inexact(AssertionError):
    """A run did not have exactly the effects it should have had: its time means nothing."""


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition of a contender whose effects were exact."""

    messages: int
    seconds: float
    clients: float
    """The processor's seconds of its own processes."""
    server: float

    def each(self) -> dict[str, float]:
        """The processor's microseconds for each message."""
        return {
            name: round(1e6 * spent / self.messages, 1)
            for name, spent in (("clients", self.clients), ("server", self.server))
        }


class Figures:
    """What was measured, by workload and contender."""

    def __init__(self) -> None:
        self.repetitions: dict[str, list[float]] = {}
        self.runs: dict[str, list[Run]] = {}
        self.contenders: dict[str, Contender] = {}
        self.counts: dict[str, int] = {}
        """How many messages a contender needs for a run that is long enough, where the guess was wrong."""
        self.errors: dict[str, str] = {}
        self.profiles: dict[str, dict[str, float]] = {}
        """Hundredths of its own time that a contender spends in each module."""
        self.notes: dict[str, object] = {}

    def add(self, name: str, value: float) -> None:
        """One more repetition."""
        self.repetitions.setdefault(name, []).append(value)

    def record(self, name: str, run: Run) -> None:
        """One more repetition of a contender: its rate, and what is behind it."""
        self.runs.setdefault(name, []).append(run)
        self.add(name, run.messages / run.seconds)

    def median(self, *names: str) -> float | None:
        """The median of a contender, or of the best of several; None where none could be measured."""
        found = [median(self.repetitions[name]) for name in names if name in self.repetitions]
        return max(found, default=None)

    def medians(self) -> dict[str, float]:
        """The median of every contender."""
        return {name: round(median(values), 3) for name, values in self.repetitions.items()}

    def rounded(self) -> dict[str, list[float]]:
        """Every repetition, as it is written down."""
        return {name: [round(value, 3) for value in values] for name, values in self.repetitions.items()}

    def costs(self) -> dict[str, dict[str, float]]:
        """Microseconds of the processors for each message, the clients' and the server's: medians."""
        return {
            name: {part: round(median(run.each()[part] for run in runs), 1) for part in ("clients", "server")}
            for name, runs in self.runs.items()
        }

    def lengths(self) -> dict[str, list[dict[str, float]]]:
        """How many messages each run had, and how many seconds."""
        return {
            name: [{"messages": run.messages, "seconds": round(run.seconds, 2)} for run in runs]
            for name, runs in self.runs.items()
        }

    def ratio(self, one: str | tuple[str, ...], other: str | tuple[str, ...]) -> float | None:
        """How one contender compares with another."""
        above = self.median(*((one,) if isinstance(one, str) else one))
        below = self.median(*((other,) if isinstance(other, str) else other))
        return None if above is None or not below else round(above / below, 3)


def expect(what: str, found: object, wanted: object) -> None:
    """Fail loudly when a run was not exact."""
    if found != wanted:
        raise Inexact(f"{what}: {found} instead of {wanted}")
