"""Claim: pick due rows, check that they are the heads of their keys, note them.

Invariant: a row is noted or parked only under its row lock and its key lock, by a view taken after both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.model.notes import rejected
from tests.model.world import (
    CLAIM_CHECKED,
    CLAIM_PICKED,
    CLAIM_VIEW,
    DEAD,
    IDLE,
    NO_NOTE,
    READY,
    RETRY,
    RUNNING,
    WAITING,
    ZOMBIE,
    Row,
    Rows,
    State,
    Step,
    Worker,
    World,
    bits,
    moved,
    subsets,
    unfinished,
    with_worker,
)

PARK_SHIFT: Final = 8
KEPT: Final = 0xFF


def claim_steps(world: World, state: State, w: int) -> Iterator[Step]:
    """The next statement of a claim; the first one picks."""
    worker = state.workers[w]
    if worker.phase == IDLE:
        yield from _pick(world, state, w)
    elif worker.phase == CLAIM_VIEW:
        yield _lock_after_view(world, state, w)
    elif worker.phase == CLAIM_PICKED:
        extra = head_check(world, state.rows, worker.batch)
        checked = worker._replace(phase=CLAIM_CHECKED, extra=extra)
        yield Step("head check", w, worker.batch, with_worker(state, w, checked))
    else:
        yield from _commit(world, state, w)


def _pick(world: World, state: State, w: int) -> Iterator[Step]:
    """Any group of rows that can be had: the order of the pick is a matter of speed, not of safety."""
    worker = state.workers[w]
    guards = world.guards
    if worker.life == ZOMBIE and guards.claim_needs_worker_row:
        yield rejected(state, w, "zombie claim rejected")
        return
    for picked in subsets(_claimable(world, state), world.scenario.group):
        members = bits(picked)
        if len(members) > 1 and guards.solo_runs_alone and any(state.rows[m].solo for m in members):
            continue
        if world.scenario.fine and guards.head_check_has_new_view:
            chosen = worker._replace(phase=CLAIM_PICKED, batch=picked)
            yield Step("pick", w, picked, with_worker(state, w, chosen))
            continue
        extra = head_check(world, state.rows, picked)
        chosen = Worker(worker.life, CLAIM_VIEW, picked, 0, extra, worker.abandoned)
        viewed = with_worker(state, w, chosen)
        if world.scenario.fine:
            yield Step("take a view", w, picked, viewed)
        else:  # all statements and the commit in one step
            yield from _commit(world, viewed, w)


def _claimable(world: World, state: State) -> list[int]:
    """Rows without a note that nobody has locked, whose key lock can be had at once."""
    row_locks, key_locks = world.locks(state)
    if not world.guards.claim_takes_key_lock:
        key_locks = 0
    return [
        m
        for m, row in enumerate(state.rows)
        if row.state in (READY, RETRY)
        and row.note == NO_NOTE
        and not row_locks >> m & 1
        and not key_locks & world.key_of[m]
    ]


def head_check(world: World, rows: Rows, picked: int) -> int:
    """Which of the picked rows to keep, and (shifted) which to park; the rest is left alone.

    Only a row with an earlier one ahead of it is parked: that one's remover will promote it. A row that is
    first, but whose key is busy with a later one (it was committed late), is left as it is.
    """
    kept = parked = 0
    for m in bits(picked):
        others = [rows[o] for o in world.siblings[m] if not picked >> o & 1 and unfinished(rows[o])]
        behind = any(row.seq < rows[m].seq and _is_ahead(world, row) for row in others)
        busy = world.guards.head_check_sees_notes and any(row.note != NO_NOTE for row in others)
        if behind or (busy and not world.guards.park_only_behind_earlier):
            parked |= 1 << m
        elif not busy:
            kept |= 1 << m
    if not world.guards.park_at_claim:
        parked = 0
    return kept | parked << PARK_SHIFT


def _is_ahead(world: World, row: Row) -> bool:
    """An earlier row counts in whatever state it is."""
    if row.state == RETRY and row.note == NO_NOTE:
        return world.guards.head_check_sees_retry
    return row.state != DEAD or world.guards.head_check_sees_dead


def _lock_after_view(world: World, state: State, w: int) -> Step:
    """A broken variant: locks come after the view that decides, as in one single statement."""
    worker = state.workers[w]
    claimable = _claimable(world, state)
    if any(m not in claimable for m in bits(worker.batch)):
        return Step("leave alone", w, worker.batch, with_worker(state, w, Worker(worker.life)))
    locked = worker._replace(phase=CLAIM_CHECKED)
    return Step("pick", w, worker.batch, with_worker(state, w, locked))


def _commit(world: World, state: State, w: int) -> Iterator[Step]:
    worker = state.workers[w]
    kept, parked = worker.extra & KEPT, worker.extra >> PARK_SHIFT
    changed = list(state.rows)
    for m in bits(kept):
        changed[m] = moved(changed[m], changed[m].state, w + 1)
    for m in bits(parked):
        changed[m] = moved(changed[m], WAITING, NO_NOTE)
    rows = tuple(changed)
    owner = Worker(worker.life, RUNNING if kept else IDLE, kept, 0, 0, worker.abandoned)
    event = "park" if parked else "claim" if kept else "leave alone"
    yield Step(event, w, worker.batch, with_worker(state, w, owner, rows))
    if kept and not world.guards.claim_outcome_is_read:
        forgetful = Worker(worker.life, abandoned=worker.abandoned)
        yield Step("claim, answer lost", w, kept, with_worker(state, w, forgetful, rows))
