"""The same schedules on a real PostgreSQL, whose locks SQLite does not have: late commits, row locks, key locks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulation import mutants
from simulation.checks import violations
from simulation.pg import PgDatabase
from simulation.runner import MODES
from simulation.variants import Variant
from simulation.workload import scenario
from simulation.world import World


@pytest.fixture
def database(postgres_url: str) -> Iterator[PgDatabase]:
    """An empty database for one history after the other."""
    found = PgDatabase(postgres_url)
    yield found
    found.close()


def test_some_seeds_find_no_violation(database: PgDatabase) -> None:
    """Others, and many, are for the long run: `python -m simulation --store URL`."""
    for seed in range(4):
        for mode in MODES:
            # What a real server does in time is not the seed's alone: a violation is one that the seed repeats.
            found = [violations(World(scenario(seed, mode), database).run())]
            while found[-1] and len(found) < 3:
                found.append(violations(World(scenario(seed, mode), database).run()))
            assert not found[-1], f"{found}: python -m simulation --seed {seed} --mode {mode} --store URL --trace"


@pytest.mark.parametrize("variant", [one for one in mutants.ALL if one.store == "postgres"], ids=lambda one: one.name)
def test_a_mutant_is_caught(variant: Variant, postgres_url: str) -> None:
    verdict = mutants.judge(variant, 40, postgres_url)
    assert verdict.caught, verdict.text


def test_the_same_seed_gives_the_same_trace(database: PgDatabase) -> None:
    digests = [World(scenario(seed, "safety"), database).run().digest for seed in (8, 4, 4, 4)]
    # On a busy machine one of them may be interrupted elsewhere.
    assert len(set(digests[1:])) < 3
    assert digests[0] not in digests[1:]
