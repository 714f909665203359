"""What a proof found, in plain words: which case lost or doubled an effect, and at which statement of the handler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from onceward.domain.text import count

Kind = Literal["", "lost", "doubled", "escaped", "changed", "unfinished", "unrepeatable", "uncounted"]
"""What went wrong: nothing; an effect is missing; there more than once; permanent before its transaction was; another
one; the message never finished; the same message from the same start has another effect each time; or it called the
outside, and nothing counts those calls."""

SHOWN = 4
"""How many further cases of a cause are named; the others are counted."""
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
    """One fault, and what became of the effect."""

    name: str
    """What was done, in plain words."""
    mode: str
    kind: Kind = ""
    detail: tuple[str, ...] = ()
    why: str = ""
    """What in the handler leads to it, and what to do instead; the same text in each case of the same cause."""
    statement: Statement | None = None
    external_calls: int | None = None
    """How often the external effect happened, where `external=` shows it."""

    @property
    def ok(self) -> bool:
        """Whether the message took effect exactly once."""
        return not self.kind

    def __str__(self) -> str:
        lines = [f"{(self.kind or 'exactly once').upper()} when {self.name} [{self.mode}]"]
        why = [f"why: {self.why}"] if self.why else []
        return "\n".join([*lines, *(f"    {line}" for line in (*self.detail, *why))])


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a handler is not exactly once, and the cases that have shown it, the first one first."""

    why: str
    cases: tuple[Case, ...]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What it leads to."""
        return tuple(dict.fromkeys(case.kind for case in self.cases))

    def lines(self) -> Iterator[str]:
        """As the report shows it: one case in full, and the names of some others."""
        first, *others = self.cases
        yield f"{', '.join(self.kinds).upper()} in {count(len(self.cases), 'case')}: {self.why}"
        yield f"    when {first.name} [{first.mode}]"
        yield from (f"      {line}" for line in first.detail)
        yield from (f"    when {case.name} [{case.mode}]" for case in others[:SHOWN])
        if others[SHOWN:]:
            yield f"    and in {count(len(others) - SHOWN, 'other case')}"


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a proof."""

    handler: str
    cases: tuple[Case, ...]
    statements: tuple[Statement, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out, and external calls that were made more than once as declared."""
    unseen: tuple[str, ...] = ()
    """What the proof did not look at."""

    @property
    def failures(self) -> tuple[Case, ...]:
        """The cases in which something was lost or doubled."""
        return tuple(case for case in self.cases if not case.ok)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The failures by what leads to them, in the order in which they were found."""
        found: dict[str, list[Case]] = {}
        for case in self.failures:
            found.setdefault(case.why or "; ".join(case.detail) or case.name, []).append(case)
        return tuple(Cause(why, tuple(cases)) for why, cases in found.items())

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
        failures, causes = self.failures, self.causes
        if failures:
            wrong = f"{len(failures)} of {count(len(self.cases), 'case')} went wrong"
            yield f"{self.handler}: NOT exactly once; {wrong}, for {count(len(causes), 'reason')}"
        else:
            yield f"{self.handler}: exactly once in all {len(self.cases)} cases"
        for statement in self.statements:
            yield f"  {statement}"
        if not self.statements:
            yield "  no statement goes through tx"
        yield from (f"  note: {note}" for note in self.notes)
        yield from (f"  not looked at: {what}" for what in self.unseen)
        for number, cause in enumerate(causes, start=1):
            first, *rest = cause.lines()
            yield f"  {number}. {first}"
            yield from (f" {line}" for line in rest)


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
