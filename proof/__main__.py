"""`python -m proof`: write docs/proof.md from the figures in `proof/figures`, which the suites wrote themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).with_name("figures")
PAGE = Path(__file__).parent.parent / "docs" / "proof.md"

_INTRODUCTION = """\
# Proof

What the long suites found, in figures they wrote themselves: this page is made by `python -m proof` from
[proof/figures](../proof/figures), and a test compares the two. `make proof` runs everything again; each suite alone is
`make crash`, `make simulate`, `make mutants`, `make chaos`, `make fuzz`, `make soak`. What is promised is in [guarantees.md](guarantees.md), what each
claim rests on in [claims.md](claims.md). Times are those of one machine with 2 cores and say nothing about speed.
"""


def page() -> str:
    """The page as it should be."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FIGURES.glob("*.json"))}
    parts = [_INTRODUCTION]
    writers = {
        "crash": _crash,
        "simulate": _simulate,
        "mutants": _mutants,
        "chaos": _chaos,
        "fuzz": _fuzz,
        "soak": _soak,
    }
    for name, write in writers.items():
        if name in found:
            parts.append(write(found[name]) + _made_with(found[name]))
    return "\n".join(parts)


def _crash(figures: dict[str, Any]) -> str:
    extent = "" if figures["sample"] == "all" else f"\nThis was a sample: {figures['sample']} trials of each play.\n"
    return f"""\
## Crash points

Every statement boundary of every transaction, on both stores, in both kinds of handler: {figures["points"]:,} points. At each, every
fault that can happen there, of {figures["faults"]} (kill -9, the connection cut before the statement, cut after it ran but before its answer, an
error for an answer, cancellation), and after each fault one of {figures["recoveries"]} recoveries in turn (another worker, the same one, redelivery
first).

**{figures["runs"]:,} runs, {figures["violations"]} violations** (seed {figures["seed"]}).
{extent}"""


def _simulate(figures: dict[str, Any]) -> str:
    return f"""\
## Simulation

The real steps on a virtual clock and a virtual broker that duplicates, reorders and delays, interleaved at every statement by a
seeded scheduler; every history is checked. Programs of old and new versions start and stop while others receive, join callers'
transactions, share tables with other services, publish to destinations of which one hangs, drain a spool, and live through failovers
to a standby that lags. {figures["seeds"]:,} seeds from {figures["first_seed"]}.

**{figures["schedules"]:,} histories, {figures["steps"]:,} steps, {figures["violations"]} violations.**

Each of these hard states must have been reached:

{_table("state", "times", figures["sometimes"])}
"""


def _mutants(figures: dict[str, Any]) -> str:
    rows = "\n".join(
        f"| {one['name']} | {one['store']} | {one['text'].rpartition('::')[2]} |" for one in figures["mutants"]
    )
    return f"""\
## Mutants

Known-bad variants of the code, each breaking one promise: **{figures["caught"]} of {figures["total"]} caught**, by a schedule of the
simulation (its seed, and the violation) or by a test (its name), on the store that is named where one plays a part.

| mutant | store | caught by |
|---|---|---|
{rows}
"""


def _chaos(figures: dict[str, Any]) -> str:
    stores = []
    for store, one in figures["stores"].items():
        stores.append(
            f"### {store}\n\n{one['messages']:,} messages in {one['seconds']:,} s; "
            f"the verifier looked {one['glances']:,} times while it ran.\n\n"
            f"{_table('fault', 'times', one['faults'])}\n\n{_table('reached', 'times', one['reached'])}\n"
        )
    verdict = ", ".join(f"{name} {figures[name]}" for name in ("lost", "doubled", "disordered", "stuck"))
    return f"""\
## Chaos

Real worker and delivery processes on real databases, with faults all the while and a verifier beside them.

**{figures["messages"]:,} messages, {figures["faults"]:,} faults: {verdict}** (seed {figures["seed"]}).

{chr(10).join(stores)}"""


def _fuzz(figures: dict[str, Any]) -> str:
    forged = sum(figures["forgeries"].values())
    return f"""\
## Fuzz

Generated requests to a real server with every kind of webhook, from strangers who know no secret: each must get a 4xx, or none where it was hardly a request, and leave no row.
And forgeries to the verifier of each kind: genuine requests with a changed body or signature, or those of another request.

**{figures["requests"]:,} requests and {forged:,} forgeries, {figures["violations"]} violations** (seed {figures["seed"]}).

{_table("answer", "times", figures["answers"])}

{_table("kind", "forgeries", figures["forgeries"])}
"""


def _soak(figures: dict[str, Any]) -> str:
    stores = []
    for store, one in figures["stores"].items():
        peaks = "\n".join(f"| {what} | {first:,} | {second:,} |" for what, (first, second) in one["peaks"].items())
        stores.append(
            f"### {store}, soaked\n\n{one['accepted']:,} messages, {one['duplicates']:,} duplicates, {one['effects']:,} effects.\n\n"
            f"| at most | in the first half | in the second |\n|---|---:|---:|\n{peaks}\n"
        )
    return f"""\
## Soak

{figures["minutes"]:g} minutes, half of them on each store, at {figures["rate"]:,} messages a second: duplicates, failures, pruning, and a transaction that stays open
again and again. Bytes and rows are those of onceward's tables, memory (bytes) and descriptors those of the process.

**Lost {figures["lost"]}, grown {figures["grown"]}.** `make soak MINUTES=60 JSON=proof/figures/soak.json` runs it for an hour.

{chr(10).join(stores)}"""


def _table(first: str, second: str, rows: dict[str, int]) -> str:
    lines = [
        f"| {first} | {second} |",
        "|---|---:|",
        *(f"| {name} | {count:,} |" for name, count in sorted(rows.items())),
    ]
    return "\n".join(lines)


def _made_with(figures: dict[str, Any]) -> str:
    return (
        f"\n<small>Commit {figures['commit'][:12]}, Python {figures['python']}, PostgreSQL {figures['postgres']}, "
        f"SQLite {figures['sqlite']}.</small>\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
