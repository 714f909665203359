"""The report: settings, versions, every repetition, and the flat table of ratios, beside what each should reach."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import brokers, direct, fairness, lineup, orm
from bench.contest import Contender
from bench.figures import Figures
from bench.ground import SETTINGS
from bench.scale import Scale
from proof import report as proof

REPORT = Path(__file__).with_name("report.json")

PEERS = tuple(f"drain: {peer.name}" for peer in lineup.POSTGRES)
PGMQ = tuple(f"drain: {peer.name}" for peer in lineup.PGMQ)
TEXTBOOK = ("handle: textbook, 1 connection", "handle: textbook, 8 threads", "handle: textbook, 8 processes")
PGBENCH = ("handle: pgbench, handle", "handle: pgbench, handle_statement")
INLINE = ("inline: onceward, 8 threads", "inline: onceward, 2 processes", "inline: onceward, 8 processes")
SINGLE = ("receive: onceward, 64 tasks", "receive: onceward, 64 threads")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: how one contender compares with another, and what is to be reached."""

    name: str
    one: str | tuple[str, ...]
    other: str | tuple[str, ...]
    target: float
    """The least it should be."""


ROWS = (
    Row("drain_vs_limit", "drain: onceward", "drain: pure SQL", 0.7),
    Row("drain_vs_best_peer", "drain: onceward", PEERS, 2.5),
    Row("drain_vs_pgmq_client", "drain: onceward", "drain: pgmq_client", 1.2),
    Row("drain_keyed", "drain: onceward, 1000 keys", "drain: onceward", 0.5),
    Row("drain_wide", "drain: onceward, 1000 types", "drain: onceward, 1000 keys", 0.4),
    Row("handle_2pct_failing", "handle: onceward, 2 % failing", "handle: onceward, update", 0.5),
    Row("handle_vs_pgbench", "handle: onceward, update", PGBENCH, 1.3),
    Row("handle_pipelined_vs_pgbench", "handle: onceward, pipelined", PGBENCH, 1.8),
    Row("handle_vs_textbook", "handle: onceward, update", TEXTBOOK, 3),
    Row("batch_vs_limit", "handle: onceward, set", "handle: pure SQL in batches", 0.4),
    Row("direct_vs_textbook", direct.DIRECT, TEXTBOOK, 3.5),
    Row("direct_vs_store_first", direct.DIRECT, direct.STORED, 2),
    Row("inline_vs_by_hand", INLINE, "inline: by hand, 8 threads", 0.9),
    Row("inline_vs_pgbench", INLINE, "inline: pgbench", 0.6),
    Row("inline_vs_textbook", INLINE, TEXTBOOK, 1.3),
    Row("orm_vs_by_hand", orm.ALONE, orm.BY_HAND, 0.6),
    Row("orm_group_vs_by_hand", orm.GROUPED, orm.BY_HAND, 2),
    Row("receive_vs_pgbench", SINGLE, "receive: pgbench, single inserts", 3),
    Row("receive_many_vs_limit", "receive: onceward, receive_many", "receive: pure SQL, 500 at a time", 0.6),
    *(
        Row(f"e2e_{broker}_vs_textbook", brokers.ONCEWARD.format(broker), brokers.TEXTBOOKS[broker], 3)
        for broker in brokers.BROKERS
    ),
    Row("sqlite_vs_by_hand", "sqlite: onceward", "sqlite: by hand, with notes", 0.6),
    Row("sqlite_vs_textbook", "sqlite: onceward", "sqlite: textbook", 8),
)
# What is measured in another way: the most each may be.
MOST = {
    "growth_5m": 1.3,
    "growth_5m_random": 1.3,
    "blocked_1m": 3.0,
    "claim_pinned_60s": 2.0,
    "latency_half_load_p99_ms": None,
    "latency_idle_vs_by_hand": 1.5,
    "memory_growth": 0.2,
    **fairness.MOST,
}
NAMES = (*(row.name for row in ROWS), *MOST)


