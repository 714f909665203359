"""`make chaos MESSAGES=20000 FAULTS=300`: both stores at once, half of the messages and faults each."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from chaos.world import Outcome, run
from proof import report


def main(arguments: list[str] | None = None) -> int:
    """Run, report, answer the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--store", choices=("postgres", "sqlite", "both"), default="both")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args(arguments)
    stores = ["postgres", "sqlite"] if options.store == "both" else [options.store]
    share = len(stores)
    print(f"seed {options.seed}", flush=True)

    def one(store: str) -> Outcome:
        return run(store, options.messages // share, options.faults // share, options.seed, _say)

    with ThreadPoolExecutor(share) as pool:
        outcomes = list(pool.map(one, stores))
    for outcome in outcomes:
        _print(outcome)
    if options.json:
        report.write(options.json, _figures(outcomes, options.seed))
    return _last_line(outcomes)


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


def _figures(outcomes: list[Outcome], seed: int) -> dict[str, Any]:
    return {
        "run": "chaos",
        "seed": seed,
        **_totals(outcomes),
        "stores": {
            outcome.store: {
                "messages": outcome.messages,
                "seconds": round(outcome.seconds),
                "glances": outcome.glances,
                "faults": dict(outcome.faults),
                "reached": dict(outcome.seen),
            }
            for outcome in outcomes
        },
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


def _last_line(outcomes: list[Outcome]) -> int:
    figures = _totals(outcomes)
    print(
        "chaos: {messages} messages, {faults} faults, lost {lost}, doubled {doubled}, disordered {disordered}, "
        "stuck {stuck}".format(**figures)
    )
    return 0 if all(outcome.clean for outcome in outcomes) and figures["messages"] and figures["faults"] else 1


if __name__ == "__main__":
    sys.exit(main())
