"""What became of one change when its tests were played.

Killed is what makes a test fail, an error of a fixture included, or what takes eight times as long as its tests take,
and two minutes. What no test runs has survived. The quickest tests are played alone first, because collecting the files
of all the others takes longer than most changes live.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from mutants.mutant import Mutant
from mutants.player import Run, Unready, run_tests
from mutation.change import Change
from mutation.covered import Covered
from mutation.equivalent import EQUIVALENT
from mutation.kept import keep, recall

_FIRST = 12
_MOST = 60.0
"""Seconds of tests for one change."""
_ERROR_OF_A_FIXTURE = 1
"""The exit code of pytest, where no test has failed."""
_NOT_FOUND = "not found: "
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
    tests = _quickest(covered.tests(change), covered)
    if not tests:
        return "survived", "no test runs it"
    if found := recall(change, source, tests):
        return found
    found = "survived", f"{len(tests)} tests pass"
    for some in filter(None, (tests[:_FIRST], tests[_FIRST:])):
        if outcome := _killed(change.mutant(source), some, sum(covered.seconds[test] for test in some)):
            found = outcome
            break
    keep(change, source, tests, *found)
    return found


def _quickest(tests: Sequence[str], covered: Covered) -> tuple[str, ...]:
    """As many as end within a minute, and one at least: what survives them counts as survived."""
    ends = accumulate(covered.seconds[test] for test in tests)
    return tuple(test for number, (test, end) in enumerate(zip(tests, ends, strict=True)) if not number or end < _MOST)


def _killed(mutant: Mutant, tests: Sequence[str], seconds: float) -> tuple[str, str] | None:
    """By which of these tests, which take so long on the code as it is; None where they all pass."""
    run = _run(mutant, tests, seconds)
    if run and _NOT_FOUND in run.output:  # what cases are called may be of the code that is changed
        run = _run(mutant, [*dict.fromkeys(map(_bare, tests))], seconds)
    if run and run.code == _ERROR_OF_A_FIXTURE and not run.failed:  # it may be late for reasons of its own
        run = _run(mutant, tests, seconds)
    if run is None:
        return "timeout", "the tests do not end"
    if not run.code:
        return None
    if run.failed:
        return "killed", run.failed if run.failed in tests else _bare(run.failed)
    if _NOT_FOUND in run.output:
        raise Unready(f"a test that is known cannot be found, so that nothing is decided:\n{run.output}")
    return ("timeout", "a test does not end") if "Timeout (>" in run.output else ("killed", "an error before a test")


def _run(mutant: Mutant, tests: Sequence[str], seconds: float) -> Run | None:
    """None where they do not end."""
    try:
        return run_tests(mutant, tests, _SPARE + _TIMES * seconds)
    except subprocess.TimeoutExpired:
        return None


def _bare(test: str) -> str:
    """Its name without its case."""
    return test.partition("[")[0]
