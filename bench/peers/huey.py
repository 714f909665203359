"""Huey on SQLite with fsync: one consumer, which takes a task and executes it."""

from __future__ import annotations

from huey import SqliteHuey

from bench.peers.adapter import TALLY, Settings, texts
from bench.race import ready, tell


def _huey(path: str, settings: Settings) -> tuple[SqliteHuey, object]:
    queue = SqliteHuey("bench", filename=path, results=False, **settings)

    def job(body: str) -> None:
        TALLY.run(body)

    return queue, queue.task(name="job")(job)


def fill(path: str, count: int, settings: Settings) -> None:
    """Store numbered jobs; their durability is not measured."""
    _, job = _huey(path, {**settings, "fsync": False})
    for bodies in texts(count):
        for body in bodies:
            job(body)  # type: ignore[operator] # a task of huey's


def drain(path: str, settings: Settings) -> None:
    """One process of a race."""
    queue, _ = _huey(path, settings)
    ready()
    while (task := queue.dequeue()) is not None:
        queue.execute(task)
    tell(TALLY.answer())
