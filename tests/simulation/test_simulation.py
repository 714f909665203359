"""A sample of the simulation: random seeds, which are printed, in both modes; determinism; the command line."""

from __future__ import annotations

import logging
import random

import pytest

from simulation.__main__ import main
from simulation.mutants import judge
from simulation.runner import MODES, run_one
from simulation.sometimes import missing
from simulation.variants import VARIANTS

SEEDS = 75


@pytest.mark.parametrize("part", [0, 1])
def test_random_seeds_find_no_violation(part: int) -> None:
    first = random.SystemRandom().randrange(10**9)
    logging.getLogger("simulation").warning("seeds %d to %d, part %d", first, first + SEEDS - 1, part)
    for seed in range(first, first + SEEDS):
        for mode in MODES:
            world, wrong = run_one(seed, mode, "sqlite")
            assert not wrong, f"python -m simulation --seed {seed} --mode {mode} --trace"
            assert world.history.steps > 100


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_trace(mode: str) -> None:
    for seed in (3, 17, 40):
        first, _ = run_one(seed, mode, "sqlite", trace=True)
        run_one(seed + 1, mode, "sqlite")
        second, _ = run_one(seed, mode, "sqlite", trace=True)
        assert first.scheduler.trace == second.scheduler.trace
        assert first.history.digest == second.history.digest


def test_another_seed_gives_another_trace() -> None:
    digests = {run_one(seed, "safety", "sqlite")[0].history.digest for seed in range(5)}
    assert len(digests) == 5


def test_the_last_line_counts_what_was_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--processes", "1", "--mode", "safety"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("simulate: 2 histories, ")


def test_nothing_run_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "simulate: 0 histories, 0 steps, 0 violations"


def test_a_replay_prints_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--mode", "safety", "--store", "sqlite", "--trace"]) == 0
    text = capsys.readouterr().out
    assert "Commit" in text
    assert "plan " in text


def test_a_state_that_was_never_reached_is_named() -> None:
    world, _ = run_one(3, "safety", "sqlite")
    assert missing(world.counters, ("receipt: accepted", "a flying pig")) == ["a flying pig"]


QUICK = (
    "acknowledge although the commit failed",
    "order without the head rule",
    "nobody promotes",
    "claim ignores notes",
    "the outbox is written after the commit",
    "the hash is not compared",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_caught(name: str) -> None:
    (variant,) = [variant for variant in VARIANTS if variant.name == name]
    verdict = judge(variant, 60)
    assert verdict.caught, verdict.text
