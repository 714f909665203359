"""The same schedules on a real PostgreSQL, whose locks SQLite does not have: late commits, row locks, key locks."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest

from onceward.flow import COMMIT, Flow, Query
from simulation import mutants
from simulation.checks import violations
from simulation.pg import PgDatabase
from simulation.postgres_variants import WORDS, in_postgres
from simulation.runner import MODES
from simulation.sabotage import edited
from simulation.variants import Variant
from simulation.workload import scenario
from simulation.world import World

IN_POSTGRES = list(in_postgres(mutants.WRITTEN))


@pytest.fixture
def database(postgres_url: str) -> Iterator[PgDatabase]:
    """An empty database for one history after the other."""
    found = PgDatabase(postgres_url)
    yield found
    found.close()


def test_random_seeds_find_no_violation(database: PgDatabase) -> None:
    first = random.SystemRandom().randrange(10**9)
    logging.getLogger("simulation").warning("seeds %d to %d", first, first + 3)
    for seed in range(first, first + 4):
        for mode in MODES:
            found = violations(World(scenario(seed, mode), database).run())
            assert not found, f"{found}: python -m simulation --seed {seed} --mode {mode} --store URL --trace"


@pytest.mark.parametrize(
    "variant", [one for one in mutants.WRITTEN if one.store == "postgres"], ids=lambda one: one.name
)
def test_a_mutant_is_caught(variant: Variant, postgres_url: str) -> None:
    verdict = mutants.evaluate(variant, 40, postgres_url)
    assert verdict.caught, verdict.text


def test_a_mutant_of_sql_is_caught_in_these_words(postgres_url: str) -> None:
    """One of them; `make mutants` plays all."""
    variant = random.SystemRandom().choice([one for one in IN_POSTGRES if one.seed <= 6])
    verdict = mutants.evaluate(variant, 40, postgres_url)
    assert verdict.caught, f"{variant.name}: {verdict.text}"


def test_every_mutant_in_these_words_fits_the_code() -> None:
    assert {one.name for one in IN_POSTGRES} == set(WORDS)
    for one in IN_POSTGRES:
        assert edited(one.edits, "postgres")


def test_the_same_seed_gives_the_same_trace(database: PgDatabase) -> None:
    """However busy the machine is: see `simulation/backends.py` for what the server would decide by itself."""
    digests = [World(scenario(seed, "safety"), database).run().digest for seed in (4, 8, 4, 1065, 1065)]
    assert digests[0] == digests[2] != digests[1]
    assert digests[3] == digests[4], "two wait for the same transaction"


def test_what_an_actor_leaves_open_is_not_the_next_ones(database: PgDatabase) -> None:
    """A connection serves one actor after the other; what was not committed has not happened."""
    world = World(scenario(0, "safety"), database)
    begin = world.plain_context().short()

    def leaving() -> Flow[None]:
        yield begin
        yield Query("forget_worker", {"worker": 7})

    def committing() -> Flow[None]:
        yield begin
        yield COMMIT

    world.nemesis.active = False
    for step in (leaving(), committing()):
        world.scheduler.spawn("one", step, process=None, on_end=lambda *_: None)
        while world.scheduler.tick():
            pass
    assert world.history.departed == []
