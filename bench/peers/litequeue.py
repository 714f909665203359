"""litequeue: pop, decode, done."""

from __future__ import annotations

from litequeue import LiteQueue

from bench.peers.adapter import TALLY, Settings, texts
from bench.race import ready, tell


def fill(path: str, count: int, _settings: Settings) -> None:
    """Store numbered jobs; their durability is not measured."""
    queue = LiteQueue(path)
    queue.conn.execute("PRAGMA synchronous = OFF")
    for bodies in texts(count):
        for body in bodies:
            queue.put(body)


def drain(path: str, settings: Settings) -> None:
    """One process of a race."""
    queue = LiteQueue(path)
    queue.conn.execute(f"PRAGMA journal_mode = {settings['journal_mode']}")
    queue.conn.execute(f"PRAGMA synchronous = {settings['synchronous']}")
    ready()
    while (message := queue.pop()) is not None:
        TALLY.run(message.data)
        queue.done(message.message_id)
    tell(TALLY.answer())
