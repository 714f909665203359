"""Processes that get ready, start at the same moment, and answer with what they did; and the one clock for all of them.

A process of a race says "ready" when it has imported, connected and prepared all it needs, waits for the word, works,
and prints its answer as JSON. The clock runs from the word to the moment at which the observer finds nothing left, the same
way for every contender; where there is no backlog to look at, to the last answer. What the processors did is read at the
same two moments, so that what a process does afterwards, such as to deregister, counts for neither.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "bench" / ".venv" / "bin" / "python"
_TICKS = os.sysconf("SC_CLK_TCK")


class Unusable(RuntimeError):
    """A process did not do what it was started for; says what it printed."""


class Observer(Protocol):
    """Sees whether all is done (`bench/observers.py`)."""

    @property
    def has_backlog(self) -> bool:
        """Whether there is a backlog to look at; else the last answer is the end."""

    def finds_nothing_left(self) -> bool:
        """Whether the backlog is empty."""

    def server(self) -> float:
        """The processor's seconds of the server so far, without those of the looks."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a race."""

    started: float
    ended: float
    answers: list[Any]
    clients: float
    """The processor's seconds of all contenders together."""
    server: float
    """Those of the server."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.started


LOOK_SECONDS = 0.02
"""How often the observer looks."""


def race(commands: Sequence[Sequence[str]], observer: Observer, *, patience: float = 600) -> Finish:
    """Start these processes, let them work at the same time, and wait for all of their answers."""
    runners = [Runner(command) for command in commands]
    try:
        for runner in runners:
            if _line(runner) != "ready":
                raise _failed(runner)
        clients, server = _clients(runners), observer.server()
        started = time.perf_counter()
        _say(runners, "go")
        if observer.has_backlog:
            _watch(runners, observer, started + patience)
            answers = []
        else:
            answers = [_answer(runner) for runner in runners]
        ended = time.perf_counter()
        clients, server = _clients(runners) - clients, observer.server() - server
        _say(runners, "end")
        answers = answers or [_answer(runner) for runner in runners]
        for runner in runners:
            runner.wait(patience)
        return Finish(started, ended, answers, clients, server)
    finally:
        for runner in runners:
            runner.end()


def processor(process: int, *, but: int = 0) -> float:
    """The processor's seconds of a process and of its children, also of those that have ended, except of one.

    What a child has used becomes its parent's when it has ended and the parent has noticed. Where that happened between
    two of these looks it would be missed, or counted twice: then all of them are repeated.
    """
    while True:
        of_the_ended = _ticks(process)[2:]
        children = {int(child) for tasks in _read(process, "task/*/children") for child in tasks.split()}
        own = _ticks(process)
        living = sum(sum(_ticks(child)[:2]) for child in children - {but})
        if of_the_ended == own[2:] == _ticks(process)[2:]:
            return (sum(own) + living) / _TICKS


def _ticks(process: int) -> list[int]:
    """Of the process itself, in its own code and in the kernel's; and the same of its children that have ended."""
    (stat,) = _read(process, "stat") or [")" + " 0" * 15]
    return [int(field) for field in stat.rpartition(")")[2].split()[11:15]]


def _read(process: int, files: str) -> list[str]:
    """What the kernel says; nothing of what has just ended."""
    found = []
    for path in Path(f"/proc/{process}").glob(files):
        with suppress(OSError):
            found.append(path.read_text(encoding="ascii", errors="replace"))
    return found


def run(command: Sequence[str], *, patience: float = 600) -> str:
    """Run a process to its end; answers what it printed."""
    done = subprocess.run(
        command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=patience, check=False
    )
    if done.returncode:
        raise Unusable(f"{' '.join(command[:4])}: {_last(done.stderr or done.stdout)}")
    return done.stdout


def ours(module: str, *arguments: object) -> list[str]:
    """The command of a module of this package in the environment of onceward."""
    return [sys.executable, "-m", f"bench.{module}", *map(str, arguments)]


def theirs(adapter: str, *arguments: object) -> list[str]:
    """The command of a peer's adapter, in the environment of the peers."""
    return [str(PEERS), "-m", "bench.peers", adapter, *map(str, arguments)]


# In a process of a race:


def take_part(work: Callable[[], Any]) -> None:
    """All of it, for work that ends by itself."""
    ready()
    tell(work())


def ready() -> None:
    """Say so, and wait for the word."""
    print("ready", flush=True)
    sys.stdin.readline()


def wait_for_end() -> None:
    """Until the observer has found nothing left: for workers that go on for ever."""
    sys.stdin.readline()


def tell(answer: Any) -> None:
    """Say what was done."""
    print(json.dumps(answer), flush=True)


# In the one that starts them:


def _watch(runners: list[Runner], observer: Observer, deadline: float) -> None:
    """Until nothing is left; fails where that cannot come any more."""
    while not observer.finds_nothing_left():
        codes = [runner.poll() for runner in runners]
        for runner, code in zip(runners, codes, strict=True):
            if code:
                raise _failed(runner)
        given_up = None not in codes and not observer.finds_nothing_left()
        if given_up or time.perf_counter() > deadline:
            raise Unusable(f"{_name(runners[0])}: something was left when it {'ended' if given_up else 'had to end'}")
        time.sleep(LOOK_SECONDS)


def _clients(runners: list[Runner]) -> float:
    return sum(processor(runner.pid) for runner in runners)


def _say(runners: list[Runner], word: str) -> None:
    for runner in runners:
        assert runner.stdin is not None
        try:
            runner.stdin.write(f"{word}\n")
            runner.stdin.flush()
        except BrokenPipeError:  # it has ended by itself
            continue


def _answer(runner: Runner) -> Any:
    line = _line(runner)
    if not line:
        raise _failed(runner)
    return json.loads(line)


class Runner(subprocess.Popen[str]):
    """A process of a race. What it prints beside its answers goes to a file: a pipe that is not read would stop it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - see `end`
        super().__init__(
            command,
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def printed(self) -> str:
        """All of it, when it has ended."""
        self._errors.seek(0)
        return self._errors.read()

    def end(self) -> None:
        """Let nothing of it stay."""
        if self.poll() is None:
            self.kill()
        self.communicate()
        self._errors.close()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONWARNINGS": "ignore"}


def _line(runner: Runner) -> str:
    assert runner.stdout is not None
    return runner.stdout.readline().strip()


def _failed(runner: Runner) -> Unusable:
    runner.kill()
    runner.communicate()
    return Unusable(f"{_name(runner)}: {_last(runner.printed())}")


def _name(runner: Runner) -> str:
    return " ".join(map(str, list(runner.args)[2:4]))  # type: ignore[arg-type] # a list


def _last(printed: str) -> str:
    lines = [line for line in printed.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "it ended without a word"
