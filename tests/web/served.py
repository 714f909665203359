"""An ASGI application in a process of its own, served by uvicorn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.servers.ports import free_port
from tests.waiting import wait_until
from tests.webhooks.conftest import Caller, Reply, parse

ROOT = Path(__file__).parents[2]


class Served:
    """The process, and what it has written."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self.port, self._command, self._log = free_port(), command, log
        self._environment = {**os.environ, **environment}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def caller(self) -> Caller:
        """Who sends it requests."""
        return Caller(self.port)

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self._log.read_text() if self._log.exists() else ""

    def start(self) -> None:
        """Start it, without waiting for it."""
        words = [word.format(port=self.port) for word in self._command]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(words, env=self._environment, cwd=ROOT, stdout=log, stderr=log)

    def await_answer(self) -> None:
        """Wait until it takes requests."""
        wait_until(self._answers, timeout=60, message="the server to take requests")

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        try:
            return bool(self.get("/nothing-is-here").status)
        except (OSError, AssertionError):
            return False

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """An ordinary request."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        return parse(self.caller.send(f"GET {path} HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode()))

    def end(self, number: signal.Signals) -> int:
        """Send it a signal, and wait for its end."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def close(self) -> None:
        """Kill it if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        sys.stdout.write(self.log)  # shown when the test has failed


@contextmanager
def uvicorn(app: str, log: Path, environment: Mapping[str, str]) -> Iterator[Served]:
    """An application on uvicorn, not started yet."""
    command = [sys.executable, "-m", "uvicorn", app, "--port", "{port}", "--lifespan", "on"]
    served = Served(command, log, environment)
    try:
        yield served
    finally:
        served.close()
