"""Server processes that wait for a lock are stopped, and go on one after the other.

Of two that wait for the same transaction the server wakes both when it ends, and which of them is the first depends on
how fast the machine is. So each that waits is stopped by a signal, and those whose lock was granted go on in the order
that the seed says, each until it has ended or waits again.

A process that waits for a lock holds none of the server's internal ones, so nothing waits for it but what waits for its
transaction. That needs a server on this machine which we may send signals to; with another one, a history in which two
wait for the same transaction may go on in two ways.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

_HERE = "SELECT coalesce(host(inet_server_addr()), '') IN ('', '127.0.0.1', '::1'), pg_backend_pid()"


class Backends:
    """Which server processes are stopped."""

    def __init__(self, probe: psycopg.Connection[Any]) -> None:
        self._probe = probe
        row = probe.execute(_HERE).fetchone()
        assert row is not None
        self._ours = bool(row[0]) and _may_stop(row[1])
        self._stopped: set[int] = set()

    def blockers(self, pid: int) -> list[int]:
        """Who holds what a server process waits for."""
        row = self._probe.execute("SELECT pg_blocking_pids(%s)", (pid,)).fetchone()
        assert row is not None
        return list(row[0])

    def waits(self, pid: int) -> bool:
        """Whether one waits for a lock; then it is stopped, and else it goes on."""
        waiting = bool(self.blockers(pid))
        if not waiting:
            self.go_on(pid)
        elif self._ours and pid not in self._stopped:
            os.kill(pid, signal.SIGSTOP)
            self._stopped.add(pid)
        return waiting

    def is_stopped(self, pid: int) -> bool:
        """Whether one goes on only when it is told to."""
        return pid in self._stopped

    def go_on(self, pid: int) -> None:
        """Let one run, if it was stopped."""
        if pid in self._stopped:
            os.kill(pid, signal.SIGCONT)
            self._stopped.remove(pid)

    def in_deadlock(self, pid: int) -> bool:
        """Whether one waits, in the end, for itself."""
        seen: set[int] = set()
        front = self.blockers(pid)
        while front:
            one = front.pop()
            if one == pid:
                return True
            if one not in seen:
                seen.add(one)
                front += self.blockers(one)
        return False


def _may_stop(pid: int) -> bool:
    """Whether a number is that of a PostgreSQL here, and not of whatever has it on another machine than the server."""
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/comm").read_text().strip() == "postgres"
    return False
