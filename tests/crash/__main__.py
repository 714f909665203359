"""Every crash point there is: `make crash`.

    python -m tests.crash [workers]

Runs the points with every fault, writes the figures to ONCEWARD_CRASH_JSON where that is set, and says them in its last
line. It fails if anything was violated, if a statement of the store is in no scenario, or if there was nothing to do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from proof import report
from tests.crash.points import FAULTS, seed

RECOVERIES = 3
SUITE = "tests/crash/test_points.py"


def main(workers: str = "4") -> int:
    """Run them all; the answer is the exit code."""
    drawn = seed()
    with tempfile.TemporaryDirectory() as folder:
        raw, taken = Path(folder, "figures.json"), Path(folder, "taken")
        taken.mkdir()
        chosen = {
            "ONCEWARD_CRASH_SAMPLE": os.environ.get("ONCEWARD_CRASH_SAMPLE", "all"),
            "ONCEWARD_CRASH_SEED": str(drawn),
            "ONCEWARD_CRASH_JSON": str(raw),
            "ONCEWARD_CRASH_TAKEN": str(taken),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "--dist", "worksteal", SUITE]
        code = subprocess.run(command, env={**os.environ, **chosen}, check=False).returncode
        found = json.loads(raw.read_text()) if raw.exists() else {}
    figures = {
        "sample": chosen["ONCEWARD_CRASH_SAMPLE"],
        "points": found.get("points", 0),
        "faults": len(FAULTS),
        "recoveries": RECOVERIES,
        "runs": found.get("runs", 0),
        "violations": found.get("violations", 0),
        "seed": drawn,
    }
    if path := os.environ.get("ONCEWARD_CRASH_JSON"):
        report.write(path, {"run": "crash", **figures})
    summary = (
        "\n{faults} faults, {recoveries} recoveries, seed {seed}\n"
        "crash: {points} points, {runs} runs, {violations} violations\n"
    )
    sys.stdout.write(summary.format(**figures))
    return int(code != 0 or figures["violations"] > 0 or figures["runs"] == 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
