"""The table of engines says what their recorded runs say, and these found nothing."""

from __future__ import annotations

from engines.__main__ import ENGINES, line
from engines.load import Load, Verdict
from engines.postgres import Report
from proof.engines import ENGINES_PAGE, records, with_table


def test_the_table_is_made_from_the_records() -> None:
    """`make engines` plays one and writes it again."""
    page = ENGINES_PAGE.read_text(encoding="utf-8")
    assert page == with_table(page)


def test_what_is_recorded_found_nothing() -> None:
    found = {record["run"]: record for record in records()}
    assert found
    assert found.keys() <= ENGINES.keys()
    for record in found.values():
        engine = record["engine"]
        assert len(record["commit"].rstrip("+")) == 40
        assert engine["passed"] > 0
        assert engine["load"]["messages"] >= 1000
        assert [engine["failed"], *(engine["load"][name] for name in ("lost", "doubled", "disordered"))] == [0] * 4


def test_the_judge_sees_what_is_lost_doubled_and_out_of_order() -> None:
    load = Load("", 6)
    load.accepted = [1, 2, 3, 4]
    load._effects = lambda: [("a", 1), ("a", 3), ("a", 2), ("a", 2)]  # type: ignore[method-assign] # as if it had run
    verdict = load._judge()
    assert (verdict.lost, verdict.doubled, verdict.disordered) == (1, 1, 2)
    report = Report("PostgreSQL", "18.6", "all", 9, 0, "none", Verdict(1, 0, 0, 0, 0))
    assert line("postgres18", report) == (
        "engines: postgres18 18.6, 9 passed, 0 failed, lost 0, doubled 0, disordered 0"
    )
