"""The tables of engines say what their recorded runs and the stores say, and the runs found nothing."""

from __future__ import annotations

from engines.__main__ import ENGINES, line
from engines.load import Load, Report, Verdict
from onceward.stores.protocol import EVERYTHING, OURS
from proof.engines import ENGINES_PAGE, STATEMENTS, STORES, capabilities, records, statements, with_table


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


def test_every_engine_has_a_statement_and_every_store_of_ours_a_row() -> None:
    assert STATEMENTS.keys() == ENGINES.keys()
    assert all(f"`{record['run']}`" in statements() for record in records())
    assert {url.partition(":")[0] for url in STORES.values()} == {*OURS} - {"postgres", "mariadb", "rediss"}
    assert all(one in capabilities() for one in EVERYTHING)


def test_what_dynamodb_local_does_not_prove_is_said() -> None:
    assert "proves no durability" in STATEMENTS["dynamodb"].rests_on


def test_the_verdict_sees_what_is_lost_doubled_and_out_of_order() -> None:
    load = Load("", 6)
    load.accepted = [1, 2, 3, 4]
    load._effects = lambda: [("a", 1), ("a", 3), ("a", 2), ("a", 2)]  # type: ignore[method-assign] # as if it had run
    verdict = load._verdict()
    assert (verdict.lost, verdict.doubled, verdict.disordered) == (1, 1, 2)
    report = Report("PostgreSQL", "18.6", "none", Verdict(1, 0, 0, 0, 0))
    assert line("postgres18", report, 9, 0) == (
        "engines: postgres18 18.6, 9 passed, 0 failed, lost 0, doubled 0, disordered 0"
    )
