"""What became of one change when its tests were played.

Killed is what makes a test fail, an error of a fixture included, or what takes eight times as long as its tests take,
and two minutes. What no test runs has survived.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from mutants.player import run_tests
from mutation.change import Change
from mutation.covered import Covered
from mutation.equivalent import EQUIVALENT

_SPARE = 120.0
_TIMES = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    """`result` is killed, timeout, survived or equivalent; `by` is the test, or the reason."""

    room: str
    file: str
    line: int
    kind: str
    change: str
    result: str
    by: str

    @property
    def killed(self) -> bool:
        """Whether the tests noticed."""
        return self.result in ("killed", "timeout")


def play(room: str, change: Change, source: bytes, covered: Covered) -> Outcome:
    """Play the tests that run what is changed, until one fails."""
    result, by = _played(change, source, covered)
    code = source.decode().splitlines()[change.line - 1].strip()
    if result == "survived" and (reason := EQUIVALENT.get((change.file, change.kind, code))):
        result, by = "equivalent", reason
    return Outcome(room, change.file, change.line, change.kind, change.shown(source), result, by)


def _played(change: Change, source: bytes, covered: Covered) -> tuple[str, str]:
    tests = covered.tests(change)
    if not tests:
        return "survived", "no test runs it"
    mutant = change.mutant(source, tests)
    try:
        run = run_tests(mutant, tests, _SPARE + _TIMES * sum(covered.seconds[test] for test in tests))
    except subprocess.TimeoutExpired:
        return "timeout", "the tests do not end"
    if not run.code:
        return "survived", f"{len(tests)} tests pass"
    if run.failed:
        return "killed", run.failed
    return ("timeout", "a test does not end") if "Timeout" in run.output else ("killed", "an error before a test")
