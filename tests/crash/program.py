"""The program that the tests start, stop and kill.

    python -m tests.crash.program '{"url": ..., "act": ..., "output": ...}'

It writes what it has done to `output`, a line of JSON at a time, each in the file before the next thing happens:
what a reader finds there after kill -9 is what the program knew when it died.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from onceward import Receipt, StoreUnavailable
from tests import nursery
from tests.crash import points
from tests.crash.points import FUSE, Point
from tests.crash.service import Kind, Orders, Service, pause_once, settings


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is to do."""

    url: str
    act: str
    output: str
    kind: Kind = "sync"
    numbers: dict[str, float] = field(default_factory=dict)
    """Settings: seconds, and the size of a group."""
    point: tuple[int, points.Moment] | None = None
    """Where the fault comes; `None` only counts."""
    fault: points.Fault = "kill"
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Where this job and its siblings keep their files."""
        return str(Path(self.output).parent)

    def say(self, word: str, **more: Any) -> None:
        """Write a line that survives this process."""
        nursery.append(self.output, {"word": word, **more})

    def receipt(self, name: str, receipt: Receipt) -> None:
        """Write down what was promised about a message."""
        self.say("receipt", id=name, **asdict(receipt))

    @property
    def orders(self) -> Orders:
        """What its handlers may do."""
        more = {name: bool(self.arguments.get(name)) for name in ("relay", "blobs")}
        return Orders(victim=True, folder=self.folder, say=self.say, **more)

    def service(self, *, handlers: bool = True) -> Service:
        """The service as this job wants it."""
        return Service(self.url, self.kind, numbers=settings(**self.numbers), orders=self.orders, handlers=handlers)


def perform(job: Job) -> None:
    """Play a scenario, counting requests, with the fault where the job says; once more if the job says so."""
    from tests.crash.retention_scenarios import REPERTOIRE  # noqa: PLC0415 - scenarios know this module

    if job.point:
        FUSE.point, FUSE.fault = Point(*job.point), job.fault
    points.watch(job.url)
    act = REPERTOIRE[job.arguments["scenario"]].act
    with job.service() as service:
        for _ in range(2 if job.arguments.get("again") else 1):
            _unless_told(job, partial(act, service, job.receipt))
    job.say("requests", names=FUSE.requests)


def _unless_told(job: Job, act: Callable[[], object]) -> None:
    """Do it, and go on when it fails in a way in which it may."""
    try:
        act()
    except BaseException as error:
        if not job.point or not set(_kinds_of(error)) <= TOLD:
            raise
        job.say("told", error=repr(error))


TOLD = {"StoreUnavailable", "StoreConflict", "CancelledError", "KeyboardInterrupt"}
"""What a caller may be told about a fault; it then does the same again, or somebody else does."""


def _kinds_of(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [kind for part in error.exceptions for kind in _kinds_of(part)]
    return [type(error).__name__]


def migrate(job: Job) -> None:
    """Create the tables, counting statements, with the fault where the job says; once more if the job says so."""
    if job.point:
        FUSE.point, FUSE.fault = Point(*job.point), job.fault
    points.watch_drivers(job.url)
    with job.service(handlers=False) as service:
        for _ in range(2 if job.arguments.get("again") else 1):
            _unless_told(job, service.inbox.migrate)
    job.say("requests", names=FUSE.requests)


def work(job: Job) -> None:
    """Be a worker until told to stop."""
    concurrency = job.arguments.get("concurrency", 1)
    with job.service() as service:
        if names := job.arguments.get("pause at"):
            FUSE.names, FUSE.deed = names, lambda: pause_once(job.orders, service.inbox)
            points.watch(job.url)
        job.say("started")
        if job.arguments.get("own loop"):
            asyncio.run(_work_on_own_loop(service, concurrency))
        else:
            service.inbox.run(concurrency=concurrency, process=job.arguments.get("process", ""))
    job.say("stopped")


async def _work_on_own_loop(service: Service, concurrency: int) -> None:
    """As a program that has an event loop and handles SIGTERM itself."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, service.inbox.stop)
    await service.inbox.arun(concurrency=concurrency)
    await service.inbox.aclose()


def deliver(job: Job) -> None:
    """Receive or process messages, all of them one after another, once the gate is open."""
    with job.service() as service:
        if gate := job.arguments.get("gate"):
            service.inbox.admin.stats()  # connected before the race begins
            job.say("ready")
            _pass(gate)
        deliver_one = service.process if job.arguments["mode"] == "process" else service.receive
        for arguments in job.arguments["messages"]:
            job.receipt(arguments["id"], _patiently(partial(deliver_one, **arguments)))
    job.say("stopped")


def _pass(gate: str) -> None:
    """Wait until the test opens the gate: it holds the file's lock alone until everybody waits for it."""
    with Path(gate).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def _patiently(deliver_one: Callable[[], Receipt]) -> Receipt:
    """As a broker does: deliver again while the store is away."""
    while True:
        try:
            return deliver_one()
        except StoreUnavailable:
            continue


ACTS: dict[str, Callable[[Job], None]] = {
    "perform": perform,
    "migrate": migrate,
    "work": work,
    "deliver": deliver,
}


def main(given: dict[str, Any]) -> None:
    """Do the job."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a death on purpose leaves no core file
    job = Job(**{**given, "point": tuple(given["point"]) if given.get("point") else None})
    ACTS[job.act](job)


def play(child: nursery.Job) -> None:
    """The same, in a child of the nursery."""
    main(child.arguments)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
