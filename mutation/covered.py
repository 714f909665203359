"""Which test runs which line: found out once for each file of tests and each state of the code, and kept.

Invariant: only tests that passed on the code as it is are known here, so what fails later fails because of the change.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage

from mutants.player import CHECKOUT, PACKAGE
from mutation.change import Change
from mutation.rooms import Room
from mutation.state import KEPT, state
from mutation.witness import DURATIONS, TEST
from proof.fingerprint import fingerprint

_SETTINGS = """\
[run]
source_pkgs = onceward
parallel = true
data_file = {folder}/coverage
context = ${{{test}-}}
patch = subprocess, _exit
sigterm = true
disable_warnings = no-data-collected, dynamic-conflict
"""
_PYTEST = ("-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-n", "0")


@dataclass(frozen=True, slots=True)
class Covered:
    """What is known of a room's tests."""

    seconds: dict[str, float]
    """Of each test that passed."""
    lines: dict[str, dict[int, list[str]]]
    """By file and line, the tests that ran it."""

    def tests(self, change: Change) -> tuple[str, ...]:
        """Those that run what is changed, the quickest first. A statement is run where its name is asked for."""
        places = (
            _asked_for(change.section)
            if change.section
            else [(change.file, change.line), (change.file, change.statement)]
        )
        found = {test for file, line in places for test in self._that_run(file, line) if test in self.seconds}
        return tuple(sorted(found, key=lambda test: (self.seconds[test], test)))

    def _that_run(self, file: str, line: int) -> Iterable[str]:
        """What is run when a module is imported is of every test that runs anything else of it, or of all tests."""
        rows = self.lines.get(file, {})
        if line not in rows:
            return ()
        return rows[line] or {test for tests in rows.values() for test in tests} or self.seconds


def covered(room: Room) -> Covered:
    """Play those files of a room's tests of which it is not known what they run."""
    kept = {_kept(file, tests): tests for file, tests in by_file(_collected(room)).items()}
    if missing := {path: tests for path, tests in kept.items() if not path.exists()}:
        found = _play([test for tests in missing.values() for test in tests])
        for path, tests in missing.items():
            path.write_text(json.dumps(part(found, frozenset(tests))), encoding="utf-8")
    return together(json.loads(path.read_text(encoding="utf-8")) for path in kept)


def by_file(tests: Iterable[str]) -> dict[str, list[str]]:
    """The tests of each file."""
    found = defaultdict[str, list[str]](list)
    for test in tests:
        found[test.partition("::")[0]].append(test)
    return found


def part(found: Mapping[str, Any], tests: frozenset[str]) -> dict[str, Any]:
    """What is found of these tests."""
    return {
        "seconds": {test: seconds for test, seconds in found["seconds"].items() if test in tests},
        "lines": {
            file: {line: [test for test in ran if test in tests] for line, ran in rows.items()}
            for file, rows in found["lines"].items()
        },
    }


def together(parts: Iterable[Mapping[str, Any]]) -> Covered:
    """All that was found, of every file of tests."""
    seconds: dict[str, float] = {}
    lines = defaultdict[str, defaultdict[int, list[str]]](lambda: defaultdict(list))
    for one in parts:
        seconds |= one["seconds"]
        for file, rows in one["lines"].items():
            for line, tests in rows.items():
                lines[file][int(line)].extend(tests)
    return Covered(seconds, {file: dict(rows) for file, rows in lines.items()})


def _kept(file: str, tests: Sequence[str]) -> Path:
    chosen = hashlib.sha256("\n".join(tests).encode()).hexdigest()[:8]
    return KEPT / f"lines-{Path(file).stem}-{state(file)}-{chosen}.json"


def _collected(room: Room) -> list[str]:
    """The tests of a room; to list them takes longer than to play many of them."""
    chosen = hashlib.sha256(repr(room.tests).encode()).hexdigest()[:8]
    kept = KEPT / f"tests-{chosen}-{fingerprint(('src/onceward', 'tests')).digest}.json"
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(_listed(room)), encoding="utf-8")
    return list(json.loads(kept.read_text(encoding="utf-8")))


def _listed(room: Room) -> list[str]:
    listed = subprocess.run(
        [sys.executable, *_PYTEST, "--collect-only", "--no-header", "--no-summary", *room.tests],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [line for line in listed.stdout.splitlines() if "::" in line]


def _play(tests: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="covered-") as name:
        folder = Path(name)
        (folder / "settings").write_text(_SETTINGS.format(folder=folder, test=TEST), encoding="utf-8")
        durations = folder / "durations"
        subprocess.run(
            [
                *(sys.executable, "-m", "coverage", "run", f"--rcfile={folder / 'settings'}", *_PYTEST),
                *("-p", "mutation.witness", *tests),
            ],
            cwd=CHECKOUT,
            env={**os.environ, DURATIONS: str(durations)},
            check=False,  # a test that fails is not among those that passed
        )
        data = coverage.CoverageData(basename=str(folder / "combined"))
        for file in folder.glob("coverage.*"):
            one = coverage.CoverageData(basename=str(file))
            one.read()
            data.update(one)
        lines = {
            Path(file).relative_to(PACKAGE).as_posix(): {
                str(line): sorted(filter(None, ran)) for line, ran in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
            if Path(file).is_relative_to(PACKAGE)
        }
        return {"seconds": json.loads(durations.read_text(encoding="utf-8")), "lines": lines}


def _asked_for(section: str) -> list[tuple[str, int]]:
    """The lines of the stores that name a statement."""
    return [
        (path.relative_to(PACKAGE).as_posix(), number)
        for path in sorted((PACKAGE / "stores").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if f'"{section}"' in line
    ]
