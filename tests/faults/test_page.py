"""docs/faults.md is made from the recorded run, and everyone in the line-up is on it (R70)."""

from __future__ import annotations

from typing import Any

import pytest

from faults import lineup, page, report

RECORDED = report.read()


def names_in(found: dict[str, Any]) -> list[str]:
    return [result["contender"] for result in found["results"]]


def test_the_page_is_made_from_the_report() -> None:
    """`python -m faults.page` writes it again."""
    assert page.PAGE.read_text(encoding="utf-8") == page.page(RECORDED)


def test_everyone_took_part_or_is_named_with_the_reason() -> None:
    assert names_in(RECORDED) == [contender.name for contender in lineup.ALL]


def test_onceward_came_through_the_recorded_run() -> None:
    assert report.holds(RECORDED)
    assert report.last_line(RECORDED).endswith("; onceward lost 0, doubled 0, stuck 0, disordered 0")


@pytest.mark.parametrize("finding", report.COUNTS)
def test_a_finding_of_onceward_fails_the_run(finding: str) -> None:
    results = [{**result, "verdict": {**result["verdict"]}} for result in RECORDED["results"] if "error" not in result]
    results[0]["verdict"][finding] = ["pay-1"]
    assert not report.holds({**RECORDED, "results": results})


def test_a_variant_of_onceward_that_did_not_run_fails_it() -> None:
    results: list[dict[str, Any]] = [{"contender": "onceward, store-first", "error": "why"}]
    assert not report.holds({**RECORDED, "results": results})


def test_a_contender_that_cannot_be_installed_is_named_and_takes_no_other_with_it() -> None:
    name = lineup.ALL[-1].name
    kept = [result for result in RECORDED["results"] if result["contender"] != name]
    text = page.page({**RECORDED, "results": [*kept, {"contender": name, "error": "not installed: why\nmore"}]})
    assert f"- {name}: not installed: why\n" in text
    assert report.holds({**RECORDED, "results": [*kept, {"contender": name, "error": "why"}]})


def test_a_part_takes_its_place_among_the_others() -> None:
    fresh = {**RECORDED, "commit": "fresh", "results": [{"contender": lineup.ALL[1].name, "error": "why"}]}
    whole = report.merged(RECORDED, fresh)
    assert [result["contender"] for result in whole["results"]] == [
        result["contender"] for result in RECORDED["results"]
    ]
    assert whole["results"][1]["error"] == "why"
    with pytest.raises(ValueError, match="run all contenders anew"):
        report.merged(RECORDED, {**fresh, "seed": RECORDED["seed"] + 1})
