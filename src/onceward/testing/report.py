"""What a proof found, in plain words: which case lost or doubled an effect, and at which statement of the handler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["", "lost", "doubled", "escaped", "changed", "unfinished", "unrepeatable", "uncounted"]
"""What went wrong: nothing; an effect is missing; there more than once; permanent before its transaction was; another
one; the message never finished; the same message from the same start has another effect each time; or it called the
outside, and nothing counts those calls."""

SHOWN = 5
"""How many failures are told in full; the others are named."""
MAX_VALUE = 300


class NotExactlyOnce(AssertionError):
    """A handler lost or doubled an effect; the text says when, and at which of its statements."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that the handler ran through `tx`."""

    number: int
    sql: str
    where: str = ""
    """File and line of the handler, where they could be found."""

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"statement {self.number}, `{self.sql}`{place}"


@dataclass(frozen=True, slots=True)
class Case:
    """One disturbance, and what became of the effect."""

    name: str
    """What was done, in plain words."""
    mode: str
    kind: Kind = ""
    detail: tuple[str, ...] = ()
    statement: Statement | None = None
    external_calls: int | None = None
    """How often the external effect happened, where `external=` shows it."""

    @property
    def ok(self) -> bool:
        """Whether the message took effect exactly once."""
        return not self.kind

    def __str__(self) -> str:
        lines = [f"{(self.kind or 'exactly once').upper()} when {self.name} [{self.mode}]"]
        return "\n".join([*lines, *(f"    {line}" for line in self.detail)])


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a proof."""

    handler: str
    cases: tuple[Case, ...]
    statements: tuple[Statement, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out, and external calls that were made more than once as declared."""

    @property
    def failures(self) -> tuple[Case, ...]:
        """The cases in which something was lost or doubled."""
        return tuple(case for case in self.cases if not case.ok)

    @property
    def ok(self) -> bool:
        """Whether every case took effect exactly once."""
        return not self.failures

    def raise_if_failed(self) -> None:
        """Raise `NotExactlyOnce` with the whole report, unless all is well."""
        if not self.ok:
            raise NotExactlyOnce(str(self))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        failures = self.failures
        if failures:
            yield f"{self.handler}: NOT exactly once; {len(failures)} of {len(self.cases)} cases went wrong"
        else:
            yield f"{self.handler}: exactly once in all {len(self.cases)} cases"
        for statement in self.statements:
            yield f"  {statement}"
        if not self.statements:
            yield "  no statement goes through tx"
        yield from (f"  note: {note}" for note in self.notes)
        for number, case in enumerate(failures[:SHOWN], start=1):
            first, *rest = str(case).split("\n")
            yield f"  {number}. {first}"
            yield from (f"   {line}" for line in rest)
        if failures[SHOWN:]:
            yield f"  and {len(failures) - SHOWN} more:"
            yield from (f"    {case.kind} when {case.name} [{case.mode}]" for case in failures[SHOWN:])


def brief(value: Any) -> str:
    """A value short enough for a report."""
    text = repr(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}..."


def compared(before: Any, expected: Any, found: Any) -> Kind:
    """How a found effect differs from the expected one; `before` is what there was without the message."""
    if found == expected:
        return ""
    if found == before:
        return "lost"
    if isinstance(expected, list) and isinstance(found, list):
        extra, missing = _without(found, expected), _without(expected, found)
        if not missing or not extra:
            return "doubled" if extra else "lost"
    steps = list(_steps(before, expected, found)) or [(0, 1), (1, 0)]
    too_far = {actual > wanted for wanted, actual in steps}
    return "changed" if len(too_far) > 1 else "doubled" if too_far == {True} else "lost"


def _without(these: list[Any], those: list[Any]) -> list[Any]:
    rest = list(those)
    found = []
    for item in these:
        if item in rest:
            rest.remove(item)
        else:
            found.append(item)
    return found


def _steps(before: Any, expected: Any, found: Any) -> Iterator[tuple[float, float]]:
    """How far each differing number moved: as it should, and as it did; in its own direction."""
    if isinstance(expected, bool) or isinstance(found, bool):
        return
    if isinstance(expected, int | float) and isinstance(found, int | float):
        if expected != found:
            start = before if isinstance(before, int | float) else 0
            sign = 1 if expected >= start else -1
            yield sign * (expected - start), sign * (found - start)
        return
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple) and len(expected) == len(found):
        old = before if isinstance(before, list | tuple) and len(before) == len(expected) else [None] * len(expected)
        for triple in zip(old, expected, found, strict=True):
            yield from _steps(*triple)
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        for name, value in expected.items():
            yield from _steps(before.get(name) if isinstance(before, dict) else None, value, found[name])
