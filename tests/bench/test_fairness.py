"""The scenarios of fairness measure what they say, also with code of another folder; their effects are exact."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from bench import again, before, fairness, page
from bench.figures import Figures, Inexact
from bench.ground import Ground
from bench.race import ROOT
from bench.scale import TINY
from bench.scenarios import __main__ as scenarios
from bench.scenarios.handlers import TABLES
from bench.scenarios.sender import check_once
from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with PostgresServer() as server:
        yield Ground(server)


@pytest.mark.needs("PostgreSQL")
def test_every_scenario_is_exact_and_has_its_figures(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small crowd in each; a scenario whose effects are not exact would fail. One runs with the code of a folder."""
    assert set(scenarios.SCENARIOS) == set(fairness.SCENARIOS)
    figures = Figures()
    for name in fairness.SCENARIOS[:-1]:
        with ground.bare() as url:
            found = scenarios.played(name, url, TINY.crowd)
        for figure, (value,) in found.values.items():
            figures.add(figure, value)
        assert not set(found.notes) & set(found.values)  # everything has run
    monkeypatch.setattr(fairness, "SCENARIOS", ("neighbours",))
    fairness.measure(ground, TINY, figures, ROOT / "src")
    table = fairness.ratios(figures)
    assert set(table) == set(fairness.MOST)
    assert None not in table.values()
    assert table["neighbour_repeats"] == 0


@pytest.mark.needs("PostgreSQL")
def test_a_second_effect_and_a_missing_one_fail(ground: Ground) -> None:
    """They are errors and not figures."""
    with ground.bare() as url:
        with psycopg.connect(url) as connection:
            connection.execute(TABLES)
            connection.execute("INSERT INTO effect VALUES (1), (2), (2)")
        check_once("scenario", url, [1])
        check_once("scenario", url, [1, 3], left=[3])
        with pytest.raises(Inexact, match=r"two effects: \[2\]"):
            check_once("scenario", url, [1, 2])
        with pytest.raises(Inexact, match=r"without effect: \[3\]"):
            check_once("scenario", url, [1, 3])


@pytest.mark.needs("PostgreSQL")
def test_what_a_message_costs_is_compared(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of a folder makes its own tables; both parts of the cost count."""
    monkeypatch.setattr(before, "WORKLOADS", {"handle": "update"})
    (cost,) = before.costs(ground, TINY, {"before": ROOT / "src"}, 1)["handle"]["before"]
    assert cost["clients"] > 0
    was = [{"clients": 30.0, "server": 10.0}, {"clients": 90.0, "server": 10.0}, {"clients": 5.0, "server": 5.0}]
    now = [{"clients": 10.0, "server": 40.0}, {"clients": 60.0, "server": 60.0}, {"clients": 30.0, "server": 10.0}]
    assert before.cost_ratios({"drain": {"before": was, "now": now}}) == {"drain": 1.25}  # of 1.25, 1.2 and 4


@pytest.mark.needs("PostgreSQL")
def test_what_is_measured_again_replaces_what_the_report_had(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only that: the rest of the report stays as it was recorded."""
    monkeypatch.setattr(
        fairness, "measure", lambda _ground, _scale, figures: figures.add("suspects: a fresh message (ms)", 7)
    )
    found = {
        "scale": {"name": "tiny"},
        "settings": {"notes": {"kept": 1, "suspects: a fresh message (ms)": "1 of 2 had not run"}},
        "repetitions": {"suspects: a fresh message (ms)": [9]},
        "medians": {"drain: onceward": 5},
        "ratios": {"suspects_ms": 9, "drain_keyed": 3},
    }
    renewed = again.renewed(found, ground)
    assert (renewed["ratios"]["suspects_ms"], renewed["ratios"]["drain_keyed"]) == (7, 3)
    assert renewed["repetitions"] == {"suspects: a fresh message (ms)": [7]}
    assert renewed["settings"]["notes"] == {"kept": 1}
    assert "suspects_ms" in page.apart(renewed)
