"""`python -m simulation --seeds N`: runs N seeds in both modes and says what they found.

With `--json` what they found is added to the record. A failing seed is replayed with `--seed S --mode M --trace`.
Exits 1 when a promise was broken, when a state that a run of this size must reach was never reached, or when nothing
was run.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proof import report
from simulation.runner import MODES, SERVED, STORES, Found, place, recorded, replayed, run_many, run_one
from simulation.schedules import Schedule
from simulation.sometimes import ENOUGH, WANTED, missing
from simulation.world import World

SHOWN = 5
SHARE = 10
"""With all stores, each server gets one seed of so many: a history takes longer there."""


def main(arguments: list[str] | None = None) -> int:
    """Run, report, and answer the exit code."""
    options = _options().parse_args(arguments)
    modes = MODES if options.mode == "both" else (options.mode,)
    if options.finding:
        return _replay_finding(options.finding, trace=options.trace)
    if options.seed is not None:
        with place(options.store) as where:
            if options.keep:
                name, finding = options.keep
                schedule = recorded(options.seed, modes[0], where, store=options.store, finding=finding)
                print(f"kept: {schedule.write(name)}")
            return _replay(options.seed, modes, where, trace=options.trace)
    runs = [_run(store, seeds, modes, options.processes) for store, seeds in _seeds(options).items()]
    for run in runs:
        _tell(run)
    if options.json:
        report.add(options.json, "simulate", [(run.store, run.figures()) for run in runs])
    counts = [(name, sum(len(run.seeds) for run in runs if run.store == name)) for name in STORES]
    print(", ".join(f"{count} seeds on {name}" for name, count in counts if count) or "0 seeds")
    histories, steps = sum(run.found.histories for run in runs), sum(run.found.steps for run in runs)
    broken = sum(len(run.found.failures) for run in runs)
    return _last_line(histories, steps, broken) or int(any(run.unreached for run in runs))


@dataclass(frozen=True, slots=True)
class Run:
    """Some seeds on one store, and what they found."""

    store: str
    seeds: range
    found: Found
    unreached: list[str]
    seconds: float

    def figures(self) -> dict[str, Any]:
        """For the record."""
        found = self.found
        return {
            "first_seed": self.seeds.start,
            "seeds": len(self.seeds),
            "schedules": found.histories,
            "steps": found.steps,
            "violations": len(found.failures),
            "failing": found.failures,
            "sometimes": {name: found.counters[name] for name in sorted({*WANTED, *found.counters})},
            "never_reached": self.unreached,
            "seconds": round(self.seconds, 1),
        }


def _seeds(options: argparse.Namespace) -> dict[str, range]:
    """The seeds of each store: they go on where those in the record end, unless the first one is given."""
    wanted = {options.store: options.seeds}
    if options.store == "all":
        wanted = {store: -(-options.seeds // SHARE) if store in SERVED else options.seeds for store in STORES}
    known = json.loads(Path(options.json).read_text())["runs"] if options.json and Path(options.json).exists() else []
    found = {}
    for store, count in wanted.items():
        ends = [run["first_seed"] + run["seeds"] for run in known if run["store"] == store]
        first = max(ends, default=0) if options.first is None else options.first
        found[store] = range(first, first + count)
    return found


def _run(store: str, seeds: range, modes: tuple[str, ...], processes: int) -> Run:
    """Run them, and print how to replay those that failed."""
    total, began = Found(), time.monotonic()
    with place(store) as where:
        for found in run_many(seeds, modes, where, processes=processes):
            total.add(found)
        _tell_failures(total, store, where)
    unreached = missing(total.counters) if len(seeds) >= ENOUGH and len(modes) > 1 else []
    return Run(store, seeds, total, unreached, time.monotonic() - began)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, help="the first seed (where the record ends, else 0)")
    parser.add_argument("--mode", choices=(*MODES, "both"), default="both")
    parser.add_argument(
        "--store", choices=(*STORES, "all"), default="sqlite", help=f"all: every {SHARE}th seed on each server, too"
    )
    parser.add_argument("--seed", type=int, help="replay one seed")
    parser.add_argument(
        "--keep",
        nargs=2,
        metavar=("NAME", "WHAT"),
        help="with --seed and --mode: store its schedule, and what was wrong, in simulation/findings",
    )
    parser.add_argument("--finding", metavar="NAME", help="replay a schedule of simulation/findings")
    parser.add_argument("--trace", action="store_true", help="print every request of the replayed seed")
    parser.add_argument("--processes", type=int, default=2, help="for SQLite; a server runs one history at a time")
    parser.add_argument("--json", help="add the figures to those in this file")
    return parser


def _replay(seed: int, modes: tuple[str, ...], store: str, *, trace: bool) -> int:
    steps = broken = 0
    for mode in modes:
        world, wrong = run_one(seed, mode, store, trace=trace)
        _tell_history(f"seed {seed}, {mode}", world, wrong, trace=trace)
        steps, broken = steps + world.history.steps, broken + bool(wrong)
    return _last_line(len(modes), steps, broken)


def _replay_finding(name: str, *, trace: bool) -> int:
    schedule = Schedule.read(name)
    with place(schedule.store) as where:
        world, wrong = replayed(schedule, where, trace=trace)
    _tell_history(f"{name}, {schedule.finding}", world, wrong, trace=trace)
    return _last_line(1, world.history.steps, int(bool(wrong)))


def _tell_history(title: str, world: World, wrong: list[str], *, trace: bool) -> None:
    print(f"{title}: {world.history.steps} steps, trace {world.history.digest:08x}")
    if trace:
        _print_trace(world.scheduler.trace or [], world.describe())
    for text in wrong:
        print(f"  VIOLATION {text}")


def _print_trace(lines: list[str], plans: list[str]) -> None:
    for plan in plans:
        print(f"  plan {plan}")
    for line in lines:
        print(line)


def _tell_failures(total: Found, store: str, where: str) -> None:
    for seed, mode, wrong in total.failures[:SHOWN]:
        print(f"\nFAILED seed {seed}, {mode}; the tail of its trace:")
        world, _ = run_one(seed, mode, where, trace=True)
        _print_trace((world.scheduler.trace or [])[-60:], world.describe())
        for text in wrong:
            print(f"  VIOLATION {text}")
    for seed, mode, wrong in total.failures:
        print(f"{wrong[0]}; replay: python -m simulation --seed {seed} --mode {mode} --store {store} --trace")


def _tell(run: Run) -> None:
    counters, histories = run.found.counters, run.found.histories
    for name in sorted({*WANTED, *counters}):
        print(f"sometimes {counters[name]:8d}  {name}")
    for name in run.unreached:
        print(f"NEVER REACHED {name}")
    each = histories / max(run.seconds, 0.001)
    print(f"{run.store}: {histories} histories in {run.seconds:.1f} s, {each:.1f} per second")


def _last_line(histories: int, steps: int, broken: int) -> int:
    print(f"simulate: {histories} histories, {steps} steps, {broken} violations")
    return 1 if broken or not histories else 0


if __name__ == "__main__":
    logging.getLogger("onceward").addHandler(logging.NullHandler())  # messages fail by the thousand here, on purpose
    sys.exit(main())
