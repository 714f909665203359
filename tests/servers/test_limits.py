"""Whatever a run leaves out is named at its end, with the reason (E13)."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import pytest

from tests.servers.limits import LEFT_OUT, leave_out, summary

TESTS = Path(__file__).parents[1]
LEFT_OUT_BY = re.compile(
    r"pytest_deselected|collect_ignore|pytest_ignore_collect|\bitems\[:\] =|\bitems\.(remove|clear|pop)\("
)


def test_nothing_is_left_out_in_another_way() -> None:
    """One function does it, and it keeps the reason; a test cannot vanish unnamed."""
    found = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if path != Path(__file__) and LEFT_OUT_BY.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"servers/limits.py"}


def test_what_is_left_out_is_counted_and_has_its_reason() -> None:
    """The count that pytest prints is the sum of what is named."""
    config, items = mock.Mock(stash=pytest.Stash()), [mock.Mock(nodeid=f"tests/a.py::test_{name}[x]") for name in "abc"]
    config.stash[LEFT_OUT] = {}
    gone = items[:2]
    leave_out(config, items, dict.fromkeys(gone, "no server"))  # type: ignore[arg-type] # as much of them as is used
    config.hook.pytest_deselected.assert_called_once_with(items=gone)
    assert len(items) == 1
    assert list(summary(config.stash[LEFT_OUT])) == ["no server: 2 cases: test_a[x], test_b[x]"]


def test_many_are_named_by_their_files() -> None:
    """With how many each has; a single one is a case."""
    many = {f"tests/{file}.py::test_{number}[{case}]": "slow" for file in "ab" for number in range(20) for case in "xy"}
    assert list(summary({**many, "tests/c.py::test_1": "alone"})) == [
        "alone: 1 case: test_1",
        "slow: 80 cases: tests/a.py (40), tests/b.py (40)",
    ]
