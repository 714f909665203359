"""The same schedules on real servers, whose locks SQLite does not have: late commits, row locks, key locks."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest

from onceward.errors import StoreConflict
from onceward.flow import COMMIT, ROLLBACK, Begin, Flow, Query
from simulation import mutants
from simulation.checks import violations
from simulation.clock import Clock
from simulation.mysql_variants import WORDS as MYSQL_WORDS
from simulation.mysql_variants import in_mysql
from simulation.postgres_variants import WORDS as POSTGRES_WORDS
from simulation.postgres_variants import in_postgres
from simulation.requests import Blocked
from simulation.runner import MODES, new_server, on_server
from simulation.sabotage import edited
from simulation.variants import Variant
from simulation.workload import scenario
from simulation.world import World
from tests.servers import MariadbServer

IN_WORDS = {"postgres": list(in_postgres(mutants.WRITTEN)), "mariadb": list(in_mysql(mutants.WRITTEN))}


@pytest.fixture(scope="module")
def simulated_mariadb() -> Iterator[MariadbServer]:
    """A MariaDB that does nothing by itself."""
    with new_server("mariadb") as server:
        yield server


@pytest.fixture(params=["postgres", pytest.param("mariadb", marks=pytest.mark.needs("MariaDB"))])
def store(request: pytest.FixtureRequest) -> str:
    """Whose server it is."""
    return str(request.param)


@pytest.fixture
def url(store: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database."""
    if store == "postgres":
        yield request.getfixturevalue("postgres_url")
        return
    server = request.getfixturevalue("simulated_mariadb")
    name = f"simulation_{random.SystemRandom().randrange(10**9)}"
    yield server.create_database(name)
    server.drop_database(name)


@pytest.fixture
def database(url: str) -> Iterator[Any]:
    """An empty database for one history after the other."""
    found = on_server(url)
    yield found
    found.close()


def test_random_seeds_find_no_violation(database: Any, store: str) -> None:
    first = random.SystemRandom().randrange(10**9)
    logging.getLogger("simulation").warning("seeds %d to %d", first, first + 3)
    for seed in range(first, first + 4):
        for mode in MODES:
            found = violations(World(scenario(seed, mode), database).run())
            assert not found, f"{found}: python -m simulation --seed {seed} --mode {mode} --store {store} --trace"


@pytest.mark.parametrize(
    "variant", [one for one in mutants.WRITTEN if one.store == "postgres"], ids=lambda one: one.name
)
def test_a_mutant_is_caught(variant: Variant, postgres_url: str) -> None:
    verdict = mutants.evaluate(variant, 40, postgres_url)
    assert verdict.caught, verdict.text


def test_a_mutant_of_sql_is_caught_in_these_words(store: str, url: str) -> None:
    """One of them; `make mutants` plays all."""
    variant = random.SystemRandom().choice([one for one in IN_WORDS[store] if one.edits and one.seed <= 6])
    verdict = mutants.evaluate(variant, 40, url)
    assert verdict.caught, f"{variant.name}: {verdict.text}"


@pytest.mark.parametrize(("store", "dialect"), [("postgres", "postgres"), ("mariadb", "mysql")])
def test_every_mutant_in_these_words_fits_the_code(store: str, dialect: str) -> None:
    names = {one.name for one in IN_WORDS[store]}
    assert names >= set(POSTGRES_WORDS if store == "postgres" else MYSQL_WORDS)
    for one in IN_WORDS[store]:
        assert edited(one.edits, dialect)


def test_the_same_seed_gives_the_same_trace(database: Any) -> None:
    """However busy the machine is: the worlds (`simulation/pg.py`, `maria.py`) settle what servers decide."""
    digests = [World(scenario(seed, "safety"), database).run().digest for seed in (4, 8, 4, 1065, 1065)]
    assert digests[0] == digests[2] != digests[1]
    assert digests[3] == digests[4], "two wait for the same transaction"


def test_what_an_actor_leaves_open_is_not_the_next_ones(database: Any) -> None:
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


def test_of_two_that_wait_for_each_other_the_last_is_undone(database: Any) -> None:
    """Whatever the server would decide, and when: the other one goes on."""
    database.reset(Clock())
    one, two = database.session("one"), database.session("two")
    for number, session in enumerate((one, two)):
        begin(session)
        session.perform(lock(number))
    with pytest.raises(Blocked):
        one.perform(lock(1))
    with pytest.raises(StoreConflict):
        two.perform(lock(0))
    two.perform(ROLLBACK)
    one.perform(lock(1))
    one.perform(COMMIT)
    assert one.idle
    assert two.idle


def begin(session: Any) -> None:
    """A transaction as steps have it."""
    session.perform(Begin(10.0, 2.0, 20.0))


def lock(key: int) -> Query:
    """The lock of a key."""
    return Query("lock_keys", {"key_hashes": [key]})
