"""One private server process and its folder.

Invariant: the process never outlives the test process (`supervise.py` sees to that), nor does the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import processes
from tests.servers.install import ServerMissing
from tests.waiting import wait_until

_SUPERVISOR = Path(__file__).with_name("supervise.py")
_OS_USER = "postgres"


class ServerProcess:
    """A server program run in a temporary folder, as the postgres user when the tests run as root and it may."""

    def __init__(self, name: str, *, as_oneself: bool = False) -> None:
        self.user = "" if as_oneself else _server_user()
        self.folder = Path(tempfile.mkdtemp(prefix=f"onceward-{name}-"))
        if self.user:
            shutil.chown(self.folder, self.user, self.user)
        self.pid = 0
        self._supervisor: subprocess.Popen[bytes] | None = None
        # A forked child inherits this object and its exit hook, but not the right to end the parent's server.
        self._owner = os.getpid()
        atexit.register(self.close)

    def run(self, *command: str | Path) -> None:
        """Run a program to its end as the server's user, supervised like the server itself."""
        self.launch(*command)
        assert self._supervisor is not None
        code = self._supervisor.wait()
        self._forget()
        if code:
            raise RuntimeError(f"{command[0]} failed with {code}:\n{self.log()}")

    def launch(self, *command: str | Path) -> None:
        """Start the server under a supervisor; the caller finds out when it is ready."""
        if self.running:
            raise RuntimeError(f"already running as process {self.pid}")
        self._forget()
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", _SUPERVISOR, self.folder, self.user, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal must reach the tests, not the clean-up
        )
        assert self._supervisor.stdout is not None
        self.pid = int(self._supervisor.stdout.readline() or 0)
        if not self.pid:
            raise RuntimeError(f"could not run {command[0]}:\n{self.log()}")

    @property
    def running(self) -> bool:
        """Whether the server is there, ready or not."""
        return self._supervisor is not None and self._supervisor.poll() is None

    def log(self) -> str:
        """Everything the server has logged so far."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def end(self, with_signal: signal.Signals, *, timeout: float = 30.0) -> None:
        """Ask the server to stop, wait until it has; kill it when it does not, and say so."""
        if self._supervisor is None:
            return
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, with_signal)
            try:
                self._supervisor.wait(timeout)
            except subprocess.TimeoutExpired:
                ignored = f"process {self.pid} ignored {with_signal.name}"
                self.kill()
                raise TimeoutError(f"{ignored}:\n{self.log()}") from None
        self._forget()

    def kill(self) -> None:
        """SIGKILL for the server and every process under it: nobody gets to flush or say goodbye."""
        if self._supervisor is None:
            return
        family = _stopped_family(self.pid) if self.pid and self.running else []
        for process in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        # An interrupt may have come before the process id did: the closed pipe makes the supervisor end it.
        if not family and self._supervisor.stdin is not None:
            self._supervisor.stdin.close()
        self._supervisor.wait()
        wait_until(lambda: not any(_alive(process) for process in family), message=f"end of {family}")
        self._forget()

    def close(self) -> None:
        """Kill the server if it still runs, and remove the folder."""
        atexit.unregister(self.close)
        if os.getpid() != self._owner:
            return
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _forget(self) -> None:
        if self._supervisor is not None:
            for pipe in (self._supervisor.stdin, self._supervisor.stdout):
                if pipe is not None:
                    pipe.close()
        self._supervisor = None
        self.pid = 0


def _server_user() -> str:
    """The user to run as, "" for oneself: PostgreSQL and PgBouncer both refuse to run as root."""
    if os.geteuid() != 0:
        return ""
    try:
        pwd.getpwnam(_OS_USER)
    except KeyError:
        raise ServerMissing(
            "the tests run as root, and PostgreSQL refuses to: create its user with"
            f" `adduser --system --group {_OS_USER}`"
        ) from None
    return _OS_USER


def _stopped_family(root: int) -> list[int]:
    """The process, stopped so that it starts no other while we look, and all its descendants."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(root, signal.SIGSTOP)
    # The signal is only asked for when kill returns.
    wait_until(lambda: processes.state(root) in ("T", "Z", ""), message=f"process {root} to stop")
    # PostgreSQL's backends leave their parent's process group, so only the parent id leads to them.
    parents = processes.parents()
    family = [root]
    for member in family:
        family += [pid for pid, parent in parents.items() if parent == member]
    return family


def _alive(pid: int) -> bool:
    return processes.state(pid) not in ("", "Z")
