"""The package as a tree: every room with what it is for, and its modules; `make hops` writes it to the architecture."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "onceward"
ORDER = (
    *("domain", "models", "steps", "stores", "runtime", "brokers", "polls", "sinks", "blobs", "webhooks"),
    *("integrations", "admin", "retention", "observability"),
)
"""The rooms in the order in which a message meets them; the others follow."""
BEGIN, END = "<!-- tree: made by `make hops` -->", "<!-- end of tree -->"
WIDTH, INDENT = 120, 20


def tree() -> str:
    """Every room, as the block of a page."""
    lines = ["```", "src/onceward/", *_modules(PACKAGE), *_rooms(PACKAGE, depth=1), "```"]
    return "\n".join(lines)


def renewed(text: str) -> str:
    """A page with the tree as it is."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{tree()}\n{END}{after}"


def _rooms(folder: Path, depth: int) -> Iterator[str]:
    for room in sorted((path.parent for path in folder.glob("*/__init__.py")), key=_place):
        said = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
        name = f"{'  ' * depth}{room.name}/"
        yield f"{name:{INDENT}}{said.partition(chr(10))[0]}"
        yield from _modules(room)
        yield from _rooms(room, depth + 1)


def _modules(room: Path) -> list[str]:
    names = sorted(path.stem for path in room.glob("*.py") if path.stem != "__init__")
    return [" " * INDENT + line for line in textwrap.wrap(" ".join(names), WIDTH - INDENT)]


def _place(room: Path) -> tuple[int, str]:
    return ORDER.index(room.name) if room.name in ORDER else len(ORDER), room.name
