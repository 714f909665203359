"""`make bench-60m`: claims and dedupe beside sixty million finished rows; prints what it found and writes it down."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.figures import Figures
from bench.ground import SETTINGS, Ground
from bench.growth import finished
from proof import report
from tests.servers.postgres import PostgresServer

SIZES = (0, 60_000_000)
SIXTY = Path(__file__).with_name("report-60m.json")


def main(sizes: tuple[int, int] = SIZES) -> dict[str, Any]:
    """Time-ordered ids first, then random ones."""
    figures, ratios, began = Figures(), {}, time.perf_counter()
    with PostgresServer(durable=True, settings=SETTINGS) as server:
        ground = Ground(server)
        for kind in ("ordered", "random"):
            finished(ground, kind, sizes, figures)
            for statement in ("claim", "receive"):
                empty, full = (f"growth: {statement}, {kind} ids, {size} finished (ms)" for size in sizes)
                ratios[f"{statement}, {kind} ids"] = figures.ratio(full, empty)
                print(f"{statement}, {kind} ids: {figures.ratio(full, empty)} of the empty tables", flush=True)
    medians = {name: round(figures.median(name) or 0, 2) for name in figures.repetitions}
    for name, value in medians.items():
        print(f"{name:<60} {value:>10.2f}")
    seconds = round(time.perf_counter() - began)
    return {"rows": sizes[-1], "seconds": seconds, "ratios": ratios, "medians": medians}


if __name__ == "__main__":
    SIXTY.write_text(json.dumps(main() | report.today("bench/report-60m.json"), indent=2) + "\n", encoding="utf-8")
    sys.exit(0)
