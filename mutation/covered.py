"""Which test runs which line: found out once for each room and each state of the code, and kept.

Invariant: only tests that passed on the code as it is are known here, so what fails later fails because of the change.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage

from mutants.player import CHECKOUT, PACKAGE
from mutation.change import Change
from mutation.rooms import Room
from mutation.witness import DURATIONS, TEST
from proof.fingerprint import fingerprint

_CACHE = CHECKOUT / "build" / "mutation"
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
        """What is run when a module is imported is of every test that runs anything else of it."""
        rows = self.lines.get(file, {})
        return rows.get(line, ()) or ((test for tests in rows.values() for test in tests) if line in rows else ())


def covered(room: Room) -> Covered:
    """Play the tests of a room, unless it is known what they run."""
    tests = hashlib.sha256(repr(room.tests).encode()).hexdigest()[:8]
    kept = _CACHE / f"{tests}-{fingerprint(('src/onceward', 'tests')).digest}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(_play(room)), encoding="utf-8")
    found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    lines = {file: {int(line): tests for line, tests in rows.items()} for file, rows in found["lines"].items()}
    return Covered(found["seconds"], lines)


def _play(room: Room) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="covered-") as name:
        folder = Path(name)
        (folder / "settings").write_text(_SETTINGS.format(folder=folder, test=TEST), encoding="utf-8")
        durations = folder / "durations"
        subprocess.run(
            [
                *(sys.executable, "-m", "coverage", "run", f"--rcfile={folder / 'settings'}", "-m", "pytest", "-q"),
                *("-p", "mutation.witness", "-p", "no:randomly", "-p", "no:cacheprovider", "-n", "0", *room.tests),
            ],
            cwd=CHECKOUT,
            env={**os.environ, DURATIONS: str(durations)},
            check=False,  # a test that fails is not among those that passed
        )
        data = coverage.CoverageData(basename=str(folder / "combined"))
        for part in folder.glob("coverage.*"):
            one = coverage.CoverageData(basename=str(part))
            one.read()
            data.update(one)
        lines = {
            Path(file).relative_to(PACKAGE).as_posix(): {
                str(line): sorted(filter(None, tests)) for line, tests in data.contexts_by_lineno(file).items()
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
