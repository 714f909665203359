"""Worker processes of the scenarios: `python -m bench.scenarios.workers URL LANES HOLD`."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from bench.ground import one
from bench.race import ROOT, Unusable, ours
from bench.scenarios.handlers import inbox_at

HOLDS: dict[str, Callable[[], object]] = {
    "moment": lambda: time.sleep(0.01),
    "for ever": threading.Event().wait,
}
STOP_SECONDS = 10
"""A worker that takes longer to stop is killed: what was to be measured is over."""
_LOOK_SECONDS = 0.1
_IDLE_SECONDS = 0.3


@asynccontextmanager
async def working(url: str, *, processes: int = 1, lanes: int = 1) -> AsyncIterator[None]:
    """So many worker processes, that wait for work."""
    async with AsyncExitStack() as stack:
        for _ in range(processes):
            await stack.enter_async_context(started(url, lanes, "moment"))
        await registered(url, processes)
        yield


@asynccontextmanager
async def started(url: str, lanes: int, hold: str) -> AsyncIterator[Process]:
    """A worker process, that may not be ready yet; it is stopped at the end, if it is still alive."""
    command = ours("scenarios.workers", url, lanes, hold)
    # Its log has a line for each failure that a scenario makes; what goes wrong otherwise shows in the effects.
    worker = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stderr=DEVNULL)
    assert worker.stdin is not None
    try:
        yield worker
    finally:
        worker.stdin.close()
        try:
            await asyncio.wait_for(worker.wait(), STOP_SECONDS)
        except TimeoutError:
            worker.kill()
            await worker.wait()


async def registered(url: str, processes: int) -> None:
    """Wait until so many workers have a lease, and a moment more: then they wait for work."""
    await until(lambda: one(url, "SELECT count(*) FROM onceward_worker") >= processes, "the workers")
    await asyncio.sleep(_IDLE_SECONDS)


async def until(condition: Callable[[], bool], what: str, patience: float = 60) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise Unusable(f"{what}: not within {patience:g} seconds")
        await asyncio.sleep(_LOOK_SECONDS)


def main(url: str, lanes: str, hold: str) -> None:
    """Work until the input ends."""
    inbox = inbox_at(url, HOLDS[hold])
    thread = threading.Thread(target=inbox.run, kwargs={"concurrency": int(lanes)}, daemon=True)
    thread.start()
    sys.stdin.read()
    inbox.stop()
    thread.join(STOP_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
