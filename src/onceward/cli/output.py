"""What is drawn on the terminal: tables, fields, headings, JSON. Data goes through `text.visible` first."""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from onceward.cli.text import visible

STYLES = {
    "ok": "green",
    "done": "green",
    "running": "cyan",
    "due": "cyan",
    "warning": "yellow",
    "retrying": "yellow",
    "unhandled": "yellow",
    "quarantined": "yellow",
    "error": "bold red",
    "dead": "bold red",
    "outbox_dead": "bold red",
}


GAP = "  "
SHORTEST = 12
"""A last column is never cut shorter than this, however narrow the terminal is."""
WIDE = 120
"""So many columns have room for all that a table has."""
wide_option = click.option("--wide", is_flag=True, help="Show all columns, also in a narrow terminal.")
PIPE_WIDTH = 250
"""A pipe has no width to see, so lines are not cut at the usual 80."""


def console(*, stderr: bool = False) -> Console:
    """A console on the standard output of now; plain when that is not a terminal or NO_COLOR is set."""
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = PIPE_WIDTH
    return made


def styled(value: object, style: str = "") -> Text:
    """Data for a table cell: made visible, never read as markup."""
    return Text(visible(value), style=style)


def print_json(value: Any, *, indent: bool = True) -> None:
    """Print a value as JSON, in ASCII, so that no character of it can steer a terminal."""
    click.echo(json.dumps(plain(value), indent=2 if indent and sys.stdout.isatty() else None, ensure_ascii=True))


def plain(value: Any) -> Any:
    """A value as JSON knows it: times in ISO 8601, bytes as text, or as base64 where they are none."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def print_table(  # noqa: PLR0913 - what a table may be
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    cut: bool = False,
    more: Sequence[str] = (),
    wide: bool = False,
) -> None:
    """Print rows in aligned columns, one line each; those in `right` hold numbers.

    What is shown can be copied, so nothing is shortened, except with `cut` the last column at the edge of a terminal.
    The columns in `more` are left out of a terminal of less than 120 columns, unless all are wanted (`wide`).
    """
    out = console()
    if not wide and out.is_terminal and out.width < WIDE:
        kept = [place for place, name in enumerate(columns) if name not in more]
        columns, rows = [columns[place] for place in kept], [[row[place] for place in kept] for row in rows]
    head = [Text(name if out.is_terminal else name.upper(), style="bold") for name in columns]
    cells = [[cell if isinstance(cell, Text) else styled(cell) for cell in row] for row in rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(head, *cells, strict=True)]
    left = out.width - sum(widths[:-1]) - len(GAP) * (len(columns) - 1)
    for row in (head, *cells):
        line = Text()
        for name, cell, width in zip(columns[:-1], row, widths, strict=False):
            padding = " " * (width - cell.cell_len)
            line.append_text(Text(padding) + cell if name in right else cell + Text(padding))
            line.append(GAP)
        last = row[-1].copy()
        if cut and out.is_terminal:
            last.truncate(max(left, SHORTEST), overflow="ellipsis")
        line.append_text(last)
        line.rstrip()
        out.print(line, soft_wrap=True)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one below the other."""
    shown = [(name, value) for name, value in fields if value not in (None, "")]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        text = value.plain if isinstance(value, Text) else visible(value)
        click.echo(f"{name.ljust(width)}  {text}")


def heading(text: str) -> None:
    """Print the title of a part."""
    click.echo()
    console().print(Text(visible(text), style="bold"), soft_wrap=True)
