"""What a run leaves behind: its figures, and what they were made with."""

from __future__ import annotations

import json
import platform
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

from tests.servers.postgres import PostgresServer


def write(file: str, figures: dict[str, Any]) -> None:
    """Write the figures of a run, with the commit and the versions they belong to."""
    made_with = {
        "commit": _commit(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "postgres": PostgresServer().version,
    }
    Path(file).write_text(json.dumps({**made_with, **figures}, indent=1) + "\n", encoding="utf-8")


def _commit() -> str:
    """The commit of this checkout, "+" where files have changed since; empty outside of one."""
    git = ["git", "-C", str(Path(__file__).parent)]
    changes = [*git, "status", "--porcelain", "--", ":!figures", ":!../docs/proof.md"]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(changes, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changed else "")
