"""A private NATS server with JetStream, whose streams are on disk."""

from __future__ import annotations

import re
import signal
import subprocess
from typing import Self

from tests.servers import install
from tests.servers.ports import free_port
from tests.servers.process import ServerProcess
from tests.waiting import wait_until

_ATTEMPTS = 10


class NatsServer:
    """A NATS server of one's own; use as a context manager."""

    def __init__(self) -> None:
        self._program = install.nats_program()
        self._process = ServerProcess("nats")
        self.port = 0

    def start(self) -> Self:
        """Start (again, on the same port and data); returns when it takes connections."""
        for port in [self.port] if self.port else [free_port() for _ in range(_ATTEMPTS)]:
            self._launch(port)
            if self._process.running:
                self.port = port
                return self
            self._process.end(signal.SIGTERM)
        raise RuntimeError(f"NATS did not start:\n{self._process.log()}")

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def close(self) -> None:
        """End the process and remove its folder."""
        self._process.close()

    @property
    def version(self) -> str:
        """The version, such as "2.9.10"."""
        printed = subprocess.check_output([self._program, "--version"], text=True)
        found = re.search(r"v?(\d+\.\d+\.\d+)", printed)
        return found[1] if found else printed.strip()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _launch(self, port: int) -> None:
        logged = len(self._process.log())
        folder = self._process.folder / "streams"
        self._process.launch(self._program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder)
        wait_until(
            lambda: "Server is ready" in self._process.log()[logged:] or not self._process.running,
            message="NATS taking connections",
        )
