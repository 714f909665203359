"""Settle and release: what a worker does when a handler raised, and when it stops.

Invariant: a message that is put aside or given back takes its successors of the key with it, so that none of
them runs before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.finishing import after_batch
from tests.model.notes import noted, rejected, without_notes
from tests.model.world import (
    ALIVE,
    DEAD,
    NO_NOTE,
    RETRY,
    Row,
    State,
    Step,
    Worker,
    World,
    bits,
    moved,
    poorer,
    replaced,
    unfinished,
    with_worker,
)


def settle_steps(world: World, state: State, w: int) -> Iterator[Step]:
    """How an attempt can end other than by finishing."""
    worker = state.workers[w]
    mine = noted(state.rows, w)
    if worker.life == ALIVE:
        idle = Worker(abandoned=worker.abandoned)
        released = with_worker(state, w, idle, without_notes(state.rows, mine))
        yield Step("release", w, mine, released, progress=False)
    if worker.batch & (worker.batch - 1):
        if state.budget.retries:
            yield from (_put_aside(world, state, w, m) for m in bits(worker.batch))
        return
    m = bits(worker.batch)[0]
    if world.guards.settle_matches_note and not mine >> m & 1:
        yield rejected(state, w, "zombie settle rejected")
    elif unfinished(state.rows[m]) and not world.locks(state)[0] >> m & 1:
        yield from _settle(world, state, w, m)


def _settle(world: World, state: State, w: int, m: int) -> Iterator[Step]:
    """The handler of a message that ran alone raised."""
    row = state.rows[m]
    worker = state.workers[w]
    again = moved(row, RETRY, NO_NOTE)
    if state.budget.retries:
        after = _given_back(world, poorer(state, "retries"), w, m, again)
        yield Step("settle: again", w, 1 << m, after, progress=False)
    if state.budget.rejects:
        dead = row._replace(state=DEAD, note=NO_NOTE, crashes=0)  # a redrive starts with a new budget
        after = _given_back(world, poorer(state, "rejects"), w, m, dead)
        yield Step("settle: dead", w, 1 << m, after, progress=False)
    if state.budget.abandons and not worker.aside:
        after = _given_back(world, poorer(state, "abandons"), w, m, again)
        left_behind = Worker(worker.life, abandoned=worker.batch)
        yield Step("watchdog gives up", w, 1 << m, with_worker(after, w, left_behind), progress=False)


def _given_back(world: World, state: State, w: int, m: int, row: Row) -> State:
    """The row without its note, and its successors among those put aside as well."""
    worker = state.workers[w]
    released = _held_successors(world, state, w, m) if world.guards.settle_releases_successors else 0
    rows = without_notes(replaced(state.rows, m, row), released)
    rest = worker._replace(aside=worker.aside & ~released) if released else worker
    return with_worker(state, w, after_batch(rest, rows), rows)


def _put_aside(world: World, state: State, w: int, m: int) -> Step:
    """One of a group raised: put it aside, release its successors of the key, run the others again."""
    worker = state.workers[w]
    released = _held_successors(world, state, w, m) if world.guards.aside_releases_successors else 0
    rows = without_notes(state.rows, released)
    left = worker.batch & ~(1 << m) & ~released
    rest = worker._replace(batch=left, aside=(worker.aside | 1 << m) & ~released)
    after = with_worker(poorer(state, "retries"), w, rest if left else after_batch(rest, rows), rows)
    return Step("put aside", w, 1 << m, after, progress=False)


def _held_successors(world: World, state: State, w: int, m: int) -> int:
    """Later messages of the same key with a note of this worker."""
    held = noted(state.rows, w)
    seq = state.rows[m].seq
    return sum(1 << s for s in world.siblings[m] if held >> s & 1 and state.rows[s].seq > seq)
