"""`python -m proof`: write docs/proof.md from the figures in `proof/figures`, which the suites wrote themselves.

`python -m proof --check` writes nothing: it lists every record with its age, and exits 1 where one is stale or says
nothing about its code, with the command that makes it anew.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from proof import records
from proof.fingerprint import ROOT, changed, fingerprint
from simulation import schedules

FIGURES = Path(__file__).with_name("figures")
PAGE = ROOT / "docs" / "proof.md"
README = ROOT / "README.md"
AGES, END = "<!-- ages: as of the day on which `python -m proof` made this page -->\n", "<!-- end of ages -->\n"
SUMMARY, SUMMARY_END = "<!-- made by `python -m proof` -->\n", "<!-- end -->\n"
GOALS = (
    ("simulate", "schedules", "histories", 200_000),
    ("chaos", "messages", "messages", 300_000),
    ("chaos", "faults", "faults", 3_000),
)
STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "mariadb": "MariaDB"}
SUITES = ("crash", "simulate", "mutants", "mutation", "chaos", "skew", "fuzz", "soak")
VERDICT = ("lost", "doubled", "disordered", "stuck")

_INTRODUCTION = """\
# Proof

What the long suites found, in figures they wrote themselves: this page is made by `python -m proof` from
[proof/figures](../proof/figures), and a test compares the two. `make proof` runs everything again; each suite alone is
`make crash`, `make simulate`, `make mutants`, `make mutation`, `make chaos`, `make skew`, `make fuzz`, `make soak`. The runs of simulation, chaos, skew and crash
points add up. What is promised is in [guarantees.md](guarantees.md), what each
claim rests on in [claims.md](claims.md). Times are those of one machine with 2 cores and say nothing about speed.
"""


def page() -> str:
    """The page as it should be."""
    writers = {
        "crash": _crash,
        "simulate": _simulate,
        "mutants": _mutants,
        "mutation": _mutation,
        "chaos": _chaos,
        "skew": _skew,
        "fuzz": _fuzz,
        "soak": _soak,
    }
    parts = [_INTRODUCTION, f"{AGES}{_ages()}{END}"]
    for name in SUITES:
        found = record(name)
        parts.append(writers[name](found) + _made_with(found.get("runs") or [found]))
    return "\n".join(parts)


def record(suite: str) -> dict[str, Any]:
    """What a suite has written."""
    return records.read(f"proof/figures/{suite}.json")


def undated(text: str) -> str:
    """A page without what depends on today's code."""
    before, _, rest = text.partition(AGES)
    return before + rest.partition(END)[2]


def summary() -> str:
    """The figures of the README."""
    crash, simulated = record("crash")["runs"], record("simulate")["runs"]
    return (
        f"- Faults at every statement of every transaction: {_sum(crash, 'trials'):,} runs, "
        f"{_violations(crash)}; {_sum(simulated, 'schedules'):,} simulated histories, "
        f"{_violations(simulated)} ([proof](docs/proof.md), `make proof`).\n"
    ) + _speed()


def _speed() -> str:
    found = json.loads((ROOT / "bench" / "report.json").read_text(encoding="utf-8"))
    medians, ratios = found["medians"], found["ratios"]
    to_effect = [
        f"from {name} {ratios[f'e2e_{broker}_vs_textbook']:.1f} times"
        for name, broker in (("RabbitMQ", "rabbitmq"), ("Redis", "redis"), ("Kafka", "kafka"))
    ]
    p50, p99 = (medians[f"latency: idle, {part} (ms)"] for part in ("p50", "p99"))
    return (
        f"- On {found['machine']['cores']} cores with PostgreSQL {found['versions']['postgres'].partition('.')[0]}, scale "
        f"*{found['scale']['name']}*: {medians['handle: onceward, update']:,.0f} messages a second, each with an UPDATE of "
        f"its own; {ratios['handle_vs_textbook']:.1f} times the textbook's transaction per message. To the committed "
        f"effect: {', '.join(to_effect)} a textbook consumer ([benchmarks](docs/benchmarks.md), `make bench`).\n"
        f"- From `receive` to the handler on an idle machine: {p50:.1f} ms in the median, {p99:.1f} ms in 99 of 100.\n"
    )


def with_summary(text: str) -> str:
    """The README with those lines as they should be."""
    before, _, rest = text.partition(SUMMARY)
    return f"{before}{SUMMARY}{summary()}{SUMMARY_END}{rest.partition(SUMMARY_END)[2]}"


