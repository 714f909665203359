"""`make chaos MESSAGES=20000 FAULTS=300`: SQLite and PostgreSQL at once, half of the messages and faults each.

`--store mariadb` is another run, with all of them. With `--skew` (`make skew`) processes of two releases share
the tables, and are upgraded and rolled back under the same faults.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from chaos.world import Outcome, Plan, run
from proof import report

_STORES = {
    "postgres": ["postgres"],
    "sqlite": ["sqlite"],
    "mariadb": ["mariadb"],
    "both": ["postgres", "sqlite"],
    "all": ["postgres", "sqlite", "mariadb"],
}


def main(arguments: list[str] | None = None) -> int:
    """Run, report, answer the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--store", choices=_STORES, default="both")
    parser.add_argument("--skew", action="store_true", help="two releases at once, an upgrade and a rollback")
    parser.add_argument("--json", help="add the figures to those in this file")
    options = parser.parse_args(arguments)
    stores = _STORES[options.store]
    share = len(stores)
    run_name = "skew" if options.skew else "chaos"
    print(f"seed {options.seed}", flush=True)

    def one(store: str) -> Outcome:
        return run(Plan(store, options.messages // share, options.faults // share, options.seed, options.skew), _say)

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(one, stores))
    for outcome in outcomes:
        _print(outcome)
    if options.json:
        report.add(options.json, run_name, [(one.store, _figures(one, options.seed)) for one in outcomes])
    return _last_line(run_name, outcomes)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(outcome: Outcome) -> None:
    print(
        f"\n{outcome.store}: {outcome.messages} messages in {outcome.seconds:.0f} s, looked at {outcome.glances} times"
    )
    for title, counts in (("faults", outcome.faults), ("reached", outcome.seen)):
        print(f"  {title}")
        for name, count in sorted(counts.items()):
            print(f"    {count:>8}  {name}")
    for title, names in (
        ("lost", outcome.verdict.lost),
        ("doubled", outcome.verdict.doubled),
        ("disordered", outcome.verdict.disordered),
        ("stuck", outcome.verdict.stuck),
        ("odd", outcome.verdict.odd),
        ("alarm", outcome.alarms),
        ("never reached", outcome.missing),
    ):
        for name in names[:20]:
            print(f"  {title.upper()}: {name}")


def _figures(outcome: Outcome, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        **_totals([outcome]),
        "seconds": round(outcome.seconds),
        "glances": outcome.glances,
        "faults_by_name": dict(outcome.faults),
        "reached": dict(outcome.seen),
    }


def _totals(outcomes: list[Outcome]) -> dict[str, int]:
    return {
        "messages": sum(outcome.messages for outcome in outcomes),
        "faults": sum((outcome.faults for outcome in outcomes), Counter[str]()).total(),
        "lost": sum(len(outcome.verdict.lost) for outcome in outcomes),
        "doubled": sum(len(outcome.verdict.doubled) for outcome in outcomes),
        "disordered": sum(len(outcome.verdict.disordered) for outcome in outcomes),
        "stuck": sum(len(outcome.verdict.stuck) for outcome in outcomes),
    }


def _last_line(run_name: str, outcomes: list[Outcome]) -> int:
    figures = _totals(outcomes)
    print(
        f"{run_name}: {figures['messages']} messages, {figures['faults']} faults, lost {figures['lost']}, "
        f"doubled {figures['doubled']}, disordered {figures['disordered']}, stuck {figures['stuck']}"
    )
    return 0 if all(outcome.clean for outcome in outcomes) and figures["messages"] and figures["faults"] else 1


if __name__ == "__main__":
    sys.exit(main())
