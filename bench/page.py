"""`python -m bench.page`: write docs/benchmarks.md from bench/report.json; no figure on it is typed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from bench import brokers, elsewhere, fairness, mysql
from bench.before import BEFORE, MOST_COST, totals
from bench.report import MOST, PGMQ, REPORT, ROWS, TEXTBOOK, shown, verdicts
from bench.sixty import SIXTY

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"

_INTRODUCTION = """\
# Benchmarks

`make bench` measures onceward beside pure SQL that does the same writes on the same tables ([bench/limits](../bench/limits)) and beside other
queues, in one run, in turns, with durable settings, and checks the effects of every run: one that is not exact fails. It takes about 40 minutes on an idle machine;
`make bench QUICK=1` has the same table in about twenty. `make bench-60m` puts sixty million finished rows into the tables. On your own database:
`onceward bench --store URL`.

This page is made by `python -m bench.page` from [bench/report.json](../bench/report.json), which has every repetition, all settings and versions; a test
compares the two. Ratios of one run are the result; messages a second are the machine's. On a machine with more work than cores ratios are bent too: there the
scheduler gives more to a program with more processes, such as pgbench with 8 clients and 8 backends beside two workers. The processor time for each message, further
below, is the steadier figure; the load says how much to trust the rest.
"""

_READING = """\
## How to read it

- The clock of a backlog is the same for every contender: another process looks every 20 ms whether a row is left, and stops it at the empty table. Without a backlog
  (*inline*, *receive*, *textbook*) it stops when the last call has returned. A run that was over too soon is run again with more messages.
- It starts at the word that all processes wait for, imported and connected. A peer is timed from its first job on: its start does not count against it.
- *drain*: two worker processes, default settings, a handler that decodes the body and does nothing. *Pure SQL* is pgbench with two clients that claims
  five groups at a time, as onceward does where a backlog of quick messages waits, and finishes groups of the same size with the same writes.
- `drain_wide`: 1,000 types, each with a handler, from 200 sources, about 10,000 keys, beside one type from one source about 1,000 keys.
- *handle*: one UPDATE for each message, from a backlog, two worker processes; `update` checks its row count, `pipelined` and `set` are handlers that take a batch,
  `alone` has `group=1`, `hot` updates ten rows. pgbench takes one message off the same queue in each transaction (8 clients); `handle_statement` is that in one statement. The faster one is compared.
- *textbook*: insert the id, update, commit, for each message, with psycopg. Its best way counts.
- *inline*: `process` with 8 connections, as 8 threads, 2 processes of 4 threads, and 8 processes; the best counts. pgbench runs the same transaction with 8 clients.
- *orm*: a Session of SQLAlchemy, `session.get` and one change, in one worker process with one thread; by hand the same function in a loop with a commit for each message, which are in memory.
- *direct*: `process_many`, 100 at a time, in two processes; *stored first* is `receive_many` and `drain` of the same deliveries in the same processes; *by hand* has the writes of `process_many`, one transaction for each batch.
- *kafka*, *rabbitmq*, *redis*: a topic (8 partitions), a quorum queue or a stream (`appendfsync always`) is full of messages; the clock stops when every effect is committed and the broker has nothing left that is not acknowledged.
  onceward reads with `mode="direct"`, 100 at a time, in two processes. The textbook takes one message, inserts its id, updates, commits, acknowledges, in one process and in eight, with a prefetch and acknowledgements that nothing waits for; the better one counts.
- *receive*: 64 callers in one process that each wait for their receipt; `receive_many` in two processes; pgbench inserts the same rows, one message in each transaction (8 clients).
- *sqlite*: WAL, synchronous FULL for every contender. *By hand* takes 100 messages of the same backlog in each transaction; *with notes* it first commits who works on what.
  The peers apply nothing: they take a job off their queue, and decode it.
- *by hand* ([bench/by_hand.py](../bench/by_hand.py)) has the writes of onceward on its tables, made with the driver alone: no limits, no hash that is compared, no count of copies, no take-over.
- *pgmq* has the functions of its release, installed by its Python package and called with psycopg; *pgmq_client* calls them through that package's own client.
- *growth*: the median time of onceward's own claims and inserts beside so many finished rows, over that on empty tables; the dearer of the two.
- `memory_growth` is the growth of a worker's resident memory between the two counts, as a part of one. Latencies run from the call of `receive` to the commit of
  the effect in another process; *by hand* is an insert, a notification and an update with psycopg, and nothing of onceward. *Half load* is half of what two worker
  processes handle here; one handles it, so in a slow minute it may not keep up.