def _ages() -> str:
    rows = "\n".join(
        f"| [{age.name}](../{age.name}) | {age.commit[:12]} | {age.date} | {age.text} | `{age.command}` |"
        for age in records.ages()
    )
    sums = "\n".join(_share(*goal) for goal in GOALS)
    return f"""\
## Age of the records

A record is stale when more than {records.STEP:.0%} of the lines that it measured have changed since: `python -m proof --check` lists them, and a
test fails ([decision 35](decisions/0035-records.md)).

| record | commit | made on | since then | made again by |
|---|---|---|---|---|
{rows}

Runs that add up, and how many of them ran on the code as it was on that day:

| suite | of | in all | goal | on the same code | on code that is not stale |
|---|---|---:|---:|---:|---:|
{sums}

"""


def _share(suite: str, count: str, unit: str, goal: int) -> str:
    """How much of a sum is of today's code."""
    found, now = record(suite), fingerprint(records.suite_of(f"proof/figures/{suite}.json").rooms)
    fresh = {digest for digest, sample in found["code"].items() if changed(sample, now.sample) <= records.STEP}
    same = [run for run in found["runs"] if run.get("code_digest") == now.digest]
    recent = [run for run in found["runs"] if run.get("code_digest") in fresh]
    cells = (_sum(found["runs"], count), goal, _sum(same, count), _sum(recent, count))
    return f"| {suite} | {unit} | " + " | ".join(f"{cell:,}" for cell in cells) + " |"


def _sum(runs: Iterable[dict[str, Any]], name: str) -> int:
    return sum(run[name] for run in runs)


def _violations(runs: Iterable[dict[str, Any]]) -> str:
    count = _sum(runs, "violations")
    return f"{count} violation" + ("" if count == 1 else "s")


