"""`make bench-fairness`: measure the scenarios of fairness by themselves, and put them into the report of `make bench`."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from typing import Any

from bench import fairness, origin
from bench.figures import Figures
from bench.ground import SETTINGS, Ground
from bench.race import ROOT
from bench.report import REPORT, verdicts, written
from bench.scale import SCALES
from tests.servers.postgres import PostgresServer


def renewed(report: dict[str, Any], ground: Ground) -> dict[str, Any]:
    """A report with new figures of fairness, measured at its scale; it says that they come from another run."""
    scale, figures, began = SCALES[report["scale"]["name"]], Figures(), time.monotonic()
    fairness.measure(ground, scale, figures)
    apart = {
        "seconds": round(time.monotonic() - began),
        "load": round(os.getloadavg()[0], 1),
        "commit": origin.commit(ROOT)["commit"],
    }
    settings = report["settings"]
    # What had not run in time then may have run now: none of the old notes stays.
    kept = {name: note for name, note in settings["notes"].items() if not name.startswith(fairness.SUBJECTS)}
    return {
        **report,
        "scale": {**report["scale"], "crowd": asdict(scale.crowd)},
        "settings": {**settings, "notes": kept | figures.notes},
        "repetitions": report["repetitions"] | figures.rounded(),
        "medians": report["medians"] | figures.medians(),
        "ratios": report["ratios"] | fairness.ratios(figures),
        "fairness_apart": apart,
    }


if __name__ == "__main__":
    with PostgresServer(durable=True, settings=SETTINGS) as server:
        found = renewed(json.loads(REPORT.read_text(encoding="utf-8")), Ground(server))
    written(found)
    for row in verdicts(found["ratios"]):
        if row[0] in fairness.MOST:
            print("{:<30} {:>10}   {:<14} {}".format(*row))
