"""What the system knows about processes: in /proc on Linux, by `ps` elsewhere (macOS), which is slower."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def state(pid: int) -> str:
    """The kernel's letter: R, S, T for stopped, Z for dead and not yet asked about; "" when gone."""
    return "".join(_stat(pid)[:1])[:1]  # `ps` puts more letters behind it


def parents() -> dict[int, int]:
    """The parent of every process there is."""
    if sys.platform != "linux":
        return {int(pid): int(parent) for pid, parent in map(str.split, _ps("-A", "-o", "pid=,ppid="))}
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {pid: int(stat[1]) for pid in pids if (stat := _stat(pid))}


def die_with(parent: int) -> None:
    """In a child: SIGKILL when its parent is gone; at once on Linux, soon elsewhere."""
    if sys.platform != "linux":
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    else:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def _stat(pid: int) -> list[str]:
    """State, parent id and so on of a process; nothing when it is gone."""
    if sys.platform != "linux":
        return " ".join(_ps("-p", str(pid), "-o", "state=,ppid=")).split()
    try:
        # The name before ")" may itself contain spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _ps(*options: str) -> list[str]:
    done = subprocess.run(["ps", *options], capture_output=True, text=True, check=False)
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
