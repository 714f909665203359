"""Claims: who owns a row now, and what a worker does when it finds that it no longer does.

Invariant: a claim is matched by exactly one worker, or, if its worker is gone and nobody cleared it, by none.
"""

from __future__ import annotations

from tests.model.world import (
    ALIVE,
    IDLE,
    RUNNING,
    STRAY_CLAIM,
    UNCLAIMED,
    ZOMBIE,
    Rows,
    State,
    Step,
    Worker,
    bits,
    moved,
    replaced,
    with_worker,
)


def claimed(rows: Rows, w: int) -> int:
    """The messages that carry a claim of this worker, as a mask."""
    mask = 0
    for m, row in enumerate(rows):
        if row.claim == w + 1:
            mask |= 1 << m
    return mask


def without_claims(rows: Rows, messages: int) -> Rows:
    """The rows with the claims of these messages off."""
    for m in bits(messages):
        rows = replaced(rows, m, moved(rows[m], rows[m].state, UNCLAIMED))
    return rows


def strayed(rows: Rows, w: int) -> Rows:
    """A new worker in this place: claims of the old one that are still there belong to nobody."""
    for m in bits(claimed(rows, w)):
        rows = replaced(rows, m, moved(rows[m], rows[m].state, STRAY_CLAIM))
    return rows


def rejected(state: State, w: int, event: str) -> Step:
    """Roll back; go on with what still has my claim, or, with my worker row gone, register again."""
    worker = state.workers[w]
    if worker.life == ZOMBIE:
        return Step(event, w, worker.batch, with_worker(state, w, Worker(), strayed(state.rows, w)))
    mine = claimed(state.rows, w)
    again = Worker(ALIVE, RUNNING if mine else IDLE, mine)
    return Step(event, w, worker.batch, with_worker(state, w, again))
