"""A process that has imported everything and forks a child for each job, so that a crash costs milliseconds.

    python -m tests.crash.zygote

One request per line on standard input, one answer per line on standard output. Invariants: the zygote has one
thread and no connection, so forking it is safe; it is the parent of its children, so a process id stays theirs
until somebody has asked for their end; no child outlives it (PR_SET_PDEATHSIG), and it does not outlive the
test process, whose end closes its standard input.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, Self

from tests.crash.program import Job, main
from tests.waiting import wait_until

_CHECKOUT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1
_NEEDED = (
    "aiosqlite",
    "onceward.stores.postgres.store",
    "onceward.stores.sqlite.store",
    "tests.crash.scenarios",
)
"""What a child would else import itself, at ten times the cost of all it does."""


class Child:
    """A process that does a job: its id, what it has said so far, and how it ended."""

    def __init__(self, zygote: Zygote, pid: int, job: Job) -> None:
        self._zygote = zygote
        self.pid = pid
        self.job = job
        self._ended: int | None = None

    def said(self, word: str = "") -> list[dict[str, Any]]:
        """The lines it has written, all or those that begin a given subject."""
        path = Path(self.job.output)
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for text in lines if word in (line := json.loads(text)) or not word]

    def errors(self) -> str:
        """What it wrote to standard error."""
        path = Path(f"{self.job.output}.err")
        return path.read_text(errors="replace") if path.exists() else ""

    def hear(self, word: str) -> dict[str, Any]:
        """Wait until it has said something."""
        found = wait_until(
            lambda: self.said(word) or self.gone, message=f"process {self.pid} to say {word!r}: {self.job}"
        )
        if isinstance(found, list):
            return found[0]
        said = self.said(word)
        assert said, f"process {self.pid} ended before it said {word!r}:\n{self.errors()}"
        return said[0]

    @property
    def state(self) -> str:
        """The kernel's letter: R, S, T for stopped, Z for dead and not yet asked about; "" when gone."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return ""

    @property
    def gone(self) -> bool:
        """Whether it is dead."""
        return self._ended is not None or self.state in ("Z", "X", "")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; as nobody has asked for its end yet, the id is still its own."""
        assert self._ended is None
        os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for its end: its exit code, or the negative number of the signal that killed it."""
        if self._ended is None:
            wait_until(lambda: self.gone, timeout=60, message=f"end of process {self.pid}: {self.job}")
            status = self._zygote.ask(wait=self.pid)["status"]
            self._ended = os.waitstatus_to_exitcode(status)
        return self._ended

    def kill(self) -> int:
        """SIGKILL, and wait for the end."""
        if self._ended is None:
            self.signal(signal.SIGKILL)
        return self.end()


class Zygote:
    """The test's side: start children, hear of their end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.zygote"],
            cwd=_CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._living: set[Child] = set()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def start(self, job: Job) -> Child:
        """Start a child in a session and process group of its own."""
        child = Child(self, self.ask(job=asdict(job))["pid"], job)
        self._living.add(child)
        return child

    def run(self, job: Job) -> Child:
        """Start a child and wait for its end."""
        child = self.start(job)
        child.end()
        return child

    def clear(self) -> None:
        """End what a test has left running."""
        for child in self._living:
            child.kill()
        self._living = set()

    def close(self) -> None:
        """End the zygote and with it every child."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve() -> None:
    """Answer requests until nobody asks any more."""
    for module in _NEEDED:
        importlib.import_module(module)
    gc.freeze()  # so that a child's garbage collection does not copy what it shares with its parent
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            _answer(status=status)
            continue
        job = Job(**request["job"])
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _be_born(job, parent)
        _answer(pid=pid)


def _answer(**answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _be_born(job: Job, parent: int) -> NoReturn:
    """Do the job in this new process, and end it."""
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The pipes of the zygote are not the child's: it would answer in its place and keep them open.
        nothing = os.open(os.devnull, os.O_RDWR)
        errors = os.open(f"{job.output}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for descriptor, target in ((nothing, 0), (nothing, 1), (errors, 2)):
            os.dup2(descriptor, target)
        if os.getppid() == parent:
            code = main(job)
    except BaseException:  # noqa: BLE001 - whatever it was is the child's end, and is written down
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # Taking the interpreter apart would cost ten times what the job did. The job has closed what it opened.
        os._exit(code)


if __name__ == "__main__":
    serve()
