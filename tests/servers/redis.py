"""A private Redis.

Invariant: every write is on disk before it is answered, so that after a kill -9 and a restart nothing is missing.
"""

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


class RedisServer:
    """A Redis of one's own; use as a context manager."""

    def __init__(self) -> None:
        self._program = install.redis_program()
        self._process = ServerProcess("redis")
        self.port = 0

    def start(self) -> Self:
        """Start (again, on the same port and data); returns when it takes commands."""
        for port in [self.port] if self.port else [free_port() for _ in range(_ATTEMPTS)]:
            self._launch(port)
            if self._process.running:
                self.port = port
                return self
            self._process.end(signal.SIGTERM)
        raise RuntimeError(f"Redis did not start:\n{self._process.log()}")

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def close(self) -> None:
        """End the process and remove its folder."""
        self._process.close()

    @property
    def version(self) -> str:
        """The version, such as "7.0.15"."""
        printed = subprocess.check_output([self._program, "--version"], text=True)
        found = re.search(r"v=(\S+)", printed)
        return found[1] if found else printed.strip()

    def url(self, **options: str) -> str:
        """The address of its database, with options."""
        return f"redis://127.0.0.1:{self.port}/0?" + "&".join(f"{name}={value}" for name, value in options.items())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _launch(self, port: int) -> None:
        options = f"--bind 127.0.0.1 --port {port} --appendonly yes --appendfsync always --daemonize no"
        logged = len(self._process.log())
        self._process.launch(self._program, *options.split(), "--save", "", "--dir", self._process.folder)
        wait_until(
            lambda: "Ready to accept" in self._process.log()[logged:] or not self._process.running,
            message="Redis taking commands",
        )
