"""Where figures come from: the commit, whether anything was changed since, the server, and the disks under the data."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from bench.ground import one
from bench.race import ROOT
from tests.servers.postgres import PostgresServer


def found(server: PostgresServer, files: Path) -> dict[str, Any]:
    """Asked before anything is measured or written."""
    data = Path(one(server.url(), "SHOW data_directory"))
    return {
        **commit(ROOT),
        "postgres": server.version,
        "file_systems": {"postgres": file_system(data), "sqlite": file_system(files)},
    }


def commit(folder: Path) -> dict[str, Any]:
    """What is checked out, and whether the files are those of the commit; None where git does not know."""
    head, status = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain")
    return {"commit": head.strip() if head else None, "clean": None if status is None else not status.strip()}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)  # noqa: S607 - git, from PATH
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout


def file_system(path: Path) -> str:
    """The kind of the file system that a path is on, such as "ext4"."""
    best = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, *_ = line.split()
        if path.resolve().is_relative_to(place.replace("\\040", " ")) and len(place) >= len(best[0]):
            best = place, kind
    return best[1]
