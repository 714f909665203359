"""Fairness: what messages suffer from others, in the scenarios of `bench/scenarios`, each in a database of its own."""

from __future__ import annotations

import json
from pathlib import Path

from bench.figures import Figures
from bench.ground import Ground
from bench.race import ours, run
from bench.scale import Scale

SCENARIOS = ("lanes", "failing", "held", "isolated", "bursts", "neighbours")
_WAYS = ("one process", "several processes")
FIGURES = {
    "fairness_lanes": tuple(f"lanes: {way}, {part} (of the ideal)" for way in _WAYS for part in ("first", "again")),
    "fairness_types_ms": ("types: behind failing messages (ms)", "types: behind a held key (ms)"),
    "suspects_ms": ("suspects: a fresh message (ms)",),
    "burst_max_vs_p50": ("bursts: slowest (ms)", "bursts: p50 (ms)"),
    "neighbour_repeats": ("neighbours: calls repeated",),
}
"""From what each row of the table is made."""
SUBJECTS = ("lanes: ", "types: ", "suspects: ", "bursts: ", "neighbours: ")
"""With what the names of its figures and notes begin."""
MOST = {
    "fairness_lanes": 1.5,
    "fairness_types_ms": 1000.0,
    "suspects_ms": 1000.0,
    "burst_max_vs_p50": 10.0,
    "neighbour_repeats": 0.0,
}
"""The most each may be."""


def measure(ground: Ground, scale: Scale, figures: Figures, source: Path | None = None) -> None:
    """Every scenario, with the code that is installed or with that of another folder."""
    for name in SCENARIOS:
        with ground.bare() as url:
            printed = run([*with_code(source), *ours("scenarios", name, url, scale.name)])
        found = json.loads(printed.splitlines()[-1])
        for figure, values in found["values"].items():
            for value in values:
                figures.add(figure, value)
        figures.notes.update(found["notes"])


def with_code(source: Path | None) -> list[str]:
    """What stands before a command that is to run with the code of another folder."""
    return [] if source is None else ["env", f"PYTHONPATH={source}"]


def ratios(figures: Figures) -> dict[str, float | None]:
    """The rows of the table: of several figures the worst, of two that belong together their ratio."""
    table = {name: figures.median(*of) for name, of in FIGURES.items()}
    table["burst_max_vs_p50"] = figures.ratio(*FIGURES["burst_max_vs_p50"])
    return {name: None if value is None else round(value, 2) for name, value in table.items()}
