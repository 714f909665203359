"""Processes that get ready, start at the same moment, and answer with what they did.

A process of a race says "ready" when it has imported, connected and prepared all it needs, waits for the word, works,
and prints its answer as JSON. The time runs from the word to the last answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "bench" / ".venv" / "bin" / "python"


class Unusable(RuntimeError):
    """A process did not do what it was started for; says what it printed."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a race."""

    seconds: float
    answers: list[Any]
    processor: float
    """The processor's seconds of all of them together."""


def race(commands: Sequence[Sequence[str]], *, patience: float = 600) -> Finish:
    """Start these processes, let them work at the same time, and wait for all of their answers."""
    runners = [_start(command) for command in commands]
    try:
        for runner in runners:
            if _line(runner) != "ready":
                raise _failed(runner)
        started = time.perf_counter()
        for runner in runners:
            assert runner.stdin is not None
            runner.stdin.write("go\n")
            runner.stdin.flush()
        answers = []
        for runner in runners:
            line = _line(runner)
            if not line:
                raise _failed(runner)
            answers.append(json.loads(line))
        seconds = time.perf_counter() - started
        for runner in runners:
            runner.wait(patience)
        return Finish(seconds, [answer for answer, _ in answers], sum(used for _, used in answers))
    finally:
        for runner in runners:
            if runner.poll() is None:
                runner.kill()
            runner.communicate()


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


def take_part(work: Callable[[], Any]) -> None:
    """In a process of a race: say that it is ready, wait for the word, work, and print the answer."""
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.process_time()
    answer = work()
    print(json.dumps([answer, time.process_time() - began]), flush=True)


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONWARNINGS": "ignore"}


def _line(runner: subprocess.Popen[str]) -> str:
    assert runner.stdout is not None
    return runner.stdout.readline().strip()


def _failed(runner: subprocess.Popen[str]) -> Unusable:
    runner.kill()
    _, printed = runner.communicate()
    return Unusable(f"{' '.join(map(str, list(runner.args)[2:4]))}: {_last(printed)}")  # type: ignore[arg-type] # a list


def _last(printed: str) -> str:
    lines = [line for line in printed.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "it ended without a word"
