"""A sample of the simulation: seeds in both modes, determinism, the command line, and every mutant."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from pathlib import Path

import pytest

from simulation import mutants
from simulation.__main__ import main
from simulation.runner import MODES, run_one
from simulation.sometimes import WANTED, missing
from simulation.variants import Variant

SEEDS = 5


@pytest.mark.parametrize("part", range(4))
def test_random_seeds_find_no_violation(part: int) -> None:
    first = random.SystemRandom().randrange(10**9)
    logging.getLogger("simulation").warning("seeds %d to %d, part %d", first, first + SEEDS - 1, part)
    for seed in range(first, first + SEEDS):
        for mode in MODES:
            world, wrong = run_one(seed, mode)
            assert not wrong, f"python -m simulation --seed {seed} --mode {mode} --trace"
            assert world.history.steps > 100


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_trace(mode: str) -> None:
    for seed in (3, 17, 40):
        first, _ = run_one(seed, mode, trace=True)
        run_one(seed + 1, mode)
        second, _ = run_one(seed, mode, trace=True)
        assert first.scheduler.trace == second.scheduler.trace
        assert first.history.digest == second.history.digest


def test_another_seed_gives_another_trace() -> None:
    digests = {run_one(seed, "safety")[0].history.digest for seed in range(5)}
    assert len(digests) == 5


def test_runs_add_up_and_each_begins_where_the_last_one_ended(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "figures.json"
    for _ in range(2):
        assert main(["--seeds", "2", "--processes", "1", "--mode", "safety", "--json", str(file)]) == 0
    first, second = json.loads(file.read_text())["runs"]
    last = f"simulate: 2 histories, {second['steps']} steps, 0 violations"
    assert capsys.readouterr().out.splitlines()[-1] == last
    assert [(run["first_seed"], run["seeds"], run["store"]) for run in (first, second)] == [
        (0, 2, "sqlite"),
        (2, 2, "sqlite"),
    ]
    for run in (first, second):
        assert (run["schedules"], run["violations"], set(WANTED) <= set(run["sometimes"])) == (2, 0, True)
        assert (set(run["versions"]), len(run["date"])) == ({"sqlite"}, 10)


@pytest.mark.needs("PostgreSQL", "MariaDB")
def test_a_share_of_the_seeds_runs_on_servers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert main(["--seeds", "2", "--mode", "safety", "--store", "all", "--json", str(file)]) == 0
    runs = json.loads(file.read_text())["runs"]
    assert [(run["store"], run["seeds"], list(run["versions"])) for run in runs] == [
        ("sqlite", 2, ["sqlite"]),
        ("postgres", 1, ["postgres"]),
        ("mariadb", 1, ["mariadb"]),
    ]
    assert "2 seeds on sqlite, 1 seeds on postgres, 1 seeds on mariadb" in capsys.readouterr().out


def test_nothing_run_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "simulate: 0 histories, 0 steps, 0 violations"


def test_a_replay_prints_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--mode", "safety", "--trace"]) == 0
    text = capsys.readouterr().out
    assert "Commit" in text
    assert "plan " in text


def test_a_broken_promise_fails_and_says_how_to_replay_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulation.runner.violations", lambda _: ["loss: everything"])
    assert main(["--seeds", "1", "--mode", "safety"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "loss: everything; replay: python -m simulation --seed 0 --mode safety --store sqlite --trace" in lines
    assert lines[-1].endswith("1 violations")


def test_a_state_that_was_never_reached_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulation.__main__.ENOUGH", 1)
    assert main(["--seeds", "1"]) == 1
    assert "NEVER REACHED once: outcome unknown" in capsys.readouterr().out
    assert missing(Counter(WANTED[1:])) == [WANTED[0]]


def test_there_are_mutants_enough() -> None:
    names = [(variant.name, variant.store) for variant in mutants.ALL]
    assert len(names) == len(set(names)) >= mutants.ENOUGH


@pytest.mark.parametrize("variant", [one for one in mutants.ALL if one.store == "sqlite"], ids=lambda one: one.name)
def test_a_mutant_is_caught(variant: Variant) -> None:
    """By the seed that is written beside it; by another where the code has changed since."""
    verdict = mutants.evaluate(variant, 200)
    assert verdict.caught, verdict.text


def test_the_last_line_counts_the_mutants(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["--only", "acknowledge although the commit failed", "--processes", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "mutants: 1 of 1 caught (1 sqlite)"


def test_a_mutant_that_changes_nothing_is_not_caught() -> None:
    harmless = Variant("harmless", ("loss",))
    stale = Variant("stale", ("loss",), edits={"claim": ("no such text", "")})
    assert not mutants.evaluate(harmless, 3).caught
    assert "does not apply" in mutants.evaluate(stale, 3).text
