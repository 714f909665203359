"""Every repetition of every contender, and what could not be measured and why."""

from __future__ import annotations

from statistics import median


class Inexact(AssertionError):
    """A run did not have exactly the effects it should have had: its time means nothing."""


class Figures:
    """What was measured, by workload and contender."""

    def __init__(self) -> None:
        self.repetitions: dict[str, list[float]] = {}
        self.errors: dict[str, str] = {}
        self.costs: dict[str, dict[str, float]] = {}
        """Microseconds of the processors for each message, of the last repetition: the clients' and the server's."""
        self.profiles: dict[str, dict[str, float]] = {}
        """Hundredths of its own time that a contender spends in each module."""
        self.notes: dict[str, object] = {}

    def add(self, name: str, value: float) -> None:
        """One more repetition."""
        self.repetitions.setdefault(name, []).append(value)

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

    def ratio(self, one: str | tuple[str, ...], other: str | tuple[str, ...]) -> float | None:
        """How one contender compares with another."""
        above = self.median(*((one,) if isinstance(one, str) else one))
        below = self.median(*((other,) if isinstance(other, str) else other))
        return None if above is None or not below else round(above / below, 3)


def expect(what: str, found: object, wanted: object) -> None:
    """Fail loudly when a run was not exact."""
    if found != wanted:
        raise Inexact(f"{what}: {found} instead of {wanted}")
