"""Three releases of onceward, each in a folder that comes first on the path of the processes that run it.

`N` is this code. `N+1` has one more migration, which adds (`deploy: before`), and writes the columns that it added.
`N+2` renames those columns (`deploy: after`), so that neither of the two before it may go on.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import onceward
from onceward.stores import migrate

OLD, NEW, BREAKING = "N", "N+1", "N+2"
_ADDED, _RENAMED = "region", "area"
_TABLES = ("queue", "body", "run")
"""The tables that get a column: rows that wait, rows that are kept, rows that a finish writes."""
_TYPE = {"sqlite": "text", "postgres": "text", "mysql": "varchar(64)"}
# DDL commits by itself there, and what was interrupted is done again.
_AGAIN = {"mysql": "IF NOT EXISTS "}
_INSERT = re.compile(rf"INSERT INTO \{{prefix\}}({'|'.join(_TABLES)}) \(([^)]*)\)(\s*)(SELECT |VALUES (?:\{{\w+ )?\()")


@dataclass(frozen=True, slots=True)
class Release:
    """The code of one release, and the migration that is new in it."""

    name: str
    folder: Path
    migration: str

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process one of this release."""
        path = os.pathsep.join(filter(None, (str(self.folder), os.environ.get("PYTHONPATH"))))
        return {"PYTHONPATH": path, "ONCEWARD_CODE_VERSION": self.name}


def make(folder: Path) -> tuple[Release, Release, Release]:
    """The three, one after the other."""
    newest = migrate.newest("sqlite", migrate.DEFAULT_PREFIX)
    additive, breaking = f"{newest + 1:04d}_regions", f"{newest + 2:04d}_areas"
    old = _copy(folder / "old", OLD, "")
    new = _copy(folder / "new", NEW, additive)
    last = _copy(folder / "breaking", BREAKING, breaking)
    for dialect, kind in _TYPE.items():
        for release in (new, last):
            _add(release, additive, dialect, _additive(kind, _AGAIN.get(dialect, "")))
        _add(last, breaking, dialect, _breaking())
    _write_column(new, _ADDED)
    _write_column(last, _RENAMED)
    return old, new, last


def _copy(folder: Path, name: str, migration: str) -> Release:
    package = Path(onceward.__file__).parent
    shutil.copytree(package, folder / package.name)
    return Release(name, folder, migration)


def _sql(release: Release) -> Path:
    return release.folder / "onceward" / "stores" / "sql"


def _add(release: Release, migration: str, dialect: str, text: str) -> None:
    (_sql(release) / "migrations" / f"{migration}.{dialect}.sql").write_text(text, encoding="utf-8")


def _additive(kind: str, again: str) -> str:
    columns = [f"ALTER TABLE {{prefix}}{table} ADD COLUMN {again}{_ADDED} {kind};" for table in _TABLES]
    index = f"CREATE INDEX {again}{{prefix}}queue_{_ADDED} ON {{prefix}}queue ({_ADDED});"
    return "\n".join(["-- deploy: before", *columns, index, ""])


def _breaking() -> str:
    columns = [f"ALTER TABLE {{prefix}}{table} RENAME COLUMN {_ADDED} TO {_RENAMED};" for table in _TABLES]
    return "\n".join(["-- deploy: after", *columns, ""])


def _write_column(release: Release, column: str) -> None:
    """Let each statement that inserts into one of the tables write the release's name into the column."""
    for dialect in _TYPE:
        file = _sql(release) / f"{dialect}.sql"
        text, count = _INSERT.subn(
            rf"INSERT INTO {{prefix}}\1 ({column}, \2)\3\4'{release.name}', ", file.read_text(encoding="utf-8")
        )
        if count < 2 * len(_TABLES):
            raise LookupError(f"{file.name} inserts in other words than were looked for")
        file.write_text(text, encoding="utf-8")
