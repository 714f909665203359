"""The words and the comparison behind them."""

from __future__ import annotations

from typing import Any

import pytest

from onceward import ConfigurationError, Inbox
from onceward.testing import Case, FixedClock, NotExactlyOnce, Report, Statement
from onceward.testing.report import brief, compared


@pytest.mark.parametrize(
    ("before", "expected", "found", "kind"),
    [
        ([], [(1,)], [(1,)], ""),
        ([], [(1,)], [], "lost"),
        ([], [(1,)], [(1,), (1,)], "doubled"),
        ([], [(1,), (2,)], [(2,)], "lost"),
        ([(7, 0)], [(7, 1)], [(7, 2)], "doubled"),
        ([(7, 9)], [(7, 6)], [(7, 3)], "doubled"),
        ([(7, 0)], [(7, 5)], [(7, 2)], "lost"),
        (0, 1, 3, "doubled"),
        ({"paid": 0}, {"paid": 1}, {"paid": 2}, "doubled"),
        ("", "a", "b", "changed"),
        ([("a",)], [("b",)], [("c",)], "changed"),
        ([(1, 1)], [(2, 2)], [(3, 1)], "changed"),
        (False, True, None, "changed"),
    ],
)
def test_a_difference_has_a_name(before: Any, expected: Any, found: Any, kind: str) -> None:
    assert compared(before, expected, found) == kind


def test_long_values_are_cut() -> None:
    assert len(brief("x" * 1000)) < 320
    assert brief([1]) == "[1]"


def test_a_long_report_names_what_it_does_not_tell() -> None:
    cases = tuple(Case(f"case {number}", "inline", "lost", ("because",)) for number in range(8))
    report = Report("pay", cases, (Statement(1, "SELECT 1"),), ("a note",))
    text = str(report)
    assert text.count("because") == 5
    assert "and 3 more:" in text
    assert "note: a note" in text
    with pytest.raises(NotExactlyOnce):
        report.raise_if_failed()
    assert str(Case("all was well", "inline")) == "EXACTLY ONCE when all was well [inline]"


def test_a_clock_goes_forward() -> None:
    with Inbox("sqlite://") as inbox:
        clock = FixedClock(inbox)
        with pytest.raises(ConfigurationError, match="forward"):
            clock.advance(-1)
        clock.release()