def ratios(figures: Figures, scale: Scale) -> dict[str, float | None]:
    """The flat table; None where nothing could be measured, and then the errors say why."""
    table = {row.name: figures.ratio(row.one, row.other) for row in ROWS}
    few, many = scale.memory
    memory = figures.ratio(f"memory: after {many} messages (MB)", f"memory: after {few} messages (MB)")
    pinned = f"growth: claim, pinned for {scale.pinned_seconds:g} s (ms)"
    return table | {
        "growth_5m": _growth(figures, scale, "ordered"),
        "growth_5m_random": _growth(figures, scale, "random"),
        "blocked_1m": figures.ratio("growth: claim, blocked (ms)", "growth: claim, beside nothing (blocked) (ms)"),
        "claim_pinned_60s": figures.ratio(pinned, "growth: claim, not pinned (ms)"),
        "latency_half_load_p99_ms": _rounded(figures.median("latency: half load, p99 (ms)")),
        "latency_idle_vs_by_hand": figures.ratio("latency: idle, p50 (ms)", "latency: idle, by hand, p50 (ms)"),
        "memory_growth": None if memory is None else round(memory - 1, 3),
        **fairness.ratios(figures),
    }


def _growth(figures: Figures, scale: Scale, kind: str) -> float | None:
    """The dearer of claim and receive, beside the same on the empty tables."""
    sizes = scale.finished[-1], scale.finished[0]
    found = [
        figures.ratio(*(f"growth: {statement}, {kind} ids, {size} finished (ms)" for size in sizes))
        for statement in ("claim", "receive")
    ]
    known = [ratio for ratio in found if ratio is not None]
    return max(known) if len(known) == len(found) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def assembled(figures: Figures, scale: Scale, where: dict[str, Any]) -> dict[str, Any]:
    """All of it; `where` is of `bench/origin.py`, with how many seconds have passed."""
    return {
        **proof.today("bench/report.json"),
        "origin": {name: where[name] for name in ("commit", "clean", "file_systems")},
        "scale": asdict(scale),
        "settings": {"postgres": SETTINGS, "notes": figures.notes, "payload_bytes": 300, "duplicates": 0.1},
        "machine": {"cores": os.cpu_count(), "load": [round(load, 1) for load in os.getloadavg()]},
        "versions": {
            "onceward": version("onceward"),
            "python": platform.python_version(),
            "postgres": where["postgres"],
            "sqlite": sqlite3.sqlite_version,
            "psycopg": version("psycopg"),
        },
        "contenders": {name: _described(one, where["postgres"]) for name, one in figures.contenders.items()},
        "seconds": where["seconds"],
        "errors": figures.errors,
        "runs": figures.lengths(),
        "processor_microseconds": figures.costs(),
        "profiles": figures.profiles,
        "repetitions": figures.rounded(),
        "medians": figures.medians(),
        "ratios": ratios(figures, scale),
    }


def _described(contender: Contender, postgres: str) -> dict[str, Any]:
    """Its version and that of its driver, its settings, and where they come from."""
    installed = lineup.versions() if contender.source.startswith("https:") else {}
    drivers = {"pgbench": postgres, "sqlite3": sqlite3.sqlite_version, "psycopg": version("psycopg"), **installed}
    versions = {"onceward": version("onceward"), **installed}
    return {
        "version": versions.get(contender.package, ""),
        "driver": f"{contender.driver} {drivers.get(contender.driver, '')}".strip(),
        "settings": dict(contender.settings),
        "source": contender.source,
    }


def written(report: dict[str, Any], path: Path = REPORT) -> None:
    """Write it, for programs."""
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def printed(report: dict[str, Any]) -> None:
    """Print it, for people."""
    width = max(map(len, report["medians"]))
    for name, value in report["medians"].items():
        print(f"{name:<{width}}  {value:>12,.2f}" if value < 100 else f"{name:<{width}}  {value:>12,.0f}")
    for name, error in report["errors"].items():
        print(f"{name:<{width}}  not measured: {error}")
    print()
    for row in verdicts(report["ratios"]):
        print("{:<30} {:>10}   {:<14} {}".format(*row))


def verdicts(table: dict[str, float | None]) -> list[tuple[str, str, str, str]]:
    """Each row of the table: name, value, target, and whether it is reached."""
    least = {row.name: row.target for row in ROWS}
    rows = []
    for name in NAMES:
        value, target = table[name], least.get(name, MOST.get(name))
        if target is None:
            rows.append((name, shown(value), "", ""))
            continue
        words = "at least" if name in least else "at most"
        reached = value is not None and (value >= target if name in least else value <= target)
        verdict = "not measured" if value is None else "reached" if reached else "short"
        rows.append((name, shown(value), f"{words} {target:g}", verdict))
    return rows


def shown(value: float | None) -> str:
    """A value of the table as people read it."""
    return "-" if value is None else f"{value:g}"
