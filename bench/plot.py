"""The plot: what each contender does in a second, one panel for each workload, as an SVG written by hand."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from bench.report import REPORT

PLOT = REPORT.with_suffix(".svg")
PANELS = ("drain", "handle", "inline", "receive", "sqlite")
_BAR, _GAP, _HEAD, _LEFT, _WIDTH = 16, 6, 34, 250, 860
_COLOURS = {"onceward": "#1b6ca8", "limit": "#9aa5b1", "other": "#d8903b"}


def drawn(report: dict[str, Any]) -> str:
    """The picture of a report."""
    parts: list[str] = []
    top = 44
    for panel in PANELS:
        rows = sorted(_rows(report["medians"], panel), key=lambda row: -row[1])
        if not rows:
            continue
        parts.append(f'<text x="16" y="{top + 16}" class="head">{panel}, messages a second</text>')
        top += _HEAD
        most = rows[0][1]
        for name, value in rows:
            length = max(2.0, value / most * (_WIDTH - _LEFT - 110))
            parts.append(
                f'<text x="{_LEFT - 8}" y="{top + 12}" class="name">{escape(name)}</text>'
                f'<rect x="{_LEFT}" y="{top}" width="{length:.1f}" height="{_BAR}" fill="{_COLOURS[_kind(name)]}"/>'
                f'<text x="{_LEFT + length + 6:.1f}" y="{top + 12}">{value:,.0f}</text>'
            )
            top += _BAR + _GAP
        top += 12
    legend = "".join(
        f'<rect x="{_LEFT + 130 * place}" y="14" width="12" height="12" fill="{_COLOURS[kind]}"/>'
        f'<text x="{_LEFT + 18 + 130 * place}" y="24">{label}</text>'
        for place, (kind, label) in enumerate({"onceward": "onceward", "limit": "limit", "other": "others"}.items())
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top}" viewBox="0 0 {_WIDTH} {top}">'
        "<style>text{font:12px sans-serif;fill:#222}.head{font-weight:bold;font-size:14px}.name{text-anchor:end}</style>"
        f'<rect width="{_WIDTH}" height="{top}" fill="#fff"/>{legend}{"".join(parts)}</svg>\n'
    )


def _rows(medians: dict[str, float], panel: str) -> list[tuple[str, float]]:
    return [(name.split(": ", 1)[1], value) for name, value in medians.items() if name.startswith(f"{panel}: ")]


def _kind(name: str) -> str:
    if name.startswith(("onceward", "webhook")):
        return "onceward"
    return "limit" if name.startswith(("pure SQL", "pgbench", "by hand")) else "other"


def written(report: dict[str, Any], path: Path = PLOT) -> None:
    """Write the picture."""
    path.write_text(drawn(report), encoding="utf-8")


if __name__ == "__main__":
    written(json.loads(REPORT.read_text(encoding="utf-8")))
