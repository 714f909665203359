"""The record of a run, and its table."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from faults import lineup
from proof import report as proof

REPORT = Path(__file__).with_name("report.json")
RECORD = "faults/report.json"
CODE = ("commit", "date", "code_digest", "code")
COUNTS = ("lost", "doubled", "wrong", "stuck", "disordered")


def begun(seed: int, scale: dict[str, int], at_once: int) -> dict[str, Any]:
    """A report without results: what all contenders share."""
    return {
        "seed": seed,
        "scale": scale,
        "at_once": at_once,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        **proof.today(RECORD),
        "python": platform.python_version(),
        "onceward": version("onceward"),
        "cores": os.cpu_count(),
        "results": [],
    }


def merged(known: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """A report in which the contenders that ran again have their new results."""
    for name in ("seed", "scale"):
        if known[name] != found[name]:
            raise ValueError(f"the record has {name} {known[name]}, this run {found[name]}: run all contenders anew")
    fresh = {result["contender"]: result for result in [*known["results"], *found["results"]]}
    order = [contender.name for contender in lineup.ALL]
    # The record is as old as the oldest of its results.
    old = {name: known[name] for name in CODE if name in known}
    new = {name: value for name, value in found.items() if name not in CODE}
    return {**new, **old, "results": sorted(fresh.values(), key=lambda result: order.index(result["contender"]))}


def read() -> dict[str, Any]:
    """The record of this repository."""
    found: dict[str, Any] = json.loads(REPORT.read_text(encoding="utf-8"))
    return found


def write(report: dict[str, Any]) -> None:
    """Replace it."""
    REPORT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def count(result: dict[str, Any], name: str) -> int:
    """How many of a finding."""
    return len(result["verdict"][name])


def last_line(report: dict[str, Any]) -> str:
    """The sum of it, onceward's findings over all its variants."""
    ours = [
        result for result in report["results"] if result["contender"].startswith("onceward") and "error" not in result
    ]
    sums = {name: sum(count(result, name) for result in ours) for name in COUNTS}
    played = sum("error" not in result for result in report["results"])
    return (
        f"faults: {played} contenders; onceward lost {sums['lost']}, doubled {sums['doubled']}, "
        f"stuck {sums['stuck']}, disordered {sums['disordered']}"
    )


def holds(report: dict[str, Any]) -> bool:
    """Whether every variant of onceward that was to run did run, and nothing was wrong with any."""
    ours = [result for result in report["results"] if result["contender"].startswith("onceward")]
    return bool(ours) and all(
        "error" not in result and not any(count(result, name) for name in COUNTS) for result in ours
    )
