"""Every crash point there is: `make crash`.

    python -m tests.crash [workers]

Runs the points with every fault, adds the figures to those in ONCEWARD_CRASH_JSON where that is set, and prints them in
its last line. ONCEWARD_CRASH_SHARD=1/4 plays a quarter of the points, always the same; four shards are the whole. It
fails if anything was violated, if a statement of the store is in no scenario, or if there was nothing to do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from proof import report
from tests.crash.points import FAULTS, seed, shard

RECOVERIES = 3
SUITE = "tests/crash/test_points.py"


def main(workers: str = "4") -> int:
    """Run them all; the answer is the exit code."""
    drawn, began = seed(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "figures.json")
        chosen = {
            "ONCEWARD_CRASH_SAMPLE": os.environ.get("ONCEWARD_CRASH_SAMPLE", "all"),
            "ONCEWARD_CRASH_SEED": str(drawn),
            "ONCEWARD_CRASH_JSON": str(raw),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "--dist", "worksteal", SUITE]
        code = subprocess.run(command, env={**os.environ, **chosen}, check=False).returncode
        found = json.loads(raw.read_text())["stores"] if raw.exists() else {}
    shared: dict[str, Any] = {
        "shard": shard(),
        "sample": chosen["ONCEWARD_CRASH_SAMPLE"],
        "faults": len(FAULTS),
        "recoveries": RECOVERIES,
        "seed": drawn,
        "seconds": round(time.monotonic() - began),
    }
    runs = [(store, {**shared, **_counts(tally)}) for store, tally in sorted(found.items())]
    if path := os.environ.get("ONCEWARD_CRASH_JSON"):
        report.add(path, "crash", runs)
    totals = {name: sum(run[name] for _, run in runs) for name in ("points", "trials", "violations")}
    summary = (
        "\nshard {shard}, {faults} faults, {recoveries} recoveries, seed {seed}\n"
        "crash: {points} points, {trials} runs, {violations} violations\n"
    )
    sys.stdout.write(summary.format(**shared, **totals))
    return int(code != 0 or totals["violations"] > 0 or totals["trials"] == 0)


def _counts(tally: dict[str, int]) -> dict[str, int]:
    return {"points": tally["points"], "trials": tally["runs"], "violations": tally["violations"]}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
