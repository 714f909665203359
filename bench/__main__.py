"""`make bench`: measure everything in turns, check every effect, print a table, write the report and the plot."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from bench import (
    brokers,
    direct,
    drain,
    fairness,
    growth,
    handle,
    hard,
    latency,
    memory,
    origin,
    orm,
    plot,
    profile,
    receive,
    report,
    sqlite,
    startup,
)
from bench.figures import Figures
from bench.ground import SETTINGS, Ground
from bench.scale import SCALES, Scale
from tests.servers.postgres import PostgresServer


def run(scale: Scale, say: Callable[[str], None], keep: Callable[[dict[str, Any]], None]) -> None:
    """Every workload: the throughputs in turns, then what takes its time once. What is known so far is always kept."""
    figures = Figures()
    began = time.monotonic()

    def take(workload: ModuleType, *arguments: object) -> None:
        say(f"{time.monotonic() - began:5.0f} s  {workload.__name__}")
        workload.measure(*arguments, scale, figures)
        keep(report.assembled(figures, scale, where | {"seconds": round(time.monotonic() - began)}))

    with PostgresServer(durable=True, settings=SETTINGS) as server, tempfile.TemporaryDirectory() as folder:
        ground, files = Ground(server), Path(folder)
        where = origin.found(server, files)
        for _ in range(scale.repetitions):
            # A noisy moment hits neighbours alike; what is compared stands side by side.
            take(startup)
            for workload in (drain, hard, handle, orm, direct, receive, brokers):
                take(workload, ground)
            take(sqlite, files)
        for once in (latency, fairness, memory, growth, profile):
            take(once, ground)


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--repetitions", type=int, help="how often each throughput is measured")
    parser.add_argument("--quiet", action="store_true", help="write nothing; only print")
    options = parser.parse_args()
    scale = SCALES[options.scale]
    scale = replace(scale, repetitions=options.repetitions or scale.repetitions)
    kept: dict[str, Any] = {}

    def keep(found: dict[str, Any]) -> None:
        kept.update(found)
        if not options.quiet:
            report.written(found)
            plot.written(found)

    run(scale, lambda line: print(line, file=sys.stderr, flush=True), keep)
    report.printed(kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
