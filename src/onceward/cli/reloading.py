"""`onceward run --reload`: the same command in a child process, started again after every change of a .py file.

Invariant: there is never more than one child, and none after the end; a program that cannot be imported waits for the
change that mends it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

log = logging.getLogger("onceward")

LOOK_SECONDS = 0.5
GRACE_SECONDS = 10.0
ASIDE = {"__pycache__", "node_modules", "site-packages"}


class Reloader:
    """Keeps one child running whose files are what they were when it started."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command, self._folder = command, folder
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ask to stop; returns at once, may be called from a signal handler."""
        self._stopped.set()

    def run(self) -> None:
        """Start the child, and again after every change, until `stop()`."""
        while not self._stopped.is_set():
            seen = seen_files(self._folder)
            # Error texts and tracebacks may be logged: the messages of a developer are no secret.
            child = subprocess.Popen(self._command, env={**os.environ, "ONCEWARD_ENV": "development"})  # noqa: S603
            try:
                changed = self._watch(child, seen)
            finally:
                end(child)
            if changed:
                log.info("%s changed: restarting", changed)

    def _watch(self, child: subprocess.Popen[bytes], seen: Mapping[Path, int]) -> str | None:
        """Wait for a change, and return what has changed; None when it is time to stop."""
        told = False
        while not self._stopped.wait(LOOK_SECONDS):
            if child.poll() is not None and not told:
                told = True
                log.warning(
                    "the program ended with exit code %d; it is started again when a .py file changes", child.returncode
                )
            now = seen_files(self._folder)
            if now != seen:
                path = min(path for path in now.keys() | seen.keys() if now.get(path) != seen.get(path))
                return str(path.relative_to(self._folder))
        return None


def end(child: subprocess.Popen[bytes]) -> None:
    """Stop a process gracefully, or kill it when that takes too long."""
    child.terminate()
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def seen_files(folder: Path) -> dict[Path, int]:
    """Every .py file below a folder with the time of its last change, without environments and caches."""
    return {path: path.stat().st_mtime_ns for path in _files(folder)}


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if not name.startswith(".") and name not in ASIDE and not _environment(place, name)
        ]
        yield from (path for name in names if name.endswith(".py") and (path := Path(place, name)).is_file())


def _environment(place: str, name: str) -> bool:
    return Path(place, name, "pyvenv.cfg").exists()