- `fairness_lanes`: 80 messages of 0.1 seconds come to idle workers, 8 worker threads in one process, then 4 processes of 2; the time until the last has run, over the ideal
  second. The worse of both, with workers that do not know the handler yet, and again.
- `fairness_types_ms`: healthy messages come behind 3,000 that fail for the first time, then behind 10,000 of a key that inline work holds; the slowest of them.
- `suspects_ms`: a worker process is killed with at least 300 open claims, under a lease of 2 seconds; the slowest of the messages that come every 50 ms from then on until every claimed one has run elsewhere.
- `burst_max_vs_p50`: 64 receives at the same moment, many times, one idle worker; the slowest latency of all over the median.
- `neighbour_repeats`: in groups of 100, one in 110 messages writes and then raises, raises `Retry` or `Reject`, or swallows a database error; the handlers of the others call outside for 2 ms, and these
  calls are counted. *Quick handlers run again* is the same with handlers that call no other service.
- *Own time, by module* comes from a run apart (`bench/profile.py`): a few hundred looks at what uses the processor. What C does, as SQLite and libpq, counts for the module that called it.
"""

# Why a target may be missed, where the processors' time says so. Shown only for targets that are.
_REASONS = {
    "drain_vs_limit": (
        ("drain: onceward", "drain: pure SQL"),
        "Beside the same writes there is a Python process that builds and checks every message.",
    ),
    "drain_vs_pgmq_client": (
        ("drain: onceward", "drain: pgmq_client"),
        "pgmq remembers nothing: it has no ledger, no run, no note of who works on what, and deletes what it has read.",
    ),
    "drain_vs_best_peer": (
        ("drain: onceward", "drain: pure SQL", "drain: pgqueuer"),
        "PgQueuer takes more jobs at a time, remembers no message that is finished, and commits what a job did apart from the job; onceward has a ledger, and a transaction for the handlers.",
    ),
    "drain_keyed": (
        ("drain: onceward, 1000 keys", "drain: onceward"),
        "Order costs the server a lock for each key, a look at what comes before, and the promotion of what comes after.",
    ),
    "drain_wide": (
        ("drain: onceward, 1000 types", "drain: onceward, 1000 keys"),
        "A claim names every type that it may take, and looks whether one of them is paused.",
    ),
    "sqlite_vs_by_hand": (
        ("sqlite: onceward", "sqlite: by hand, with notes"),
        "A claim reads all of a message, not its body alone, and looks at keys; then there is Python's time: building an immutable message whose JSON was checked, and calling a handler under a time limit and on a connection that cannot end its transaction.",
    ),
    "sqlite_vs_textbook": (
        ("sqlite: onceward", "sqlite: textbook"),
        "In WAL a commit is one write and one flush of the journal; a group saves most of them, and not the time of Python for each message.",
    ),
    "latency_idle_vs_by_hand": (
        (),
        "Seven round trips between processes that sleep, and this machine takes its time to wake one.",
    ),
    "handle_vs_pgbench": (
        ("handle: onceward, update", "handle: pgbench, handle_statement"),
        "Each UPDATE is a call of psycopg and a round trip; that call alone costs more than pgbench spends on a whole transaction.",
    ),
    "handle_pipelined_vs_pgbench": (
        ("handle: onceward, pipelined", "handle: pgbench, handle_statement"),
        "A pipeline saves round trips, not psycopg's work for each statement.",
    ),
    "handle_vs_textbook": (
        ("handle: onceward, update", "handle: textbook, 8 threads", "handle: textbook, 8 processes"),
        "Both pay psycopg for the UPDATE; the group saves the other three statements and the commit. Where commits are cheap, or eight connections share one, less is saved.",
    ),
    "batch_vs_limit": (
        ("handle: onceward, set", "handle: pure SQL in batches"),
        "What remains is building every message in Python.",
    ),
    "direct_vs_textbook": (
        ("direct: onceward", "direct: by hand", "handle: textbook, 8 threads"),
        "Both pay psycopg for the UPDATE; what remains is checking, hashing and building every message.",
    ),
    "direct_vs_store_first": (
        ("direct: onceward", "direct: onceward, stored first"),
        "The handlers and the driver's calls for them cost the same in both.",
    ),
    **{
        f"e2e_{broker}_vs_textbook": (
            (brokers.ONCEWARD.format(broker), *brokers.TEXTBOOKS[broker]),
            "Both pay for the broker's client, and psycopg for the UPDATE.",
        )
        for broker in brokers.BROKERS
    },
    "inline_vs_by_hand": (
        ("inline: onceward, 2 processes", "inline: by hand, 8 threads"),
        "Limits, a hash that is compared, an immutable message whose JSON was checked, and a watch over the handler.",
    ),
    "inline_vs_pgbench": (
        ("inline: onceward, 2 processes", "inline: pgbench"),
        "A message is six statements in three round trips (begin and limits with the insert, the handler's own, the run with the commit); the rest of the process's time goes to checking, building and watching a message.",
    ),
    "inline_vs_textbook": (
        ("inline: onceward, 2 processes", "handle: textbook, 8 threads"),
        "The textbook sends four statements and keeps no body apart from the id, no run, no hash, no limits; `process` sends six.",
    ),
    "receive_vs_pgbench": (
        ("receive: onceward, 64 tasks", "receive: pgbench, single inserts"),
        "Of 64 callers 32 share a transaction, so that Python works on one half while the server works on the other; smaller parts cost each message more than they save. What remains is their checks, hashes and JSON, the loop that wakes them, and an exchange for every half. One in which a message is a copy takes two more transactions: what is known of it, and its count.",
    ),
    "receive_many_vs_limit": (
        ("receive: onceward, receive_many", "receive: pure SQL, 500 at a time"),
        "Encoding, hashing and checking every message is Python's work; copies take two more transactions.",
    ),
}


# What the machine itself allows: a contender that does the same work without onceward, over whom onceward is compared with.
_LIMITS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "drain_vs_pgmq_client": (("drain: pure SQL", PGMQ),),
    "direct_vs_textbook": (("direct: by hand", TEXTBOOK),),
    "inline_vs_pgbench": (("inline: by hand, 8 threads", ("inline: pgbench",)),),
    "inline_vs_textbook": (("inline: by hand, 8 threads", TEXTBOOK), ("inline: pgbench", TEXTBOOK)),
    "receive_vs_pgbench": (("receive: by hand, 64 tasks", ("receive: pgbench, single inserts",)),),
    "sqlite_vs_by_hand": (("sqlite: by hand, with notes", ("sqlite: by hand, 100 at a time",)),),
}


# Whose own time says why.
_PROFILES = {
    "drain_vs_limit": "drain: onceward",
    "drain_vs_pgmq_client": "drain: onceward",
    "direct_vs_textbook": "direct: onceward",
    "direct_vs_store_first": "direct: onceward",
    "inline_vs_by_hand": "inline: onceward",
    "inline_vs_pgbench": "inline: onceward",
    "inline_vs_textbook": "inline: onceward",
    "receive_vs_pgbench": "receive: onceward, 64 tasks",
    "sqlite_vs_by_hand": "sqlite: onceward",
}


def _profile(name: str, profiles: dict[str, dict[str, float]]) -> str:
    shares = profiles.get(_PROFILES.get(name, ""), {})
    listed = ", ".join(f"`{module}` {share:g}" for module, share in shares.items())
    return f" Own time in hundredths, by module: {listed}." if listed else ""


def _limits(name: str, medians: dict[str, float]) -> str:
    return "".join(_limit(above, below, medians) for above, below in _LIMITS.get(name, ()))


def _limit(above: str, below: tuple[str, ...], medians: dict[str, float]) -> str:
    found = {one: medians[one] for one in below if one in medians}
    if above not in medians or (below and not found):
        return ""
    if not found:
        return f" *{above}*: {medians[above]:.2f}."
    best = max(found, key=lambda one: found[one])
    return f" *{above}* over *{best}*: {medians[above] / found[best]:.2f}."


def page(report: dict[str, Any], sixty: dict[str, Any], before: dict[str, Any]) -> str:
    """The page as it should be, from the report and from those of `make bench-60m` and `make bench-before`."""
    parts = [
        _INTRODUCTION,
        _made(report),
        _busy(report),
        "## The table\n",
        _table(report),
        _small(report),
        apart(report),
        _before(report, before),
        "![Messages a second](../bench/report.svg)\n",
        _READING,
    ]
    parts += [_contenders(report), _settings(report), _sixty(sixty), _mysql(), elsewhere.section()]
    parts += [_short(report), _errors(report)]
    return "\n".join(part for part in parts if part)


def _made(report: dict[str, Any]) -> str:
    """From which code, when on which machine, and how long."""
    versions, scale, origin = report["versions"], report["scale"], report["origin"]
    runs = [run["seconds"] for repetitions in report["runs"].values() for run in repetitions]
    changed = "" if origin["clean"] else ", with changes"
    disks = ", ".join(f"{name} on {kind}" for name, kind in origin["file_systems"].items())
    return (
        f"Commit `{(origin['commit'] or 'unknown')[:12]}`{changed}. Scale *{scale['name']}*: {_times(scale['repetitions'], 'repetition')} of runs between {min(runs):.1f} and {max(runs):.1f} "
        f"seconds; {report['machine']['cores']} cores, load {report['machine']['load'][0]:g} at the end; {report['seconds']:,} seconds. Data of {disks}. "
        f"Python {versions['python']}, PostgreSQL {versions['postgres']}, SQLite {versions['sqlite']}, psycopg {versions['psycopg']}.\n"
    )


def _busy(report: dict[str, Any]) -> str:
    """A warning, where the machine had other work."""
    machine = report["machine"]
    if max(machine["load"]) <= 3 * machine["cores"]:  # its own processes make some, too
        return ""
    return (
        f"**The machine was busy with other work** (load {max(machine['load']):g} on {machine['cores']} cores): no rate and no ratio of this run is a result. "
        "Its processor time is none either: run it again on a quiet machine.\n"
    )


def _times(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _table(report: dict[str, Any]) -> str:
    lines = ["| ratio | found | to reach | |", "|---|---:|---|---|"]
    lines += [
        f"| `{name}` | {value} | {target} | {verdict} |" for name, value, target, verdict in verdicts(report["ratios"])
    ]
    return "\n".join(lines) + "\n"


def _small(report: dict[str, Any]) -> str:
    """What the names promise and a smaller scale does not have."""
    scale = report["scale"]
    if scale["name"] == "full":
        return ""
    return (
        f"At this scale `growth_5m` has {scale['finished'][-1]:,} finished rows, `blocked_1m` {scale['blocked']:,} blocked messages, `claim_pinned_60s` "
        f"{scale['pinned_seconds']:g} seconds, and `memory_growth` runs to {scale['memory'][-1]:,} messages, "
        f"`burst_max_vs_p50` has {scale['crowd']['bursts']} bursts.\n"
    )


def apart(report: dict[str, Any]) -> str:
    """What was measured again since, by itself."""
    apart = report.get("fairness_apart")
    if apart is None:
        return ""
    names = ", ".join(f"`{name}`" for name in fairness.MOST)
    made = f"commit `{(apart['commit'] or 'unknown')[:12]}`, {apart['seconds']:,} seconds, load {apart['load']:g}"
    return f"Measured by `make bench-fairness`, {made}: {names}.\n"


def _before(report: dict[str, Any], before: dict[str, Any]) -> str:
    """The scenarios with the code as it was, and what a message cost it."""
    made = (
        f"`make bench-before` measures the same with the code of commit `{before['before']}`, from before claims were fair; {before['seconds'] // 60} minutes, load "
        f"{before['machine']['load'][0]:g} at the end. Processor time is that of the clients and the server together, in microseconds for each message, both codes in turns, {len(before['processor_microseconds']['drain']['now'])} repetitions: medians, and the median of the ratios of neighbouring runs.\n"
    )
    lines = [
        "## Before and now\n",
        made,
        "| | before | now | to reach | |",
        "|---|---:|---:|---|---|",
    ]
    for name, value, target, verdict in verdicts(report["ratios"]):
        if name in fairness.MOST:
            was = _more(name, before["notes"]) + shown(before["ratios"][name])
            now = _more(name, report["settings"]["notes"]) + value
            lines.append(f"| `{name}` | {was} | {now} | {target} | {verdict} |")
    for workload, ratio in before["cost_ratios"].items():
        codes = before["processor_microseconds"][workload]
        earlier, today = (median(totals(codes[code])) for code in ("before", "now"))
        verdict = "reached" if ratio <= MOST_COST else "short"
        target = f"at most {MOST_COST:g} times as much ({ratio:g})"
        lines.append(f"| processor time of *{workload}* | {earlier:.1f} | {today:.1f} | {target} | {verdict} |")
    return "\n".join(lines) + "\n"


def _more(name: str, notes: dict[str, Any]) -> str:
    """What stands before a time after which some messages had still not run."""
    return "over " if {*fairness.FIGURES[name]} & {*notes} else ""


def _contenders(report: dict[str, Any]) -> str:
    lines = [
        "## Every contender\n",
        "Medians, messages a second unless something else is said; how many seconds and messages its runs had; processor time in microseconds for each message, own and of the server.\n",
        "| | median | seconds | messages | own | server |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, value in report["medians"].items():
        cost = report["processor_microseconds"].get(name, {})
        runs = report["runs"].get(name, [])
        rate = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
        seconds = _range([f"{run['seconds']:.1f}" for run in runs])
        messages = _range([f"{run['messages']:,}" for run in runs])
        lines.append(
            f"| {name} | {rate} | {seconds} | {messages} | {cost.get('clients', '')} | {cost.get('server', '')} |"
        )
    return "\n".join(lines) + "\n"


def _range(values: list[str]) -> str:
    """The same once; else from the least to the most."""
    ordered = sorted(values, key=lambda value: float(value.replace(",", "")))
    return ordered[0] if len(set(ordered)) == 1 else "-".join(ordered[:: max(len(ordered) - 1, 1)])


def _settings(report: dict[str, Any]) -> str:
    """How every contender is set up."""
    lines = [
        "## Settings\n",
        "Every peer has the driver and the settings with which it cost the least time here, of those that its documentation names.\n",
        "| | version | driver | settings | source |",
        "|---|---|---|---|---|",
    ]
    for name, one in report["contenders"].items():
        found = {note.removeprefix(f"{name}: "): value for note, value in report["settings"]["notes"].items() if note.startswith(f"{name}: ")}  # fmt: skip
        used = ", ".join(f"{setting} {value}" for setting, value in (one["settings"] | found).items())
        link = one["source"] if one["source"].startswith("https:") else f"[{one['source']}](../{one['source']})"
        lines.append(f"| {name} | {one['version']} | {one['driver']} | {used} | {link} |")
    return "\n".join(lines) + "\n"


def _sixty(sixty: dict[str, Any]) -> str:
    lines = [
        f"## Beside {sixty['rows']:,} finished rows\n",
        f"`make bench-60m`, {sixty['seconds'] // 60} minutes: the median time of a claim and of an insert, over that on empty tables.\n",
        "| | empty (ms) | full (ms) | ratio |",
        "|---|---:|---:|---:|",
    ]
    for name, ratio in sixty["ratios"].items():
        statement = f"growth: {name}"
        empty, full = (sixty["medians"][f"{statement}, {size} finished (ms)"] for size in (0, sixty["rows"]))
        lines.append(f"| {name} | {empty} | {full} | {ratio} |")
    return "\n".join(lines) + "\n"


def _mysql() -> str:
    """The figures of MariaDB, where they were measured."""
    if not mysql.REPORT.exists():
        return ""
    found = json.loads(mysql.REPORT.read_text(encoding="utf-8"))
    made = (
        f"`make bench-mysql`, commit `{(found['commit'] or 'unknown')[:12]}`{'' if found['clean'] else ', with changes'}, {found['server']}, scale *{found['scale']}*, {found['seconds']:,} seconds, load "
        f"{found['machine']['load'][0]:g} on {found['machine']['cores']} cores at the end. The same workloads and checks as above; pure SQL is a procedure on the server ([bench/limits/mysql.sql](../bench/limits/mysql.sql)), "
        f"the textbook's loop is PyMySQL. `mysql_blocked_500k` is a claim behind {found['behind']:,} messages of a dead one's key, over one on empty tables.\n"
    )
    rates = [f"- {name}: {value:,.2f}" if value < 100 else f"- {name}: {value:,.0f}" for name, value in found["medians"].items()]  # fmt: skip
    return "\n".join(["## MariaDB\n", made, *mysql.shown(found), "", *rates]) + "\n"


def _short(report: dict[str, Any]) -> str:
    missed = [name for name, _, _, verdict in verdicts(report["ratios"]) if verdict == "short"]
    if not missed:
        return ""
    lines = ["## What falls short, and why\n"]
    costs = report["processor_microseconds"]
    for name in missed:
        contenders, reason = _REASONS.get(name, ((), ""))
        spent = [f"{one}: {costs[one]['clients']:g} + {costs[one]['server']:g}" for one in contenders if one in costs]
        time = f" Processor time, own + server, µs for each message: {'; '.join(spent)}." if spent else ""
        why = reason or ("see *Before and now*." if name in fairness.MOST else "see the repetitions, and the load.")
        profile = _profile(name, report["profiles"])
        lines.append(f"- `{name}`: {why}{_limits(name, report['medians'])}{time}{profile}")
    return "\n".join(lines) + "\n"


def _errors(report: dict[str, Any]) -> str:
    if not report["errors"]:
        return ""
    return "\n".join(["## Not measured\n", *(f"- {name}: {error}" for name, error in report["errors"].items())]) + "\n"


assert {*_REASONS} <= {row.name for row in ROWS} | {*MOST}

if __name__ == "__main__":
    found = (json.loads(path.read_text(encoding="utf-8")) for path in (REPORT, SIXTY, BEFORE))
    PAGE.write_text(page(*found), encoding="utf-8")
