"""The processes of a contender. Each worker is the leader of a group of its own, which is killed and stopped as one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from faults.lineup import Contender
from faults.place import Place
from faults.plan import WORKERS

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "faults" / ".venv" / "bin" / "python"
RESTART_SECONDS = 0.2
"""How long a supervisor waits before it starts a worker again."""
PATIENCE_SECONDS = 60


class Unusable(RuntimeError):
    """A process did not do what it was started for; says what it printed."""


class Fleet:
    """Workers and the sender; a thread starts again a worker that has ended, as a supervisor would."""

    def __init__(self, contender: Contender, place: Place) -> None:
        self._contender = contender
        self._python = str(PEERS) if contender.packages else sys.executable
        self._command = [self._python, "-m", "faults.program", contender.module]
        self._environment = place.environment()
        self._output: IO[bytes] = (Path(place.folder) / "output").open("ab")
        self._over = threading.Event()
        self._workers: list[subprocess.Popen[bytes]] = []
        self._sender: subprocess.Popen[bytes] | None = None
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self.deaths = 0

    def prepare(self) -> None:
        """Make tables and queues."""
        self._run("prepare")

    def start(self) -> None:
        """Start the workers, and the sender."""
        self._workers = [self._launch("work", str(number)) for number in range(WORKERS)]
        self._sender = self._launch("deliver")
        self._keeper.start()

    @property
    def delivered(self) -> bool:
        """Whether the sender has sent everything."""
        if self._sender is None or self._sender.poll() is None:
            return False
        if self._sender.returncode:
            raise Unusable(f"the sender ended with {self._sender.returncode}")
        return True

    def shown(self, *, held: bool) -> dict[str, list[str]]:
        """What the tool itself shows as failed, and as not finished."""
        answer: dict[str, list[str]] = json.loads(self._run("show", *(["held"] if held else [])).splitlines()[-1])
        return answer

    def versions(self) -> dict[str, str]:
        """The versions of the packages that take part."""
        script = "import sys; from importlib.metadata import version; [print(version(name)) for name in sys.argv[1:]]"
        packages = self._contender.packages
        printed = subprocess.check_output([self._python, "-c", script, *packages], text=True)
        return dict(zip(packages, printed.split(), strict=True))

    def signal(self, worker: int, number: signal.Signals) -> None:
        """Send a signal to every process of a worker."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._workers[worker].pid, number)

    def end(self) -> None:
        """End all of them."""
        self._over.set()
        if self._keeper.is_alive():
            self._keeper.join()
        for worker in range(len(self._workers)):
            self.signal(worker, signal.SIGKILL)
        for process in self._processes():
            process.kill()
            process.wait()
        self._output.close()

    def _processes(self) -> Iterable[subprocess.Popen[bytes]]:
        return [*self._workers, *([self._sender] if self._sender else [])]

    def _launch(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._command, *arguments],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )

    def _keep(self) -> None:
        while not self._over.wait(RESTART_SECONDS):
            for number, worker in enumerate(self._workers):
                if worker.poll() is not None:
                    # What it leaves behind would work on beside the next one.
                    self.signal(number, signal.SIGKILL)
                    self.deaths += 1
                    self._workers[number] = self._launch("work", str(number))

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        if done.returncode:
            raise Unusable(f"{arguments[0]}: {done.stderr.strip().splitlines()[-1:] or done.returncode}\n{done.stderr}")
        return done.stdout
