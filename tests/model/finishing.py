"""Finish: delete the rows of a batch under their claims, promote the successors, commit with the effects.

Invariant: effects are committed together with the deletion of every row of the batch, or not at all; a row of
a key is removed, and its successor promoted, only under the key lock. Progress and outgoing messages are part of
the same commit.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.claims import claimed, rejected
from tests.model.counting import LATE_SHIFT, advanced, number_fault
from tests.model.relaying import owed_after, sent
from tests.model.world import (
    EFFECT_MARKS,
    FINISH_DELETED,
    FINISH_LOCKED,
    FINISH_PROMOTED,
    FINISH_VIEW,
    GIVEN_UP,
    GONE,
    READY,
    RUNNING,
    SKIPPED,
    UNCLAIMED,
    WAITING,
    Row,
    Rows,
    State,
    Step,
    Worker,
    World,
    bits,
    moved,
    tidied,
    unfinished,
    with_rows,
    with_worker,
)


def finish_steps(world: World, state: State, w: int) -> Iterator[Step]:
    """The next statement of a finish; the first one takes the key locks."""
    worker = state.workers[w]
    phase = worker.phase
    if phase == RUNNING and not world.scenario.fine:
        yield from _at_once(world, state, w)
    elif phase == RUNNING and not world.guards.promote_has_new_view:
        viewed = worker._replace(phase=FINISH_VIEW, extra=_to_promote(world, state.rows, worker.batch))
        yield Step("take a view", w, worker.batch, with_worker(state, w, viewed))
    elif phase in (RUNNING, FINISH_VIEW):
        yield from _lock_keys(world, state, w)
    elif phase == FINISH_LOCKED:
        yield from _delete(world, state, w)
    elif phase == FINISH_DELETED:
        old = not world.guards.promote_has_new_view
        extra = worker.extra if old else _to_promote(world, state.rows, worker.batch)
        chosen = worker._replace(phase=FINISH_PROMOTED, extra=extra)
        yield Step("look for a successor", w, worker.batch, with_worker(state, w, chosen))
    else:
        yield _commit(world, state, w, worker.extra)


def _at_once(world: World, state: State, w: int) -> Iterator[Step]:
    """All statements and the commit in one step."""
    batch = state.workers[w].batch
    if not world.keys(batch) & world.locks(state)[1]:
        promoted = _to_promote(world, state.rows, batch)
        yield _refusal(world, state, w) or _commit(world, state, w, promoted)


def finish_rest(world: World, before: State, settled: State, w: int) -> Iterator[Step]:
    """All at once, where one of the group was settled in the same commit; refused, nothing of it has happened."""
    batch = settled.workers[w].batch
    row_locks, key_locks = world.locks(before)
    if batch & row_locks or world.keys(batch) & key_locks:
        return
    if _refusal(world, settled, w):
        yield rejected(before, w, "zombie finish rejected")
        return
    step = _commit(world, settled, w, _to_promote(world, settled.rows, batch))
    yield step._replace(event="finish and settle", progress=False)


def _lock_keys(world: World, state: State, w: int) -> Iterator[Step]:
    """All key locks at once: taken in sorted order they cannot block each other."""
    worker = state.workers[w]
    taken = world.locks(state)[1] if world.guards.finish_takes_key_lock else 0
    if not world.keys(worker.batch) & taken:
        locked = worker._replace(phase=FINISH_LOCKED)
        yield Step("key lock", w, worker.batch, with_worker(state, w, locked))


def _delete(world: World, state: State, w: int) -> Iterator[Step]:
    worker = state.workers[w]
    if not worker.batch & world.locks(state)[0]:
        deleted = worker._replace(phase=FINISH_DELETED)
        done = Step("guarded delete", w, worker.batch, with_worker(state, w, deleted))
        yield _refusal(world, state, w) or done


def _refusal(world: World, state: State, w: int) -> Step | None:
    """The guard: a delete that does not match every row of the batch rolls everything back."""
    if not world.guards.finish_counts_rows or _matched(world, state, w) == state.workers[w].batch:
        return None
    return rejected(state, w, "zombie finish rejected")


def _matched(world: World, state: State, w: int) -> int:
    """The rows of the batch that the delete hits."""
    batch = state.workers[w].batch
    if world.guards.finish_matches_claim:
        return batch & claimed(state.rows, w)
    return sum(1 << m for m in bits(batch) if unfinished(state.rows[m]))


def _to_promote(world: World, rows: Rows, batch: int) -> int:
    return successors(world, rows, batch) if world.guards.promote_after_finish else 0


def successors(world: World, rows: Rows, removed: int) -> int:
    """The lowest waiting row of each key of the removed messages."""
    mask = 0
    for one in bits(removed):
        left = [(rows[m].seq, m) for m in world.siblings[one] if not removed >> m & 1]
        waiting = [(seq, m) for seq, m in left if rows[m].state == WAITING]
        if waiting:
            mask |= 1 << (min(waiting) if world.guards.promote_lowest else max(waiting))[1]
    return mask


def promote(rows: list[Row], chosen: int) -> None:
    """Make the chosen rows ready, if they still wait."""
    for m in bits(chosen):
        if rows[m].state == WAITING:
            rows[m] = moved(rows[m], READY, UNCLAIMED)


def _commit(world: World, state: State, w: int, promoted: int) -> Step:
    """Effects, deletion and promotion become visible together."""
    worker = state.workers[w]
    batch = worker.batch
    matched = _matched(world, state, w)
    stale = worker.knows & batch if world.counted else 0
    broken = "order" if any(_overtakes(state.rows, m, batch) for m in bits(batch & ~stale)) else ""
    rows = list(state.rows)
    for m in bits(batch & ~stale):
        effects = rows[m].effects + (not world.outgoing >> m & 1)
        done = Row(GONE, effects=effects, marks=rows[m].marks & EFFECT_MARKS)
        rows[m] = done if matched >> m & 1 else rows[m]._replace(effects=effects)
    for m in bits(stale):
        rows[m] = Row(SKIPPED, marks=rows[m].marks & GIVEN_UP)
    promote(rows, promoted)
    if world.outgoing:
        sent(world, rows, matched)
    after = with_worker(state, w, owed_after(world, worker, after_batch(world, worker, state.rows)), tuple(rows))
    if world.counted:
        broken = broken or number_fault(world, state, batch, stale)
        moves = batch & ~stale if world.guards.finish_advances else 0
        after = with_rows(after, after.rows, advanced(world, state.applied, moves))
    event = "skip" if stale else "finish and promote" if promoted else "finish"
    return Step(event, w, batch, tidied(world, after), broken=broken)


def _overtakes(rows: Rows, m: int, batch: int) -> bool:
    """Whether an effect comes before one that was promised to be first."""
    first = [p for p in bits(rows[m].after) if unfinished(rows[p])]
    return any(not batch >> p & 1 or rows[p].seq > rows[m].seq for p in first)


def after_batch(world: World, worker: Worker, rows: Rows) -> Worker:
    """What comes after a batch: those that run alone, one by one and in order; else nothing."""
    if not worker.alone:
        return Worker(worker.life, abandoned=worker.abandoned)
    first = 1 << min(bits(worker.alone), key=lambda m: rows[m].seq)
    left = worker.alone ^ first
    knows = worker.knows & (worker.alone | worker.alone << LATE_SHIFT) if world.counted else 0
    return Worker(worker.life, RUNNING, first, left, 0, worker.abandoned, knows)


def abandoned_steps(world: World, state: State, w: int) -> Iterator[Step]:
    """An attempt the watchdog gave up comes to its end; its token is not on the row any more."""
    worker = state.workers[w]
    batch = worker.abandoned
    over = worker._replace(abandoned=0)
    row_locks, key_locks = world.locks(state)
    if batch & row_locks or world.keys(batch) & key_locks:
        return
    if world.guards.finish_matches_token or claimed(state.rows, w) & batch != batch:
        yield Step("abandoned finish rejected", w, batch, with_worker(state, w, over))
        return
    rows = list(state.rows)
    for m in bits(batch):
        rows[m] = Row(GONE, effects=rows[m].effects + 1)
    promote(rows, _to_promote(world, state.rows, batch))
    yield Step("abandoned finish", w, batch, with_worker(state, w, over, tuple(rows)))
