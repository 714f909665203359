"""`python -m simulation --seeds N`: runs N seeds in both modes and says what they found.

A failing seed is replayed with `--seed S --mode M --trace`. Exits 1 when a promise was broken, when a state that a run
of this size must reach was never reached, or when nothing was run.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from proof import report
from simulation.runner import MODES, Found, run_many, run_one
from simulation.sometimes import ENOUGH, WANTED, missing

SHOWN = 5


def main(arguments: list[str] | None = None) -> int:
    """Run, report, and answer the exit code."""
    options = _options().parse_args(arguments)
    modes = MODES if options.mode == "both" else (options.mode,)
    if options.seed is not None:
        return _replay(options.seed, modes, options.store, trace=options.trace)
    total, began = Found(), time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    for found in run_many(seeds, modes, options.store, processes=options.processes):
        total.add(found)
    expected = options.seeds >= ENOUGH and options.mode == "both"
    unreached = missing(total.counters) if expected else []
    seconds = time.monotonic() - began
    _tell(total, unreached, options.store, seconds)
    if options.json:
        figures = {
            "run": "simulate",
            "store": options.store.partition(":")[0],
            "first_seed": options.first,
            "seeds": options.seeds,
            "schedules": total.histories,
            "steps": total.steps,
            "violations": len(total.failures),
            "failing": total.failures,
            "sometimes": {name: total.counters[name] for name in sorted({*WANTED, *total.counters})},
            "never_reached": unreached,
            "seconds": round(seconds, 1),
        }
        report.write(options.json, figures)
    return _last_line(options.seeds, total.histories, total.steps, len(total.failures)) or int(bool(unreached))


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--mode", choices=(*MODES, "both"), default="both")
    parser.add_argument("--store", default="sqlite", help="sqlite, or the URL of an empty PostgreSQL, as superuser")
    parser.add_argument("--seed", type=int, help="replay one seed")
    parser.add_argument("--trace", action="store_true", help="print every request of the replayed seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", help="write the figures to this file")
    return parser


def _replay(seed: int, modes: tuple[str, ...], store: str, *, trace: bool) -> int:
    steps = broken = 0
    for mode in modes:
        world, wrong = run_one(seed, mode, store, trace=trace)
        print(f"seed {seed}, {mode}: {world.history.steps} steps, trace {world.history.digest:08x}")
        if trace:
            _print_trace(world.scheduler.trace or [], world.describe())
        for text in wrong:
            print(f"  VIOLATION {text}")
        steps, broken = steps + world.history.steps, broken + bool(wrong)
    return _last_line(1, len(modes), steps, broken)


def _print_trace(lines: list[str], plans: list[str]) -> None:
    for plan in plans:
        print(f"  plan {plan}")
    for line in lines:
        print(line)


def _tell(total: Found, unreached: list[str], store: str, seconds: float) -> None:
    for name in sorted({*WANTED, *total.counters}):
        print(f"sometimes {total.counters[name]:8d}  {name}")
    for seed, mode, wrong in total.failures[:SHOWN]:
        print(f"\nFAILED seed {seed}, {mode}; the tail of its trace:")
        world, _ = run_one(seed, mode, store, trace=True)
        _print_trace((world.scheduler.trace or [])[-60:], world.describe())
        for text in wrong:
            print(f"  VIOLATION {text}")
    for seed, mode, wrong in total.failures:
        print(f"{wrong[0]}; replay: python -m simulation --seed {seed} --mode {mode} --store {store} --trace")
    for name in unreached:
        print(f"NEVER REACHED {name}")
    print(f"{total.histories} schedules in {seconds:.1f} s, {total.histories / max(seconds, 0.001):.1f} per second")


def _last_line(seeds: int, schedules: int, steps: int, broken: int) -> int:
    print(f"{seeds} seeds\nsimulate: {schedules} histories, {steps} steps, {broken} violations")
    return 1 if broken or not schedules else 0


if __name__ == "__main__":
    logging.getLogger("onceward").addHandler(logging.NullHandler())  # messages fail by the thousand here, on purpose
    sys.exit(main())