def _each_store(runs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The runs of each store; of old ones, which did not tell them apart, the store is "sqlite and postgres"."""
    return {store: [run for run in runs if run["store"] == store] for store in sorted({run["store"] for run in runs})}


def _crash(figures: dict[str, Any]) -> str:
    runs = figures["runs"]
    rows = "\n".join(
        f"| {run['store']} | {run['shard']} | {run['points']:,} | {run['trials']:,} | {run['violations']} | {run['seed']} | {run['commit'][:12]} |"
        for run in runs
    )
    return f"""\
## Crash points

Every statement boundary of every scenario, in both kinds of handler. At each, every
fault that can happen there, of {runs[-1]["faults"]} (kill -9, the connection cut before the statement, cut after it ran but before its answer, an
error for an answer, cancellation), and after each fault one of {runs[-1]["recoveries"]} recoveries in turn (another worker, the same one, redelivery
first). `make crash SHARD=1/4` plays a quarter of the boundaries, always the same ones: shards on the same code add up to the whole.

**{_sum(runs, "trials"):,} runs, {_violations(runs)}.**

| store | shard | points | runs | violations | seed | commit |
|---|---|---:|---:|---:|---:|---|
{rows}
"""


def _simulate(figures: dict[str, Any]) -> str:
    stores = _each_store(figures["runs"])
    rows = "\n".join(
        f"| {STORES[store]} | {_sum(runs, 'seeds'):,} | {_sum(runs, 'schedules'):,} | {_sum(runs, 'steps'):,} | {_sum(runs, 'violations')} |"
        for store, runs in stores.items()
    )
    return f"""\
## Simulation

The real steps on a virtual clock and a virtual broker that duplicates, reorders and delays, interleaved at every statement by a
seeded scheduler; every history is checked. Programs of old and new versions start and stop while others receive, join callers'
transactions, share tables with other services, publish to destinations of which one hangs, drain a spool, and live through failovers
to a standby that lags. On SQLite, and in the words of PostgreSQL and of MySQL on real servers with their locks; each run begins at the seed where the last
one of its store ended. Seeds and schedules that once failed are kept in [simulation/findings](../simulation/findings) and replayed with the everyday tests.

**{_sum(figures["runs"], "schedules"):,} histories, {_sum(figures["runs"], "steps"):,} steps, {_violations(figures["runs"])}.**

| store | seeds | histories | steps | violations |
|---|---:|---:|---:|---:|
{rows}
{_open()}
Each of these hard states must have been reached; how often, in the runs that recorded their code:

{_states(stores)}
"""


def _open() -> str:
    """What was found and is not mended yet."""
    found = schedules.seeds("open")
    return "".join(f"\nFound and not mended yet: seed {seed}, {what}.\n" for seed, what in found.items())


def _states(stores: dict[str, list[dict[str, Any]]]) -> str:
    """A column for each store."""
    counts = {}
    for store, runs in stores.items():
        counts[store] = Counter[str]()
        for run in runs:
            counts[store].update(run["sometimes"] if "code_digest" in run else {})
    names = sorted(set().union(*counts.values()))
    head = " | ".join(STORES[store] for store in counts)
    rows = "\n".join(f"| {name} | " + " | ".join(f"{one[name]:,}" for one in counts.values()) + " |" for name in names)
    return f"| state | {head} |\n|---|{'---:|' * len(counts)}\n{rows}"


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


def _mutation(figures: dict[str, Any]) -> str:
    results = ("killed", "timeout", "survived", "equivalent")
    rooms = "\n".join(
        f"| {name} | {one['possible']:,} | {sum(one.get(result, 0) for result in results)} | {one.get('killed', 0) + one.get('timeout', 0)} |"
        f" {one.get('survived', 0)} | {one.get('equivalent', 0)} |"
        for name, one in figures["rooms"].items()
    )
    survivors = "\n".join(
        f"| {one['file']}:{one['line']} | {one['kind']} | {_code(one['change'])} | {one['result']}: {one['by']} |"
        for one in figures["survivors"]
    )
    return f"""\
## Mutation testing

Small changes of the code and of its SQL at random places, in equal shares of the rooms, each played against the tests that run its line
([decision 36](decisions/0036-mutation.md)). Rooms that are not in the table were not played in this run.

**{figures["killed"]} of {figures["sample"]} changes killed** (seed {figures["seed"]}).

| room | possible | played | killed | survived | equivalent |
|---|---:|---:|---:|---:|---:|
{rooms}

| survivor | kind | change | tests |
|---|---|---|---|
{survivors}
"""


def _code(text: str) -> str:
    """In a cell of a table."""
    return "`" + text.replace("|", "\\|") + "`"


def _chaos(figures: dict[str, Any]) -> str:
    return f"""\
## Chaos

Real worker and delivery processes on real databases, with faults all the while and a verifier beside them.

{_under_faults(figures["runs"], "")}"""


def _skew(figures: dict[str, Any]) -> str:
    return f"""\
## Two releases at once

Release N is this code, N+1 has a migration more that adds columns and an index, and writes them; N+2 renames them. Real processes of N work under the faults of
chaos; N+1 migrates meanwhile (one migrator is killed, two run at once); one process after another is replaced by N+1, then each again by N, killed or in order.
Then N+2's `after` migration: N and N+1 must refuse, naming it, and N+2 finishes what is left, a type among it that N has no handler for.

{_under_faults(figures["runs"], ", two releases")}"""


def _under_faults(runs: list[dict[str, Any]], words: str) -> str:
    """The verdict, and what happened on each store."""
    stores = []
    for store, of_store in _each_store(runs).items():
        faults, reached = Counter[str](), Counter[str]()
        for run in of_store:
            faults.update(run["faults_by_name"])
            reached.update(run["reached"])
        stores.append(
            f"### {store}{words}\n\n{_sum(of_store, 'messages'):,} messages in {_sum(of_store, 'seconds'):,} s; "
            f"the verifier looked {_sum(of_store, 'glances'):,} times while it ran.\n\n"
            f"{_table('fault', 'times', faults)}\n\n{_table('reached', 'times', reached)}\n"
        )
    verdict = ", ".join(f"{name} {_sum(runs, name)}" for name in VERDICT)
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(run["seed"] for run in runs))
    counts = f"{_sum(runs, 'messages'):,} messages, {_sum(runs, 'faults'):,} faults"
    return f"**{counts}: {verdict}** (seeds {seeds}).\n\n" + "\n".join(stores)


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


def _made_with(runs: list[dict[str, Any]]) -> str:
    """Of the last run, the commit, and of each store the version that it ran on."""
    last = runs[-1]
    versions = {store: version for run in runs for store, version in run["versions"].items()}
    stores = "".join(f", {STORES[store]} {version}" for store, version in sorted(versions.items()))
    return f"\n<small>Commit {last['commit'][:12]}, {last['date']}, Python {last['python']}{stores}.</small>\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or look at the ages, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof", description="The figures of the long suites.")
    parser.add_argument("--check", action="store_true", help="write nothing; list the records and their ages")
    if parser.parse_args(arguments).check:
        return _check()
    PAGE.write_text(page(), encoding="utf-8")
    README.write_text(with_summary(README.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def _check() -> int:
    found = list(records.ages())
    for age in found:
        sys.stdout.write(f"{age.name:37} {age.commit[:12]:12} {age.date:10}  {age.text}\n")
    old = [age for age in found if age.is_stale or age.changed is None]
    for age in old:
        sys.stdout.write(f"to make {age.name} anew: {age.command}\n")
    sys.stdout.write(f"proof: {len(found)} records, {len(old)} stale or of unknown age\n")
    return int(bool(old))


if __name__ == "__main__":
    sys.exit(main())
