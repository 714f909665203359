"""What a run leaves behind: its figures, and what they were made with."""

from __future__ import annotations

import json
import platform
import sqlite3
import subprocess
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from proof import records
from proof.fingerprint import ROOT
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

VERSIONS: dict[str, Callable[[], str]] = {
    "sqlite": lambda: sqlite3.sqlite_version,
    "postgres": lambda: PostgresServer().version,
    "mariadb": lambda: MariadbServer().version,
}
"""Of the stores that figures name."""


def today(name: str) -> dict[str, Any]:
    """Commit, date and code for a record that is written elsewhere."""
    return {"commit": commit(), "date": _date(), **records.of_code(name)}


def write(file: str, figures: dict[str, Any], stores: Iterable[str] = ()) -> None:
    """Write the figures of a run, with the commit, the date and the versions they belong to."""
    _store(file, {**_made_with(stores), **figures, **_code(file)})


def add(file: str, run: str, figures: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Add runs, each with the store it ran on, to those that a record has; what the suites find adds up."""
    path = Path(file)
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"runs": []}
    code = _code(file)
    digest = {"code_digest": code["code_digest"]} if code else {}
    fresh = [{**_made_with([store]), **digest, "store": store, **one} for store, one in figures]
    runs = [*known["runs"], *fresh]
    samples = known.get("code", {}) | code.get("code", {})
    _store(file, {"run": run, "code": samples, "runs": runs})


def commit() -> str:
    """The commit of this checkout, "+" where files have changed since; empty outside of one."""
    git = ["git", "-C", str(Path(__file__).parent)]
    changes = [*git, "status", "--porcelain", "--", ":!figures", ":!../docs/proof.md"]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(changes, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changed else "")


def _made_with(stores: Iterable[str]) -> dict[str, Any]:
    return {
        "commit": commit(),
        "date": _date(),
        "python": platform.python_version(),
        "versions": {store: VERSIONS[store]() for store in stores if store in VERSIONS},
    }


def _date() -> str:
    return datetime.now(UTC).date().isoformat()


def _code(file: str) -> dict[str, Any]:
    """Nothing for a file that is no record of this repository, such as one that a test writes."""
    path = Path(file).resolve()
    return records.of_code(path.relative_to(ROOT).as_posix()) if path.is_relative_to(ROOT) else {}


def _store(file: str, record: dict[str, Any]) -> None:
    Path(file).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
