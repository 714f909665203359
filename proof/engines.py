"""The table in docs/engines.md, made from the recorded run of every engine (`make engines` writes it)."""

from __future__ import annotations

import json
from typing import Any

from proof.__main__ import FIGURES, PAGE

ENGINES_PAGE = PAGE.with_name("engines.md")
BEGIN, END = "<!-- made by `make engines` -->\n", "<!-- end -->\n"


def records() -> list[dict[str, Any]]:
    """The recorded runs, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FIGURES.glob("engine-*.json"))]


def table() -> str:
    """The table as it should be."""
    lines = [
        "| engine | server | played | passed | failed | fault under load | messages | errors meanwhile | lost | doubled | disordered | commit, date |",
        "|---|---|---|---:|---:|---|---:|---:|---:|---:|---:|---|",
    ]
    for record in records():
        found, load = record["engine"], record["engine"]["load"]
        cells = [
            *(f"`{record['run']}`", f"{found['server']} {found['version']}", found["played"]),
            *(found["passed"], found["failed"], found["fault"]),
            *(f"{load['messages']:,}", load["errors"], load["lost"], load["doubled"], load["disordered"]),
            f"{record['commit'][:12]}, {record['date']}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with the table as it should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def write() -> None:
    """Write it into the page."""
    ENGINES_PAGE.write_text(with_table(ENGINES_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
