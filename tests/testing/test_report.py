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


def test_a_report_tells_each_cause_once() -> None:
    """D49: what one mistake leads to is one entry, with one case in full and the names of some others."""
    lost = [
        Case(f"case {number}", "inline", "lost", (f"found {number}",), "it took a retry for done")
        for number in range(8)
    ]
    doubled = Case("the process died", "inline", "doubled", (), "a call is made again")
    report = Report("pay", (*lost[:4], doubled, *lost[4:]), (Statement(1, "SELECT 1"),), ("a note",), ("the weather",))
    text = str(report)
    assert "9 of 9 cases went wrong, for 2 reasons" in text
    assert text.count("it took a retry for done") == 1
    assert "  1. LOST in 8 cases: it took a retry for done\n" in text
    assert text.count("found") == 1
    assert "when case 4 [inline]" in text
    assert "and in 3 other cases" in text
    assert "  2. DOUBLED in 1 case: a call is made again\n" in text
    assert "note: a note" in text
    assert "not looked at: the weather" in text
    assert [(cause.why, len(cause.cases), cause.kinds) for cause in report.causes] == [
        ("it took a retry for done", 8, ("lost",)),
        ("a call is made again", 1, ("doubled",)),
    ]
    with pytest.raises(NotExactlyOnce):
        report.raise_if_failed()
    assert str(Case("all was well", "inline")) == "EXACTLY ONCE when all was well [inline]"


def test_a_clock_goes_forward() -> None:
    with Inbox("sqlite://") as inbox:
        clock = FixedClock(inbox)
        with pytest.raises(ConfigurationError, match="forward"):
            clock.advance(-1)
        clock.release()
