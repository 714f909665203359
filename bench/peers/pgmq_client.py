"""pgmq through the client that its Python package has."""

from __future__ import annotations

from pgmq import PGMQueue

from bench.peers.adapter import TALLY, Settings
from bench.peers.pgmq import HIDDEN, QUEUE, fill
from bench.race import ready, tell

__all__ = ["drain", "fill"]


def drain(url: str, settings: Settings) -> None:
    """One process of a race."""
    queue = PGMQueue(conn_string=url, init_extension=False)
    ready()
    while found := queue.read_batch(QUEUE, vt=HIDDEN, batch_size=settings["batch"]):
        for message in found:
            TALLY.add(message.message["number"])
        queue.delete_batch(QUEUE, [message.msg_id for message in found])
    tell(TALLY.answer())
