"""`python -m simulation --seeds N`: runs N seeds and says what they found.

A failing seed is replayed with `--seed S --trace`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from simulation.runner import MODES, Found, run_many, run_one
from simulation.sometimes import ENOUGH, missing

SHOWN = 5


def main(arguments: list[str] | None = None) -> int:
    """Run, report, and answer the exit code."""
    options = _options().parse_args(arguments)
    modes = MODES if options.mode == "both" else (options.mode,)
    stores = (options.store,)
    if options.seed is not None:
        return _replay(options.seed, modes, stores, trace=options.trace)
    total, began = Found(), time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    for found in run_many(seeds, modes, stores, processes=options.processes if options.store == "sqlite" else 1):
        total.add(found)
    unreached = missing(total.counters) if options.seeds >= ENOUGH and options.mode == "both" else []
    _report(total, unreached, time.monotonic() - began)
    if options.json:
        Path(options.json).write_text(_as_json(total, unreached, options.seeds), encoding="utf-8")
    return _last_line(total.histories, total.steps, len(total.failures) + len(unreached))


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--mode", choices=(*MODES, "both"), default="both")
    parser.add_argument("--store", default="sqlite", help="sqlite, or the URL of an empty PostgreSQL database")
    parser.add_argument("--seed", type=int, help="replay one seed")
    parser.add_argument("--trace", action="store_true", help="print every request of the replayed seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", help="write the figures to this file")
    return parser


def _replay(seed: int, modes: tuple[str, ...], stores: tuple[str, ...], *, trace: bool) -> int:
    histories = steps = broken = 0
    for mode in modes:
        for store in stores:
            world, wrong = run_one(seed, mode, store, trace=trace)
            print(f"seed {seed}, {mode}, {store}: {world.history.steps} steps, trace {world.history.digest:08x}")
            if trace:
                _print_trace(world.scheduler.trace or [], [str(plan) for plan in world.describe()])
            for text in wrong:
                print(f"  VIOLATION {text}")
            histories, steps, broken = histories + 1, steps + world.history.steps, broken + len(wrong)
    return _last_line(histories, steps, broken)


def _print_trace(lines: list[str], plans: list[str]) -> None:
    for plan in plans:
        print(f"  plan {plan}")
    for line in lines:
        print(line)


def _report(total: Found, unreached: list[str], seconds: float) -> None:
    for name, count in sorted(total.counters.items()):
        print(f"sometimes {count:8d}  {name}")
    for seed, mode, store, wrong in total.failures[:SHOWN]:
        print(f"\nFAILED seed {seed}, {mode}, {store}; the tail of its trace:")
        world, _ = run_one(seed, mode, store, trace=True)
        _print_trace((world.scheduler.trace or [])[-60:], world.describe())
        for text in wrong:
            print(f"  VIOLATION {text}")
        print(f"  replay: python -m simulation --seed {seed} --mode {mode} --store {store} --trace")
    if len(total.failures) > SHOWN:
        rest = ", ".join(f"{seed}/{mode}/{store}" for seed, mode, store, _ in total.failures[SHOWN:50])
        print(f"and {len(total.failures) - SHOWN} more failing histories: {rest}")
    for name in unreached:
        print(f"NEVER REACHED {name}")
    print(f"{total.histories} histories in {seconds:.1f} s, {total.histories / max(seconds, 0.001):.1f} per second")


def _as_json(total: Found, unreached: list[str], seeds: int) -> str:
    return json.dumps(
        {
            "seeds": seeds,
            "histories": total.histories,
            "steps": total.steps,
            "violations": len(total.failures),
            "failing": [[seed, mode, store, wrong] for seed, mode, store, wrong in total.failures],
            "sometimes": dict(sorted(total.counters.items())),
            "never_reached": unreached,
        },
        indent=1,
    )


def _last_line(histories: int, steps: int, broken: int) -> int:
    print(f"simulate: {histories} histories, {steps} steps, {broken} violations")
    return 1 if broken or not histories else 0


if __name__ == "__main__":
    sys.exit(main())
