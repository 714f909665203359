"""Plays mutants: a copy of the package with one edit, and a run of the tests that must notice it.

Invariants: the checkout is never edited; a mutant gets a process of its own with the copy before everything else on the
path, which the processes that its tests start inherit; and nothing is decided by a test that fails without the mutant.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mutants.mutant import Mutant
from mutants.verdict import Verdict
from mutants.witness import FOLDER, NOTE

CHECKOUT = Path(__file__).parents[1]
PACKAGE = CHECKOUT / "src" / "onceward"
# Without other plugins' order, cache and processes: one test fails for one reason.
_OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "mutants.witness", "--timeout=90")
_FAILED = 1
"""The exit code of pytest where a test failed; others mean that nothing was found, or that it could not run."""


class Unready(Exception):
    """The tests cannot decide anything: they fail on the code as it is."""


def play(mutants: Sequence[Mutant], processes: int = 2) -> Iterator[Verdict]:
    """Evaluate them, in order, several at a time; the tests must pass on the code as it is."""
    if not mutants:
        return
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    unready = run_tests(None, tests)
    if unready.code:
        raise Unready(f"the tests do not pass without a mutant:\n{unready.output}")
    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(evaluate, mutants)


def evaluate(mutant: Mutant) -> Verdict:
    """Run the tests of a mutant on it."""
    if problem := stale(mutant):
        return Verdict(mutant.name, mutant.store, caught=False, text=f"does not apply: {problem}")
    run = run_tests(mutant, mutant.tests)
    if run.code == _FAILED and run.failed:
        return Verdict(mutant.name, mutant.store, caught=True, text=run.failed)
    why = "every test passes" if not run.code else f"no test failed (pytest ended with {run.code}):\n{run.output}"
    return Verdict(mutant.name, mutant.store, caught=False, text=why)


def stale(mutant: Mutant) -> str:
    """Why the edit cannot be made, if it cannot."""
    file = PACKAGE / mutant.file
    if not file.is_file():
        return f"there is no {mutant.file}"
    count = file.read_text(encoding="utf-8").count(mutant.old)
    return "" if count == 1 else f"{mutant.file} has {mutant.old!r} {count} times"


class Run(NamedTuple):
    """The exit code of pytest, the test that failed, and the end of what was printed."""

    code: int
    failed: str
    output: str


def run_tests(mutant: Mutant | None, tests: Sequence[str], seconds: float | None = None) -> Run:
    """Run tests on a mutant, or on the code as it is; raises subprocess.TimeoutExpired where that takes longer."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        # With its bytecode: then only the edited module is compiled again.
        shutil.copytree(PACKAGE, folder / PACKAGE.name)
        if mutant:
            edited = folder / PACKAGE.name / mutant.file
            edited.write_text(edited.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        path = os.pathsep.join(filter(None, (name, os.environ.get("PYTHONPATH"))))
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *_OPTIONS, *tests],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": path, FOLDER: name, "ONCEWARD_STORES": "all"},  # no turns are taken
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as running:
            try:
                output, _ = running.communicate(timeout=seconds)
            finally:
                # What its tests started would go on, and hold the output open.
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
        note = folder / NOTE
        failed = note.read_text(encoding="utf-8") if note.exists() else ""
        return Run(running.returncode, failed, "\n".join(output.splitlines()[-30:]))
