"""What is known of tests and changes is kept while it is true: found again on the same code, and on no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutation import kept
from mutation.change import Change
from mutation.covered import Covered, by_file, part, together
from mutation.outcome import _quickest

HERE, THERE = "tests/unit/test_retry.py::test_a", "tests/unit/test_ids.py::test_b[x y]"
CHANGE, SOURCE = Change("f.py", 0, 1, "b", "constant", 1), b"a"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT", tmp_path / "kept")


def after(monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    """Another file of tests."""
    monkeypatch.setattr(kept, "state", lambda file: f"{file} {file in changed}")


def test_what_was_found_is_found_again() -> None:
    assert kept.recall(CHANGE, SOURCE, [HERE]) is None
    kept.keep(CHANGE, SOURCE, [HERE, THERE], "survived", "2 tests pass")
    assert kept.recall(CHANGE, SOURCE, [THERE, HERE]) == ("survived", "2 tests pass")
    assert kept.recall(CHANGE, b"aa", [HERE, THERE]) is None
    assert kept.recall(CHANGE, SOURCE, [HERE]) is None, "other tests run it now"


def test_a_kill_holds_until_its_own_test_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    after(monkeypatch, "")
    kept.keep(CHANGE, SOURCE, [HERE, THERE], "killed", HERE)
    after(monkeypatch, THERE)
    assert kept.recall(CHANGE, SOURCE, [HERE]) == ("killed", HERE)
    assert kept.recall(CHANGE, SOURCE, [THERE]) is None, "it does not run the change any more"
    after(monkeypatch, HERE)
    assert kept.recall(CHANGE, SOURCE, [HERE, THERE]) is None


@pytest.mark.parametrize("result", ["survived", "timeout"])
def test_what_no_single_test_decided_holds_until_one_of_them_changes(
    monkeypatch: pytest.MonkeyPatch, result: str
) -> None:
    after(monkeypatch, "")
    kept.keep(CHANGE, SOURCE, [HERE, THERE], result, "they do not end")
    assert kept.recall(CHANGE, SOURCE, [HERE, THERE]) == (result, "they do not end")
    after(monkeypatch, THERE)
    assert kept.recall(CHANGE, SOURCE, [HERE, THERE]) is None


def test_what_was_found_at_once_is_kept_by_file_and_is_whole_together() -> None:
    tests = by_file([HERE, THERE])
    assert tests == {"tests/unit/test_retry.py": [HERE], "tests/unit/test_ids.py": [THERE]}
    found = {"seconds": {HERE: 1.0, THERE: 2.0}, "lines": {"f.py": {"1": [], "2": [HERE, THERE], "3": [THERE]}}}
    parts = [part(found, frozenset(some)) for some in tests.values()]
    assert parts[0] == {"seconds": {HERE: 1.0}, "lines": {"f.py": {"1": [], "2": [HERE], "3": []}}}
    assert together(parts) == Covered({HERE: 1.0, THERE: 2.0}, {"f.py": {1: [], 2: [HERE, THERE], 3: [THERE]}})


def test_a_change_gets_a_minute_of_tests_and_one_at_least() -> None:
    known = Covered({"a": 1.0, "b": 50.0, "c": 20.0, "slow": 100.0}, {})
    assert _quickest(("a", "b", "c"), known) == ("a", "b")
    assert _quickest(("slow",), known) == ("slow",)
    assert _quickest((), known) == ()
