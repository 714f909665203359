"""One way to write the parameters of a statement for every driver: `:name`.

Invariant: only what is a parameter is changed; text in quotes, comments and casts stay, also where a colon is in them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

# What may hold a colon without a parameter comes first: the longest reading of a place wins.
_PIECES = re.compile(
    r"""
    '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | (?P<dollar>\$(?:[A-Za-z_]\w*)?\$).*?(?P=dollar) | ::
    | (?<![\w:]):(?P<name>[A-Za-z_]\w*)
    | (?P<percent>%)
    """,
    re.VERBOSE | re.DOTALL,
)


@lru_cache(maxsize=512)
def pyformat(statement: str) -> str:
    """`:name` as `%(name)s`, and `%` as `%%`, for drivers that format."""

    def piece(found: re.Match[str]) -> str:
        if found["name"]:
            return f"%({found['name']})s"
        return found[0].replace("%", "%%")

    return _PIECES.sub(piece, statement)


def execute(tx: Any, statement: str, values: Mapping[str, Any] | None = None) -> Any:
    """Execute a statement with `:name` parameters on whatever database `tx` belongs to.

    `execute(tx, "INSERT INTO payments VALUES (:id, :amount)", message.data)` runs on SQLite and on PostgreSQL, where
    the drivers want different signs. Values that the statement does not name are left out of account. Returns what
    `tx.execute` returns: a cursor, and with an async connection something to await.
    """
    return tx.execute(statement if _reads_names(type(tx).__mro__) else pyformat(statement), values or {})


@lru_cache(maxsize=64)
def _reads_names(classes: tuple[type, ...]) -> bool:
    """Whether a connection is of the sqlite3 family, which reads `:name` itself."""
    return any(base.__module__.partition(".")[0] in ("sqlite3", "aiosqlite") for base in classes)
