"""Claim: pick due rows, check that they are the heads of their keys and next by their numbers, claim them.

Invariant: a row is claimed, parked or held only under its row lock and its key lock, by a view taken after both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.model.claims import rejected
from tests.model.counting import HELD_SHIFT, LATE_SHIFT, MASK, gate, packed, unpacked
from tests.model.finishing import after_batch
from tests.model.guards import Guards
from tests.model.world import (
    ALONE,
    CLAIM_CHECKED,
    CLAIM_PICKED,
    CLAIM_VIEW,
    DEAD,
    HELD,
    IDLE,
    LOOSE,
    OVER,
    PLACE_SHIFT,
    READY,
    RETRY,
    RUNNING,
    SCHEDULED,
    UNCLAIMED,
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
    with_rows,
    with_worker,
)

PARK_SHIFT: Final = 8


def claim_steps(world: World, state: State, w: int) -> Iterator[Step]:
    """The next statement of a claim; the first one picks."""
    worker = state.workers[w]
    if worker.phase == IDLE:
        yield from _pick(world, state, w)
    elif worker.phase == CLAIM_VIEW:
        yield _lock_after_view(world, state, w)
    elif worker.phase == CLAIM_PICKED:
        checked = _checked(world, state, worker._replace(phase=CLAIM_CHECKED))
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
        if len(members) > 1 and not _may_share(guards, [state.rows[m].isolation for m in members]):
            continue
        if world.outgoing and picked & world.outgoing not in (0, picked):
            continue  # the relay has lanes of its own
        before = _promised(world, state, picked) if world.placed else state
        before = joined(world, before, picked) if world.scenario.scheduled else before
        chosen = Worker(worker.life, CLAIM_PICKED, picked, abandoned=worker.abandoned)
        if not world.scenario.fine:  # all statements and the commit in one step
            yield from _commit(world, with_worker(before, w, _checked(world, before, chosen)), w)
        elif not guards.head_check_has_new_view:
            viewed = _checked(world, before, chosen._replace(phase=CLAIM_VIEW))
            yield Step("take a view", w, picked, with_worker(before, w, viewed))
        elif world.counted and not guards.gate_has_new_view:
            viewed = chosen._replace(phase=CLAIM_VIEW, extra=packed(state.applied))
            yield Step("take a view", w, picked, with_worker(before, w, viewed))
        else:
            yield Step("pick", w, picked, with_worker(before, w, chosen))


def _may_share(guards: Guards, levels: list[int]) -> bool:
    """Whether a process may hold these at once: a worker stands for all the lanes of its process."""
    if ALONE in levels and guards.isolated_runs_alone:
        return False
    return len(levels) - levels.count(0) < 2 or not guards.isolated_run_apart


def _claimable(world: World, state: State) -> list[int]:
    """Rows without a claim that nobody has locked, whose key lock can be had at once."""
    row_locks, key_locks = world.locks(state)
    if not world.guards.claim_takes_key_lock:
        key_locks = 0
    return [
        m
        for m, row in enumerate(state.rows)
        if (row.state in (READY, RETRY) or (row.state in (WAITING, SCHEDULED) and _is_due(world, row)))
        and row.claim == UNCLAIMED
        and not row_locks >> m & 1
        and (not key_locks & world.key_of[m] or row.marks & LOOSE)
    ]


def _is_due(world: World, row: Row) -> bool:
    if row.state == SCHEDULED:
        return bool(row.marks & OVER)
    return row.marks & (HELD | OVER) == HELD | OVER and world.guards.hold_has_deadline


def joined(world: World, state: State, picked: int) -> State:
    """What was scheduled takes the next place in its key, under the key lock; what is there now comes before it.

    Written with the claim: until that is committed the row is not in its key, and nothing looks at its place.
    """
    rows = list(state.rows)
    for m in bits(picked):
        if rows[m].state == SCHEDULED:
            places = [rows[o].seq for o in world.siblings[m]]
            key = world.key_of[m]
            coming = zip(world.delivers, state.deliveries, strict=True)
            places += [delivery.seq for other, delivery in coming if world.key_of[other] == key]
            place = max(places) + 1 if world.guards.joins_behind_the_others else rows[m].seq
            before = sum(1 << o for o in world.siblings[m] if unfinished(rows[o]))
            rows[m] = rows[m]._replace(seq=place, after=before)
    return with_rows(state, tuple(rows))


def _promised(world: World, state: State, picked: int) -> State:
    """A ghost: what is in the key before a picked row, at this moment, must take effect before it."""
    rows = list(state.rows)
    for m in bits(picked):
        row = rows[m]
        earlier = [o for o in world.siblings[m] if unfinished(rows[o]) and rows[o].seq < row.seq]
        rows[m] = row._replace(after=row.after | sum(1 << o for o in earlier))
    return with_rows(state, tuple(rows))


def _checked(world: World, state: State, worker: Worker) -> Worker:
    """The worker with its decision: by the heads of the keys, then by the numbers."""
    view = worker.extra
    extra = head_check(world, state.rows, worker.batch)
    if not world.counted:
        return worker._replace(extra=extra)
    old = worker.phase == CLAIM_CHECKED and not world.guards.gate_has_new_view
    applied = unpacked(view, len(state.applied)) if old else state.applied
    verdict = gate(world, applied, state.rows, extra & MASK)
    extra = verdict.kept | (extra >> PARK_SHIFT | verdict.parked) << PARK_SHIFT
    return worker._replace(extra=extra, knows=verdict.knows)


def head_check(world: World, rows: Rows, picked: int) -> int:
    """Which of the picked rows to keep, and (shifted) which to park; the rest is left alone.

    Only a row with an earlier one ahead of it is parked: that one's remover will promote it. A row that is
    first, but whose key is busy with a later one (it was committed late), is left as it is.
    """
    kept = parked = 0
    for m in bits(picked):
        if rows[m].marks & LOOSE:
            kept |= 1 << m
            continue
        others = [rows[o] for o in world.siblings[m] if not picked >> o & 1 and _counts(world, rows[o])]
        behind = any(_is_earlier(world, row, rows[m]) and _is_ahead(world, row) for row in others)
        busy = world.guards.head_check_sees_claims and any(row.claim != UNCLAIMED for row in others)
        if behind or (busy and not world.guards.park_only_behind_earlier):
            parked |= 1 << m
        elif not busy:
            kept |= 1 << m
    if not world.guards.park_at_claim:
        parked = 0
    return kept | parked << PARK_SHIFT


def _counts(world: World, row: Row) -> bool:
    """Whether a row is in its key, for others of it."""
    return unfinished(row) or (row.state == SCHEDULED and not world.guards.scheduled_holds_nobody)


def _is_earlier(world: World, row: Row, than: Row) -> bool:
    if world.guards.order_is_by_place:
        return row.seq < than.seq
    arrival = (1 << PLACE_SHIFT) - 1
    return row.seq & arrival < than.seq & arrival


def _is_ahead(world: World, row: Row) -> bool:
    """An earlier row counts in whatever state it is, as long as it is in the key."""
    if row.marks & LOOSE:
        return False
    if row.state == RETRY and row.claim == UNCLAIMED:
        return world.guards.head_check_sees_retry
    return row.state != DEAD or world.guards.head_check_sees_dead


def _lock_after_view(world: World, state: State, w: int) -> Step:
    """A broken variant: locks come after the view that decides, as in one single statement."""
    worker = state.workers[w]
    claimable = _claimable(world, state)
    if any(m not in claimable for m in bits(worker.batch)):
        return Step("leave alone", w, worker.batch, with_worker(state, w, Worker(worker.life)))
    decided = not world.guards.head_check_has_new_view
    locked = worker._replace(phase=CLAIM_CHECKED if decided else CLAIM_PICKED)
    return Step("pick", w, worker.batch, with_worker(state, w, locked))


def _commit(world: World, state: State, w: int) -> Iterator[Step]:
    worker = state.workers[w]
    kept, parked, held = worker.extra & MASK, worker.extra >> PARK_SHIFT, worker.knows >> HELD_SHIFT
    changed = list(state.rows)
    for m in bits(kept):
        due = RETRY if changed[m].state in (WAITING, SCHEDULED) else changed[m].state
        changed[m] = moved(changed[m], due, w + 1)
    broken = "held by nobody" if any(_waits_for_nobody(world, state.rows, m) for m in bits(parked)) else ""
    for m in bits(parked):
        changed[m] = moved(changed[m], WAITING, UNCLAIMED)
    for m in bits(worker.batch & ~kept & ~parked & ~held):  # it only loses its claim again, and has joined its key
        if changed[m].state == SCHEDULED:
            changed[m] = moved(changed[m], RETRY, UNCLAIMED)
    for m in bits(held):
        changed[m] = changed[m]._replace(state=WAITING, claim=UNCLAIMED, marks=changed[m].marks | HELD)
    rows = tuple(changed)
    owner = Worker(worker.life, RUNNING if kept else IDLE, kept, 0, 0, worker.abandoned)
    if kept and world.counted:
        owner = _without_late(world, rows, owner._replace(knows=worker.knows & (1 << HELD_SHIFT) - 1))
    event = "hold" if held else "park" if parked else "claim" if kept else "leave alone"
    yield Step(event, w, worker.batch, with_worker(state, w, owner, rows), broken=broken)
    if kept and not world.guards.claim_outcome_is_read:
        forgetful = Worker(worker.life, abandoned=worker.abandoned)
        yield Step("claim, answer lost", w, kept, with_worker(state, w, forgetful, rows))


def _waits_for_nobody(world: World, rows: Rows, m: int) -> bool:
    """Whether a row is parked though all that is ahead of it in its key is not due yet."""
    return bool(world.scenario.scheduled) and not any(unfinished(rows[o]) for o in world.siblings[m])


def _without_late(world: World, rows: Rows, worker: Worker) -> Worker:
    """Late messages do not run with the others: they come alone, with whatever comes after them in their keys."""
    late = worker.knows >> LATE_SHIFT
    alone = late
    for m in bits(late):
        alone |= sum(1 << o for o in world.siblings[m] if worker.batch >> o & 1 and rows[o].seq > rows[m].seq)
    left = worker._replace(batch=worker.batch & ~alone, alone=alone)
    return left if left.batch or not alone else after_batch(world, left, rows)
