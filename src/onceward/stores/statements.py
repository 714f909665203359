"""Loads the named statements of a dialect from its .sql file.

Invariant: `{prefix}`, checked by `identity.check_prefix`, is the only thing ever put into SQL text; on PostgreSQL with
the schema of the tables before it, so that whatever path a handler has set, our statements find our tables.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

_SECTION = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_DEPLOY = re.compile(r"-- deploy: (before|after)\n")
_COMMENT = re.compile(r"^\s*--[^\n]*\n?", re.MULTILINE)
# Up to a semicolon at the end of a line; one inside the body of a function ends nothing.
_STATEMENT = re.compile(r"(?:\$\$.*?\$\$|;(?!\s*(?:\n|\Z))|[^;$]|\$)+", re.DOTALL)
# Not in a literal, where it is a part of a name; but for the one that names a sequence.
_NAME = re.compile(r"(?<!')\{prefix\}|(?<=nextval\(')\{prefix\}")
_SQL = Path(__file__).with_name("sql")


@cache
def load(dialect: str, prefix: str, schema: str = "") -> dict[str, tuple[str, ...]]:
    """The statements of a dialect by name; a section may hold several, which run in order.

    `schema`, quoted where it needs to be, is where the tables are; without it they are found by the search path.
    """
    text = (_SQL / f"{dialect}.sql").read_text(encoding="utf-8")
    if schema:
        text = _NAME.sub(lambda _: f"{schema}.{{prefix}}", text)
    parts = _SECTION.split(text)[1:]
    return {name: _statements(body, prefix) for name, body in zip(parts[::2], parts[1::2], strict=True)}


class Migration(NamedTuple):
    """One numbered file. `deploy` says whether code that does not know it goes on working: `before` yes, `after` no."""

    version: int
    name: str
    deploy: str
    statements: tuple[str, ...]


@cache
def migrations(dialect: str, prefix: str) -> tuple[Migration, ...]:
    """The numbered migrations of a dialect."""
    found = []
    for file in (_SQL / "migrations").iterdir():
        number, _, rest = file.name.partition("_")
        if rest.endswith(f".{dialect}.sql"):
            text = file.read_text(encoding="utf-8")
            header = _DEPLOY.match(text)
            if header is None:
                raise ValueError(f"{file.name} does not begin with `-- deploy: before` or `-- deploy: after`")
            name = rest.removesuffix(f".{dialect}.sql")
            found.append(Migration(int(number), name, header[1], _statements(text, prefix)))
    return tuple(sorted(found))


def _statements(text: str, prefix: str) -> tuple[str, ...]:
    text = _COMMENT.sub("", text).replace("{prefix}", prefix)
    return tuple(part.strip() for part in _STATEMENT.findall(text) if part.strip())
