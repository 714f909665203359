"""Which rows a handler changes, on SQLite: triggers of this connection alone write them down.

Invariant: everything here lives in SQLite's temporary schema and in the transaction of the dry run; no other
connection sees it, and the rollback takes it away.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Literal

from onceward.stores.dry_run import Change

_RECORD = "onceward_dry_run"
_TABLES = """
SELECT name FROM main.sqlite_master
WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name
"""
_ROWS: dict[Literal["insert", "update", "delete"], tuple[str, str]] = {
    "insert": ("", "NEW"),
    "update": ("OLD", "NEW"),
    "delete": ("OLD", ""),
}


def listen(cursor: sqlite3.Cursor, prefix: str) -> None:
    """Write down every change to every table but our own, until the transaction ends."""
    cursor.row_factory = None
    cursor.execute(f"CREATE TEMP TABLE {_RECORD} (id integer PRIMARY KEY, name, kind, columns, before, after)")
    names = [name for (name,) in cursor.execute(_TABLES).fetchall() if not name.startswith(prefix)]
    for number, name in enumerate(names):
        columns = [row[1] for row in cursor.execute(f"PRAGMA main.table_xinfo({_quoted(name)})")]
        for kind, rows in _ROWS.items():
            old, new = (_values(row, columns) for row in rows)
            cursor.execute(
                f"CREATE TEMP TRIGGER {_RECORD}_{kind}_{number} AFTER {kind} ON main.{_quoted(name)} BEGIN "
                f"INSERT INTO {_RECORD} (name, kind, columns, before, after) "
                f"VALUES ({_text(name)}, '{kind}', {_text(json.dumps(columns))}, {old}, {new}); END"
            )


def changes(cursor: sqlite3.Cursor) -> list[Change]:
    """What was written down."""
    cursor.row_factory = None
    rows = cursor.execute(f"SELECT name, kind, columns, before, after FROM {_RECORD} ORDER BY id").fetchall()
    return [
        Change(name, kind, _row(columns, before), _row(columns, after)) for name, kind, columns, before, after in rows
    ]


def _row(columns: str, values: str | None) -> dict[str, Any] | None:
    return None if values is None else dict(zip(json.loads(columns), json.loads(values), strict=True))


def _values(row: str, columns: list[str]) -> str:
    """The values of a row as a JSON array. Joined as text, because a function takes a limited number of arguments."""
    if not row:
        return "NULL"
    cells = (f"{row}.{_quoted(column)}" for column in columns)
    # JSON has no bytes; they are shown as SQL writes them.
    parts = (f"json_quote(CASE typeof({cell}) WHEN 'blob' THEN quote({cell}) ELSE {cell} END)" for cell in cells)
    return "'[' || " + " || ',' || ".join(parts) + " || ']'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
