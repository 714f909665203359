"""Huey on SQLite with fsync: one consumer."""

from __future__ import annotations

from huey import SqliteHuey

from bench.peers.adapter import TALLY, Answer, text
from bench.race import take_part


def _huey(path: str) -> tuple[SqliteHuey, object]:
    queue = SqliteHuey("bench", filename=path, fsync=True, results=False)

    def job(body: str) -> None:
        TALLY.run(body)

    return queue, queue.task(name="job")(job)


def fill(path: str, count: int) -> None:
    """Store numbered jobs."""
    _, job = _huey(path)
    for number in range(count):
        job(text(number))  # type: ignore[operator] # a task of huey's


def drain(path: str, _count: int) -> None:
    """One process of a race."""
    queue, _ = _huey(path)

    def work() -> Answer:
        while (task := queue.dequeue()) is not None:
            queue.execute(task)
        return TALLY.answer()

    take_part(work)
