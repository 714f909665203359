"""SIGTERM while a handler runs: what it does is finished or rolled back, and nothing is left behind.

These are programs of their own, not forks of the zygote: how the interpreter ends is part of the question.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.crash.program import Job
from tests.crash.service import KINDS, Kind, Service, message
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.crash.ground import Ground

CHECKOUT = Path(__file__).parents[2]
SIGNALS = [signal.SIGTERM, signal.SIGINT]
LOOPS = ["its own loop", "the program's loop"]


@contextmanager
def program(ground: Ground, kind: Kind, *, loop: str = LOOPS[0], **numbers: float) -> Iterator[Program]:
    """A worker as a program of its own; killed at the end of the block if it still runs."""
    job = Job(
        url=ground.victims_url,
        act="work",
        output=ground.new_output(),
        kind=kind,
        numbers=numbers,
        arguments={"own loop": loop == LOOPS[1], "concurrency": 2},
    )
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash.program", json.dumps(asdict(job))],
        cwd=CHECKOUT,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Program(process, job)
        finally:
            process.kill()


class Program:
    """A running program: what it has said, and how it ends."""

    def __init__(self, process: subprocess.Popen[str], job: Job) -> None:
        self._process, self._job = process, job

    def hears(self, word: str) -> bool:
        path = Path(self._job.output)
        return path.exists() and any(json.loads(line)["word"] == word for line in path.read_text().splitlines())

    def await_word(self, word: str) -> None:
        wait_until(lambda: self.hears(word) or self._process.poll() is not None, message=f"it to say {word!r}")
        assert self.hears(word), self._errors()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Wait for its end; it must have left by itself."""
        code = self._process.wait(timeout=25)
        assert code == 0, self._errors()
        assert self.hears("stopped"), self._errors()
        return code

    def _errors(self) -> str:
        self._process.kill()
        assert self._process.stderr is not None
        return self._process.stderr.read()


def held(ground: Ground, moment: str) -> None:
    """Receive a message whose handler waits, before or after its effect, for the test to let it go on."""
    with Service(ground.url) as service:
        service.inbox.receive(**message("m1", do={"hold": moment}))


def let_go(ground: Ground) -> None:
    (ground.folder / "release").touch()


def check_finished(ground: Ground) -> None:
    ground.check_settled()
    assert ground.statuses() == {"default/m1": "done"}


def check_given_back(ground: Ground) -> None:
    """Rolled back, uncharged, without a claim; whoever is next finishes it."""
    ground.await_silence()
    ground.check_settled()
    assert ground.statuses() == {"default/m1": "ready"}
    assert ground.rows("SELECT attempts, crashes, isolation FROM onceward_queue") == [(0, 0, 0)]
    with Service(ground.url) as service:
        assert service.drain() == 1
    check_finished(ground)
    assert ground.charges("crash") == ground.charges("error") == {}


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("kind", KINDS)
def test_a_running_handler_is_finished(kind: Kind, number: signal.Signals, ground: Ground) -> None:
    """R12: a graceful stop waits for what is running, and then leaves nothing behind: no claim, no worker."""
    held(ground, "after")
    with program(ground, kind) as worker:
        worker.await_word("holding")
        worker.stop(number)
        let_go(ground)
        worker.end()
    check_finished(ground)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("kind", "loop"), [("sync", LOOPS[0]), ("async", LOOPS[0]), ("async", LOOPS[1])])
def test_a_handler_that_does_not_end_in_time_is_given_back(kind: Kind, loop: str, moment: str, ground: Ground) -> None:
    """R12, HZ-36: after `stop_timeout` the program ends all the same; the handler's transaction rolls back."""
    held(ground, moment)
    with program(ground, kind, loop=loop, stop_timeout=1) as worker:
        worker.await_word("holding")
        worker.stop()
        worker.end()
    check_given_back(ground)


def test_an_idle_worker_stops_at_once(ground: Ground) -> None:
    """R12: nothing runs, nothing is left."""
    with program(ground, "sync") as worker:
        registered = "SELECT count(*) FROM onceward_worker"
        wait_until(lambda: ground.number(registered), message="the worker to register")
        worker.stop()
        worker.end()
    ground.check_settled()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_in_the_middle_of_a_backlog(kind: Kind, ground: Ground) -> None:
    """R12: what was claimed and not begun is given back, uncharged; nothing is half done."""
    backlog: list[Any] = [message(f"m{n}") for n in range(200)]
    backlog[30] = message("m30", do={"hold": "after"})
    with Service(ground.url) as service:
        service.inbox.receive_many(backlog)
    with program(ground, kind) as worker:
        worker.await_word("holding")
        worker.stop()
        let_go(ground)
        worker.end()
    ground.check_settled()
    with Service(ground.url) as service:
        service.drain()
    ground.check_settled()
    assert set(ground.statuses().values()) == {"done"}
    assert ground.charges("crash") == ground.charges("error") == {}
