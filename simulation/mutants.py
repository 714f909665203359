"""`python -m simulation.mutants`: every known-bad variant must be caught, by the violation it was made for.

`make mutants` plays these beside the mutants that tests must catch (the package `mutants`).
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from mutants.verdict import Verdict, tell
from simulation.checks import violations
from simulation.fleet_variants import FLEET
from simulation.lite import LiteDatabase
from simulation.mysql_variants import in_mysql
from simulation.postgres_variants import in_postgres
from simulation.runner import MODES, SERVED, new_server, on_server
from simulation.sabotage import Stale, edited
from simulation.variants import VARIANTS, Variant
from simulation.workload import scenario
from simulation.world import World

ENOUGH = 20
DIALECTS = {"mariadb": "mysql"}
"""Whose words a store takes, where they have another name."""
WRITTEN = (*VARIANTS, *FLEET)
ALL = (*WRITTEN, *in_postgres(WRITTEN), *in_mysql(WRITTEN))


def evaluate(variant: Variant, seeds: int, url: str = "") -> Verdict:
    """Run a variant until it is caught, or the seeds are used up; `url` is an empty database on a server."""
    others: set[str] = set()
    try:
        database = _database(variant, url)
    except Stale as error:
        return Verdict(variant.name, variant.store, caught=False, text=f"does not apply: {error}")
    with variant.patch(), closing(database):
        for seed in (variant.seed, *range(seeds)):
            for mode in MODES:
                world = World(scenario(seed, mode, variant.theme), database)
                kinds = {violation.kind for violation in violations(world.run())}
                hit = kinds & set(variant.expected)
                if hit:
                    text = f"seed {seed}, {mode}: {', '.join(sorted(hit))}"
                    return Verdict(variant.name, variant.store, caught=True, text=text)
                others |= kinds
    text = f"not in {seeds} seeds; saw {sorted(others) or 'nothing'}"
    return Verdict(variant.name, variant.store, caught=False, text=text)


def _database(variant: Variant, url: str) -> Any:
    statements = edited(variant.edits, DIALECTS.get(variant.store, variant.store)) if variant.edits else None
    return on_server(url, statements) if url else LiteDatabase(statements, schema=variant.schema)


def _evaluate(work: tuple[int, int, str]) -> Verdict:
    at, seeds, url = work
    return evaluate(ALL[at], seeds, url)


@contextmanager
def _servers(chosen: list[int]) -> Iterator[dict[int, str]]:
    """A database of its own for each variant of a server's text."""
    urls: dict[int, str] = {}
    with ExitStack() as stack:
        for store in SERVED:
            wanted = [at for at in chosen if ALL[at].store == store]
            if wanted:
                server = stack.enter_context(new_server(store))
                urls |= {at: server.create_database(f"mutant_{at}") for at in wanted}
        yield urls


def play(only: str = "", seeds: int = 400, processes: int = 2) -> Iterator[Verdict]:
    """Evaluate those whose names hold `only`, in order; a variant gets that many seeds at most."""
    chosen = [at for at, variant in enumerate(ALL) if only in variant.name]
    # A fresh process each: what a variant replaces must not reach the next one.
    with (
        _servers(chosen) as urls,
        multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool,
    ):
        work = [(at, seeds, urls.get(at, "")) for at in chosen]
        yield from pool.imap(_evaluate, work, chunksize=1)
        pool.close()
        pool.join()  # so that each removes its database


def main(arguments: list[str] | None = None) -> int:
    """Evaluate all of them, and answer the exit code."""
    parser = argparse.ArgumentParser(prog="python -m simulation.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=400, help="how many seeds a variant gets at most")
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    verdicts = play(options.only, options.seeds, options.processes)
    return tell(verdicts, enough=1 if options.only else ENOUGH)


if __name__ == "__main__":
    logging.getLogger("onceward").addHandler(logging.NullHandler())  # messages fail by the thousand here, on purpose
    sys.exit(main())
