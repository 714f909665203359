"""Child processes for tests that kill them: a nursery has imported everything and forks a child for each job.

    python -m tests.nursery [module of a program that not everybody needs ...]

Invariants: the nursery has one thread and no connection, so forking it is safe; a child's id stays its own until its
end was asked for; what a child has said is in its file before the next thing happens; no child outlives the nursery,
which does not outlive the test process.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

from tests import processes
from tests.waiting import wait_until

CHECKOUT = Path(__file__).parents[1]
IMPORTED = (
    *("aiosqlite", "asyncmy"),
    *("onceward.stores.mysql.store", "onceward.stores.postgres.store", "onceward.stores.sqlite.store"),
)
PROGRAMS = (
    "tests.crash.program",
    "tests.crash.retention_scenarios",
    "tests.order.program",
    "tests.outbox.program",
)


@dataclass(frozen=True, slots=True)
class Job:
    """What a child does: a function `module:name` that gets this job."""

    act: str
    output: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def say(self, word: str, **more: Any) -> None:
        """Write a line that survives this process."""
        append(self.output, {"word": word, **more})


def append(path: str, line: dict[str, Any]) -> None:
    """Add a line of JSON to a file that others write to as well."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def lines(path: str | Path) -> list[dict[str, Any]]:
    """What `append` has written; nothing where there is no file yet."""
    file = Path(path)
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class Child:
    """A process that does a job."""

    def __init__(self, nursery: Nursery, pid: int, job: Job) -> None:
        self._nursery, self._status = nursery, None
        self.pid, self.job = pid, job

    _status: int | None

    def said(self, word: str) -> list[dict[str, Any]]:
        """The lines about a subject that it has written so far."""
        return [line for line in lines(self.job.output) if line["word"] == word]

    def hear(self, word: str) -> dict[str, Any]:
        """Wait until it has said something about a subject."""
        wait_until(lambda: self.said(word) or self.gone, message=f"{self.job.act} to say {word!r}")
        said = self.said(word)
        assert said, f"{self.job.act} ended before it said {word!r}:\n{self.errors}"
        return said[0]

    @property
    def errors(self) -> str:
        """What it wrote to standard error."""
        path = Path(f"{self.job.output}.err")
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def state(self) -> str:
        """The kernel's letter: R, S, T for stopped, Z for dead and not yet asked about; "" when gone."""
        return processes.state(self.pid)

    @property
    def gone(self) -> bool:
        """Whether it is dead."""
        return self._status is not None or self.state in ("Z", "X", "")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; as nobody has asked for its end yet, the id is still its own."""
        assert self._status is None, "it is gone"
        os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for its end: its exit code, or the negative number of the signal that killed it."""
        if self._status is None:
            wait_until(lambda: self.gone, timeout=60, message=f"the end of {self.job.act}")
            self._status = os.waitstatus_to_exitcode(self._nursery.ask(wait=self.pid)["status"])
        return self._status

    def kill(self) -> int:
        """SIGKILL, and wait for the end."""
        if self._status is None:
            self.signal(signal.SIGKILL)
        return self.end()

    def stop(self) -> None:
        """Ask it to stop, and see it end well."""
        self.signal(signal.SIGTERM)
        assert self.end() == 0, f"{self.job.act} was asked to stop and ended with {self.end()}:\n{self.errors}"


class Nursery:
    """The test's side: start children and hear of their end."""

    def __init__(self, *programs: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.nursery", *programs],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._children: list[Child] = []
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def start(self, act: str, files: Path, /, **arguments: Any) -> Child:
        """Start a child; its files are in a folder of the test."""
        return self.begin(Job(act, str(files / f"child-{next(self._numbers)}"), arguments))

    def begin(self, job: Job) -> Child:
        """Start a child in a session and process group of its own."""
        child = Child(self, self.ask(job=asdict(job))["pid"], job)
        self._children.append(child)
        return child

    def clear(self) -> None:
        """End what a test has left running."""
        for child in self._children:
            child.kill()
        self._children = []

    def close(self) -> None:
        """End the nursery and with it every child."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve() -> None:
    for module in (*IMPORTED, *PROGRAMS, *sys.argv[1:]):
        importlib.import_module(module)
    gc.freeze()  # so that a child's garbage collection does not copy what it shares
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        if "wait" in request:
            _answer(status=os.waitpid(request["wait"], 0)[1])
            continue
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            _be_born(Job(**request["job"]), parent)
        _answer(pid=pid)


def _answer(**answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _be_born(job: Job, parent: int) -> NoReturn:
    """Do the job in this new process, and end it."""
    code = 1
    try:
        os.setsid()
        processes.die_with(parent)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # The nursery's pipes are not the child's: it would keep them open and answer in its place.
        nothing = os.open(os.devnull, os.O_RDWR)
        errors = os.open(f"{job.output}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for descriptor, target in ((nothing, 0), (nothing, 1), (errors, 2)):
            os.dup2(descriptor, target)
        if os.getppid() == parent:
            module, _, name = job.act.partition(":")
            getattr(sys.modules[module], name)(job)
            code = 0
    except BaseException:  # noqa: BLE001 - whatever it was is the child's end, and is written down
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
