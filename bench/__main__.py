"""`make bench`: measure everything in turns, check every effect, print a table, write the report and the plot."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from bench import drain, growth, handle, hard, latency, memory, plot, receive, report, sqlite, startup
from bench.figures import Figures
from bench.ground import SETTINGS, Ground
from bench.scale import SCALES, Scale
from tests.servers.postgres import PostgresServer


def run(scale: Scale, say: Callable[[str], None]) -> dict[str, object]:
    """Every workload: the throughputs in turns, then what takes its time once."""
    figures = Figures()
    began = time.monotonic()
    with PostgresServer(durable=True, settings=SETTINGS) as server:
        ground = Ground(server)
        for number in range(scale.repetitions):
            # A noisy moment hits neighbours alike; what is compared stands side by side.
            for workload in (drain, hard, handle, receive):
                say(f"{time.monotonic() - began:5.0f} s  {workload.__name__}, {number + 1} of {scale.repetitions}")
                workload.measure(ground, scale, figures)
            say(f"{time.monotonic() - began:5.0f} s  bench.sqlite, {number + 1} of {scale.repetitions}")
            sqlite.measure(scale, figures)
        for once in (latency, memory, growth):
            say(f"{time.monotonic() - began:5.0f} s  {once.__name__}")
            once.measure(ground, scale, figures)
        startup.measure(scale, figures)
        version = server.version
    return report.assembled(figures, scale, version, time.monotonic() - began)


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--repetitions", type=int, help="how often each throughput is measured")
    parser.add_argument("--quiet", action="store_true", help="write nothing; only print")
    options = parser.parse_args()
    scale = SCALES[options.scale]
    scale = replace(scale, repetitions=options.repetitions or scale.repetitions)
    found = run(scale, lambda line: print(line, file=sys.stderr, flush=True))
    report.printed(found)
    if not options.quiet:
        report.written(found)
        plot.written(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
