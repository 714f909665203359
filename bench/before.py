"""`make bench-before`: the scenarios of fairness with the code as it was, and its processor time beside that of today.

The code of both is run in turns, each on tables that it made itself, by the same scripts and on the same server.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

from bench import fairness
from bench.fairness import with_code
from bench.figures import Figures, Run, expect
from bench.ground import LEFT, SETTINGS, Ground, check_drained
from bench.race import ROOT, ours, run
from bench.report import written
from bench.scale import SCALES, Scale
from proof import report as proof
from tests.servers.postgres import PostgresServer

COMMIT = "17d9e8e"
"""The last one before claims became fair and groups spared their neighbours."""
BEFORE = Path(__file__).with_name("report-before.json")
WORKLOADS = {"drain": "nothing", "handle": "update"}
"""The type of the messages of each."""
MOST_COST = 1.1
REPETITIONS = 7

Sources = Mapping[str, Path | None]
Costs = dict[str, dict[str, list[dict[str, float]]]]


def costs(ground: Ground, scale: Scale, sources: Sources, repetitions: int) -> Costs:
    """Microseconds of the processors for each message, by workload and code: the clients' and the server's."""
    found: Costs = {workload: {code: [] for code in sources} for workload in WORKLOADS}
    for repetition in range(repetitions):
        # Whoever is second may find a warmer machine: the turns change.
        turns = list(sources.items())[:: 1 if repetition % 2 else -1]
        for workload, kind in WORKLOADS.items():
            for code, source in turns:
                found[workload][code].append(_cost(ground, scale, kind, code, source))
    return found


def _cost(ground: Ground, scale: Scale, kind: str, code: str, source: Path | None) -> dict[str, float]:
    """One run of worker processes on a backlog that the same code has received."""

    def fill(url: str) -> None:
        run([*with_code(source), *ours("backlog", url, kind, scale.messages)])

    name = f"{kind}, {code}"
    with ground.copy(ground.template(f"{code}_{kind}", fill, like=None)) as url:
        command = [*with_code(source), *ours("contenders", "drain", url)]
        finish = ground.race(url, [command] * scale.processes, LEFT)
        expect(f"{name}: finished", sum(finish.answers), scale.messages)
        check_drained(name, url, scale.messages)
    return Run(scale.messages, finish.seconds, finish.clients, finish.server).each()


def totals(runs: list[dict[str, float]]) -> list[float]:
    """What a message cost clients and server together, in each repetition."""
    return [one["clients"] + one["server"] for one in runs]


def cost_ratios(found: Costs) -> dict[str, float]:
    """What a message costs now, over what it cost before: the median of the ratios of neighbouring runs.

    Neighbours had the same machine. The least of each would not do: load may make the code itself do more.
    """
    return {
        workload: round(median(map(truediv, totals(codes["now"]), totals(codes["before"]))), 3)
        for workload, codes in found.items()
    }


def measured(scale: Scale, repetitions: int, commit: str = COMMIT) -> dict[str, Any]:
    """All of it, as it is recorded."""
    figures, began = Figures(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder, PostgresServer(durable=True, settings=SETTINGS) as server:
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True)  # noqa: S607 - git, from PATH
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)  # noqa: S607 - as above
        ground, source = Ground(server), Path(folder) / "src"
        print(f"processor time, {repetitions} repetitions", file=sys.stderr, flush=True)
        spent = costs(ground, scale, {"before": source, "now": None}, repetitions)
        print("scenarios, as it was", file=sys.stderr, flush=True)
        fairness.measure(ground, scale, figures, source)
    return {
        **proof.today("bench/report-before.json"),
        "before": commit,
        "scale": scale.name,
        "seconds": round(time.monotonic() - began),
        "machine": {"cores": os.cpu_count(), "load": [round(load, 1) for load in os.getloadavg()]},
        "notes": figures.notes,
        "ratios": fairness.ratios(figures),
        "medians": figures.medians(),
        "repetitions": figures.rounded(),
        "processor_microseconds": spent,
        "cost_ratios": cost_ratios(spent),
    }


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(prog="python -m bench.before")
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    options = parser.parse_args()
    report = measured(SCALES[options.scale], options.repetitions)
    written(report, BEFORE)
    print(json.dumps({name: report[name] for name in ("ratios", "cost_ratios")}, indent=2))


if __name__ == "__main__":
    main()
