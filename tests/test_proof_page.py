"""The page of figures says what the suites' own reports say, and every suite is on it."""

from __future__ import annotations

import json

import pytest

from proof.__main__ import FIGURES, PAGE, page


def test_the_page_is_made_from_the_figures() -> None:
    """`python -m proof` writes it again."""
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("suite", ["crash", "simulate", "mutants", "chaos", "fuzz", "soak"])
def test_every_suite_has_run_and_found_nothing(suite: str) -> None:
    figures = json.loads((FIGURES / f"{suite}.json").read_text(encoding="utf-8"))
    assert figures["run"] == suite
    assert len(figures["commit"].rstrip("+")) == 40
    wrong = ("violations", "lost", "doubled", "disordered", "stuck", "grown")
    assert all(figures.get(name, 0) == 0 for name in wrong)
    if suite == "mutants":
        assert figures["caught"] == figures["total"] >= 20
