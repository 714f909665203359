"""What earlier runs have found of a change.

Invariant: it holds only while the package and the files of the tests that decided it are the same: of a change that was
killed, the one of the test that did it; of another, those of all the tests that run it. So after a test was written,
only what it may kill is played again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from mutation.change import Change
from mutation.state import KEPT, state


def recall(change: Change, source: bytes, tests: Sequence[str]) -> tuple[str, str] | None:
    """The result and what decided it; None where these tests are still to be played."""
    path = _path(change, source)
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    decided = [found["by"]] if found["by"] in tests else tests
    return (found["result"], found["by"]) if found["tests"] == _digest(decided) else None


def keep(change: Change, source: bytes, tests: Sequence[str], result: str, by: str) -> None:
    """Remember it."""
    decided = [by] if by in tests else tests
    KEPT.mkdir(parents=True, exist_ok=True)
    found = {"result": result, "by": by, "tests": _digest(decided)}
    _path(change, source).write_text(json.dumps(found), encoding="utf-8")


def _path(change: Change, source: bytes) -> Path:
    return KEPT / f"change-{hashlib.sha256(source + repr(change).encode()).hexdigest()[:16]}.json"


def _digest(tests: Sequence[str]) -> str:
    states = {file: state(file) for file in {test.partition("::")[0] for test in tests}}
    return hashlib.sha256(json.dumps([sorted(tests), sorted(states.items())]).encode()).hexdigest()[:16]
