"""A private server that is one program: it listens on one port and says in its log when it is ready.

Invariant: it is asked for readiness in its own log, never through its port, which somebody else may have taken first.
"""

from __future__ import annotations

import re
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from tests.servers.certificates import papers
from tests.servers.ports import free_port
from tests.servers.process import ServerProcess
from tests.waiting import wait_until

_ATTEMPTS = 10
USER, PASSWORD = "shop", "s3:cret"
"""Who may come in where a server asks."""


class PrivateServer(ABC):
    """A server of one's own; use as a context manager."""

    name: ClassVar[str]
    host: ClassVar[str] = "127.0.0.1"
    form: ClassVar[str] = ""
    """The address that clients use, with room for the port."""
    ready: ClassVar[str]
    """What its log says when it takes connections."""
    patience_seconds: ClassVar[float] = 30.0
    as_oneself: ClassVar[bool] = False
    """Whether it must run as whoever runs the tests: nobody else may read the checkout."""
    version_option: ClassVar[str] = "--version"
    version_text: ClassVar[str] = r"(\d+\.\d+\.\d+)"

    def __init__(self, program: Path) -> None:
        self._program = program
        self._process = ServerProcess(self.name.lower(), as_oneself=self.as_oneself)
        self.port = 0

    @abstractmethod
    def command(self, port: int) -> Sequence[str | Path]:
        """What to run, on this port and with its data in `self.folder`."""

    @property
    def address(self) -> str:
        """Where clients find it."""
        return self.form.format(port=self.port)

    @property
    def folder(self) -> Path:
        """Where its data is."""
        return self._process.folder

    def start(self) -> Self:
        """Start (again, on the same port and data); returns when it takes connections."""
        for port in [self.port] if self.port else [free_port() for _ in range(_ATTEMPTS)]:
            logged = len(self.log())
            self._process.launch(*self.command(port))
            wait_until(
                lambda logged=logged: self.ready in self.log()[logged:] or not self.running,  # type: ignore[misc]
                timeout=self.patience_seconds,
                message=f"{self.name} taking connections",
            )
            if self.running:
                self.port = port
                return self
            self._process.end(signal.SIGTERM)
        raise RuntimeError(f"{self.name} did not start:\n{self.log()}")

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        self._process.end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def restart(self) -> None:
        """Kill -9, and start again."""
        self.kill()
        self.start()

    def close(self) -> None:
        """End the process and remove its folder."""
        self._process.close()

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process.running

    @property
    def version(self) -> str:
        """The version, such as "7.0.15"."""
        # Some call it a failure to be asked.
        asked: list[str | Path] = [self._program, self.version_option]
        printed = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        found = re.search(self.version_text, printed)
        return found[1] if found else printed.strip()

    def log(self) -> str:
        """Everything the process has logged."""
        return self._process.log()

    def write(self, name: str, text: str) -> Path:
        """A file in its folder that it may read."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o644)
        return path

    def write_papers(self) -> tuple[Path, Path]:
        """The certificate and the key for connections with TLS."""
        known = papers()
        return self.write("certificate.pem", known.certificate), self.write("key.pem", known.key)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
