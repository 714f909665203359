"""Runs many histories, on several cores, and adds up what they found."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from simulation.checks import violations
from simulation.lite import LiteDatabase
from simulation.schedules import Recorder, Replay, Schedule, shortened
from simulation.workload import scenario
from simulation.world import World

MODES = ("safety", "liveness")
STORES = ("sqlite", "postgres", "mariadb")
"""Where a history can happen: a name in the record is one of these."""
SERVED = STORES[1:]
"""Those that a server keeps."""
CHUNK = 20


@dataclass(slots=True)
class Found:
    """What one or more histories found."""

    histories: int = 0
    steps: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str, list[str]]] = field(default_factory=list)
    """(seed, mode, violations)"""

    def add(self, other: Found) -> None:
        """Put two together."""
        self.histories += other.histories
        self.steps += other.steps
        self.counters += other.counters
        self.failures = sorted(self.failures + other.failures)


_databases: dict[str, Any] = {}


def database(store: str) -> Any:
    """The database of this process; one history uses it at a time. A store is "sqlite", or the URL of a server."""
    if store not in _databases:
        _databases[store] = LiteDatabase() if store == "sqlite" else on_server(store)
    return _databases[store]


def on_server(url: str, statements: Mapping[str, tuple[str, ...]] | None = None) -> Any:
    """An empty database on a server, for one history after the other."""
    if url.startswith("mysql"):
        from simulation.maria import MariaDatabase  # noqa: PLC0415 - the driver loads on demand

        return MariaDatabase(url, statements)
    from simulation.pg import PgDatabase  # noqa: PLC0415 - as above

    return PgDatabase(url, statements)


def new_server(store: str) -> Any:
    """A server of a store, as simulations need it."""
    if store == "mariadb":
        from simulation.maria import SETTINGS  # noqa: PLC0415 - as above
        from tests.servers.mariadb import MariadbServer  # noqa: PLC0415 - as above

        return MariadbServer(settings=SETTINGS)
    from tests.servers.postgres import PostgresServer  # noqa: PLC0415 - as above

    return PostgresServer()


@contextmanager
def place(store: str) -> Iterator[str]:
    """What to call a store in this process: a server's is an empty database on one that is started for it."""
    if store not in SERVED:
        yield store
        return
    with new_server(store) as server:
        url = server.create_database("simulation")
        yield url
        if opened := _databases.pop(url, None):
            opened.close()


def run_one(seed: int, mode: str, store: str = "sqlite", *, trace: bool = False) -> tuple[World, list[str]]:
    """One history and what is wrong with it."""
    world = World(scenario(seed, mode), database(store), trace=trace)
    history = world.run()
    return world, [str(violation) for violation in violations(history)]


def recorded(seed: int, mode: str, where: str, *, store: str, finding: str) -> Schedule:
    """The schedule of a seed, in short numbers where these give the same history again."""
    recorder = Recorder(f"run:{mode}:{seed}")
    digest = World(scenario(seed, mode), database(where), chance=recorder).run().digest
    for turns in (shortened(recorder.turns), recorder.turns):
        world, _ = replayed(Schedule(finding, store, scenario(seed, mode), turns), where)
        if world.history.digest == digest:
            return Schedule(finding, store, scenario(seed, mode), turns)  # a history changes its scenario
    raise ValueError(f"seed {seed}, {mode}: its schedule is not the same history again")


def replayed(schedule: Schedule, where: str, *, trace: bool = False) -> tuple[World, list[str]]:
    """A history that was kept, and what is wrong with it."""
    world = World(schedule.scenario, database(where), trace=trace, chance=Replay(schedule.turns))
    return world, [str(violation) for violation in violations(world.run())]


def run_chunk(work: tuple[list[int], tuple[str, ...], str]) -> Found:
    """Some seeds, one after the other."""
    seeds, modes, store = work
    found = Found()
    for seed in seeds:
        for mode in modes:
            world, wrong = run_one(seed, mode, store)
            found.histories += 1
            found.steps += world.history.steps
            found.counters += world.counters
            if wrong:
                found.failures.append((seed, mode, wrong))
    return found


def run_many(seeds: range, modes: tuple[str, ...], store: str = "sqlite", *, processes: int = 2) -> Iterator[Found]:
    """All seeds, a chunk at a time, on some cores; a database on a server serves one history at a time."""
    chunks = [(list(seeds[at : at + CHUNK]), modes, store) for at in range(0, len(seeds), CHUNK)]
    if store != "sqlite" or processes <= 1 or len(chunks) <= 1:
        yield from map(run_chunk, chunks)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(run_chunk, chunks)
        pool.close()
        pool.join()  # so that each removes its database
