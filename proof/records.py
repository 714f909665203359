"""Every record of a run: what code it measured, how it is made anew, and how old it is.

Invariant: a record is stale when more than `STEP` of the lines that it measured have changed since, whatever became of
its commit. A record that says nothing about its code was written before records did; its age is unknown, not zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from proof.fingerprint import ROOT, Fingerprint, changed, fingerprint

STEP = 0.25
"""How much may have changed: see docs/decisions/0035-records.md."""
_CORE = tuple(
    f"src/onceward/{room}"
    for room in (
        "domain",
        "steps",
        "stores/moves",
        "stores/relational",
        "stores/sql",
        "stores/sqlite",
        "stores/postgres",
    )
)
_SERVICE = (*_CORE, "src/onceward/runtime")
_BROKERS = ("src/onceward/brokers", "src/onceward/sinks")


@dataclass(frozen=True, slots=True)
class Suite:
    """What writes a record."""

    rooms: tuple[str, ...]
    """The files and folders whose code it measures."""
    command: str
    """What writes it again."""


SUITES = {
    "proof/figures/crash.json": Suite(
        (*_SERVICE, "src/onceward/retention", "tests/crash"), "make crash JSON=proof/figures/crash.json"
    ),
    "proof/figures/simulate.json": Suite(
        (*_CORE, "simulation"), "make simulate SEEDS=20000 JSON=proof/figures/simulate.json"
    ),
    "proof/figures/mutants.json": Suite(
        ("src/onceward", "simulation", "mutants"), "make mutants JSON=proof/figures/mutants.json"
    ),
    "proof/figures/mutation.json": Suite(
        ("src/onceward", "mutation"), "make mutation JSON=proof/figures/mutation.json"
    ),
    "proof/figures/chaos.json": Suite((*_SERVICE, "chaos"), "make chaos JSON=proof/figures/chaos.json"),
    "proof/figures/skew.json": Suite((*_SERVICE, "chaos"), "make skew JSON=proof/figures/skew.json"),
    "proof/figures/fuzz.json": Suite(
        ("src/onceward/webhooks", "tests/webhooks"), "make fuzz JSON=proof/figures/fuzz.json"
    ),
    "proof/figures/soak.json": Suite(
        (*_SERVICE, "src/onceward/retention", "bench/soak.py"), "make soak JSON=proof/figures/soak.json"
    ),
    "proof/figures/brokers.json": Suite((*_BROKERS, "tests/sources", "tests/sinks"), "make brokers"),
    "proof/figures/sizing.json": Suite(("src/onceward/stores/sql", "proof/sizing.py"), "make sizing"),
    "proof/figures/redis-speed.json": Suite(("src/onceward/stores/redis", "bench/redis.py"), "python -m bench.redis"),
    "proof/figures/dynamodb-units.json": Suite(
        ("src/onceward/stores/dynamodb", "bench/dynamodb.py"), "python -m bench.dynamodb"
    ),
    "proof/figures/pulsar-speed.json": Suite(
        ("src/onceward/brokers/pulsar.py", "bench/pulsar.py"), "python -m bench.pulsar"
    ),
    "proof/figures/dashboard.json": Suite(
        ("src/onceward/dashboard", "src/onceward/admin", "bench/dashboard.py"), "make bench-dashboard"
    ),
    "bench/report.json": Suite((*_SERVICE, "bench"), "make bench"),
    "bench/report-mysql.json": Suite(
        (*_SERVICE, "src/onceward/stores/mysql", "bench/mysql.py", "bench/mysql_contenders.py"), "make bench-mysql"
    ),
    "bench/report-before.json": Suite((*_SERVICE, "bench/before.py", "bench/fairness.py"), "make bench-before"),
    "bench/report-60m.json": Suite(("src/onceward/stores/sql", "bench/sixty.py", "bench/growth.py"), "make bench-60m"),
    "faults/report.json": Suite((*_SERVICE, "faults"), "make faults"),
}
_ENGINE = "proof/figures/engine-"
_OF_ENGINE = {
    "pulsar": ("src/onceward/brokers",),
    "redis": ("src/onceward/stores/redis",),
    "valkey": ("src/onceward/stores/redis",),
    "dynamodb": ("src/onceward/stores/dynamodb",),
    **dict.fromkeys(
        ("mysql", "mariadb", "mariadb11", "group", "tidb"),
        ("src/onceward/stores/mysql", "src/onceward/stores/sql", "src/onceward/stores/relational"),
    ),
}


def suite_of(name: str) -> Suite:
    """What writes the record of this name, which is its path from the root of the checkout."""
    if name.startswith(_ENGINE):
        engine = name.removeprefix(_ENGINE).removesuffix(".json")
        rooms = _OF_ENGINE.get(engine, ("src/onceward/stores/sql", "src/onceward/stores/relational"))
        return Suite(("src/onceward/steps", *rooms, "engines"), f"make engines ENGINE={engine}")
    return SUITES[name]


def names() -> list[str]:
    """The names of all records."""
    folders = (("proof/figures", "*.json"), ("bench", "report*.json"), ("faults", "report.json"))
    return sorted(
        path.relative_to(ROOT).as_posix() for folder, pattern in folders for path in (ROOT / folder).glob(pattern)
    )


def read(name: str) -> dict[str, Any]:
    """One record."""
    found: dict[str, Any] = json.loads((ROOT / name).read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True, slots=True)
class Age:
    """How old a record is."""

    name: str
    commit: str
    date: str
    changed: float | None
    """The share of the lines that have changed since; None where the record says nothing about its code."""
    command: str

    @property
    def is_stale(self) -> bool:
        """Whether too much has changed since."""
        return self.changed is not None and self.changed > STEP

    @property
    def text(self) -> str:
        """For people."""
        if self.changed is None:
            return "unknown: older than its record format"
        return f"{self.changed:.0%} of its lines changed" + (" (stale)" if self.is_stale else "")


def ages() -> Iterator[Age]:
    """Of every record. Where runs add up, the last one counts."""
    for name in names():
        suite, record = suite_of(name), read(name)
        run = record["runs"][-1] if isinstance(record.get("runs"), list) else record
        sample = record.get("code", {}).get(run.get("code_digest", ""))
        since = None if sample is None else changed(sample, fingerprint(suite.rooms).sample)
        commit = str(run.get("commit") or run.get("origin", {}).get("commit") or "")
        yield Age(name, commit, str(run.get("date", "")), since, suite.command)


def of_code(name: str) -> dict[str, Any]:
    """What a record has to say about the code as it is now."""
    now: Fingerprint = fingerprint(suite_of(name).rooms)
    return {"code_digest": now.digest, "code": {now.digest: now.sample}}
