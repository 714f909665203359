"""`python -m tests.pythons`: the newest other Python on this machine, for `make second`; nothing where there is none.

Looked for on PATH and among pyenv's, and each is asked: a name on PATH may be a shim of a version that is not there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("python3.14", "python3.13", "python3.12", "python3.11")


def candidates() -> list[str]:
    """Where a Python may be, newest first."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found: list[str] = []
    for name in NAMES:
        on_path = shutil.which(name)
        found += [on_path] if on_path else []
        found += map(str, sorted(pyenv.glob(f"versions/*/bin/{name}"), reverse=True))
    return found


def version(python: str) -> str:
    """Such as 3.13; empty where it cannot be asked, or lacks what a virtual environment and SQLite need."""
    ask = "import sys, sqlite3, ssl, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def other() -> str:
    """The newest that is not this one; empty where there is none."""
    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    return next((python for python in candidates() if version(python) not in ("", this)), "")


if __name__ == "__main__":
    sys.stdout.write(other())
