"""litequeue, with synchronous FULL: pop, decode, done."""

from __future__ import annotations

from litequeue import LiteQueue

from bench.peers.adapter import TALLY, Answer, text
from bench.race import take_part


def _queue(path: str) -> LiteQueue:
    queue = LiteQueue(path)
    queue.conn.execute("PRAGMA synchronous = FULL")
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
        while (message := queue.pop()) is not None:
            TALLY.run(message.data)
            queue.done(message.message_id)
        return TALLY.answer()

    take_part(work)
