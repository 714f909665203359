"""persist-queue on SQLite, with acknowledgements; its journal is WAL, made durable for this."""

from __future__ import annotations

import persistqueue

from bench.peers.adapter import TALLY, Answer, text
from bench.race import take_part


def _queue(path: str) -> persistqueue.SQLiteAckQueue:
    queue = persistqueue.SQLiteAckQueue(path, auto_commit=True, multithreading=True)
    for name in ("_conn", "_putter", "_getter"):
        connection = getattr(queue, name, None)
        if connection is not None:
            connection.execute("PRAGMA synchronous = FULL")
    return queue


def fill(path: str, count: int) -> None:
    """Store numbered jobs."""
    queue = _queue(path)
    for number in range(count):
        queue.put(text(number))


def drain(path: str, _count: int) -> None:
    """One process of a race."""
    queue = _queue(path)

    def work() -> Answer:
        while True:
            try:
                body = queue.get(block=False)
            except persistqueue.Empty:
                return TALLY.answer()
            TALLY.run(body)
            queue.ack(body)

    take_part(work)
