"""pgmq through the client that its Python package has."""

from __future__ import annotations

from pgmq import PGMQueue

from bench.peers.adapter import TALLY, Answer
from bench.peers.pgmq import BATCH, HIDDEN, QUEUE, fill
from bench.race import take_part

__all__ = ["drain", "fill"]


def drain(url: str, _count: int) -> None:
    """One process of a race."""
    queue = PGMQueue(conn_string=url, init_extension=False)

    def work() -> Answer:
        while found := queue.read_batch(QUEUE, vt=HIDDEN, batch_size=BATCH):
            for message in found:
                TALLY.add(message.message["number"])
            queue.delete_batch(QUEUE, [message.msg_id for message in found])
        return TALLY.answer()

    take_part(work)
