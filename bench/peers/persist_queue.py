"""persist-queue on SQLite: groups of items, each kept until `task_done` commits that they are finished."""

from __future__ import annotations

from pathlib import Path

import persistqueue

from bench.peers.adapter import TALLY, Settings, texts
from bench.race import ready, tell


def _queue(path: str, settings: Settings, synchronous: str) -> persistqueue.SQLiteQueue:
    """Its file is `data.db` in the folder that it is given."""
    queue = persistqueue.SQLiteQueue(str(Path(path).parent), auto_commit=settings["auto_commit"], multithreading=True)
    for connection in (queue._putter, queue._getter):  # noqa: SLF001 - it has no setting for this
        connection.execute(f"PRAGMA journal_mode = {settings['journal_mode']}")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
    return queue


def fill(path: str, count: int, settings: Settings) -> None:
    """Store numbered jobs; their durability is not measured."""
    queue = _queue(path, settings, "OFF")
    for bodies in texts(count):
        for body in bodies:
            queue.put(body)
        queue.task_done()


def drain(path: str, settings: Settings) -> None:
    """One process of a race."""
    queue = _queue(path, settings, settings["synchronous"])
    ready()
    taken = 0
    try:
        while True:
            TALLY.run(queue.get(block=False))
            taken += 1
            if taken % settings["group"] == 0:
                queue.task_done()
    except persistqueue.Empty:
        queue.task_done()
    tell(TALLY.answer())
