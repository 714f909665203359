"""The protocol of `docs/protocol.md` as a transition system, and what must hold in each of its states.

Invariant of the page: no message is lost, doubled, overlapping with another of its key, out of order, charged
for another's crash, or stuck. `steps` says what can happen next, `violation` what is wrong with a state, and
`settled` whether nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.claiming import claim_steps
from tests.model.faults import operator_steps, receiver_fault_steps, worker_fault_steps
from tests.model.finishing import abandoned_steps, finish_steps
from tests.model.notes import noted
from tests.model.receiving import receive_steps
from tests.model.settling import settle_steps
from tests.model.world import (
    ACKED,
    ALIVE,
    DEAD,
    GONE,
    INLINE_RUN,
    NO_NOTE,
    NONE,
    RUNNING,
    ZOMBIE,
    State,
    Step,
    Worker,
    World,
    unfinished,
)


def steps(world: World, state: State) -> Iterator[Step]:
    """Everything that can happen next."""
    yield from receive_steps(world, state)
    for w, worker in enumerate(state.workers):
        if worker.life in (ALIVE, ZOMBIE):
            yield from _work_steps(world, state, w)
        yield from worker_fault_steps(world, state, w)
    yield from receiver_fault_steps(world, state)
    yield from operator_steps(world, state)


def _work_steps(world: World, state: State, w: int) -> Iterator[Step]:
    worker = state.workers[w]
    if worker.phase < RUNNING:
        yield from claim_steps(world, state, w)
    elif world.poison < 0 or not worker.batch >> world.poison & 1:  # a poisonous message only crashes
        yield from finish_steps(world, state, w)
        if worker.phase == RUNNING:
            yield from settle_steps(world, state, w)
    if worker.abandoned:
        yield from abandoned_steps(world, state, w)


def violation(world: World, state: State) -> str:
    """The kind of invariant this state violates, or nothing."""
    for row in state.rows:
        if row.effects > 1:
            return "doubled"
        if (row.effects == 1) != (row.state == GONE):
            return "effect without done"
    for d, delivery in enumerate(state.deliveries):
        if delivery.phase == ACKED and state.rows[world.delivers[d]].state == NONE:
            return "lost"
    return _overlap(world, state) or _bad_suspect(world, state)


def _overlap(world: World, state: State) -> str:
    """Two claims on one key: by the notes in the table, or by what two living workers believe to hold."""
    notes: dict[int, int] = {}
    for m, row in enumerate(state.rows):
        if row.note != NO_NOTE and notes.setdefault(world.key_of[m], row.note) != row.note:
            return "overlap"
    first, second = state.workers
    if first.life == second.life == ALIVE and _believed(world, first) & _believed(world, second):
        return "overlap"
    for d, delivery in enumerate(state.deliveries):
        if delivery.phase == INLINE_RUN and world.key_of[world.delivers[d]] in notes:
            return "overlap"
    return ""


def _believed(world: World, worker: Worker) -> int:
    """The keys of what a worker believes to hold."""
    return world.keys(worker.batch | worker.aside) if worker.phase >= RUNNING else 0


def _bad_suspect(world: World, state: State) -> str:
    """A solo row shares its process, or an innocent message is charged for the crash of a poisonous one."""
    for m, row in enumerate(state.rows):
        if row.solo and row.note and noted(state.rows, row.note - 1) != 1 << m:
            return "solo"
        if row.crashes and world.poison >= 0 and m != world.poison:
            return "charged"
    return ""


def settled(world: World, state: State) -> bool:
    """Every delivery is answered; every message is done, discarded, dead, or behind a dead one of its key."""
    return all(delivery.phase == ACKED for delivery in state.deliveries) and all(
        not unfinished(row) or (row.note == NO_NOTE and (row.state == DEAD or _behind_dead(world, state, m)))
        for m, row in enumerate(state.rows)
    )


def _behind_dead(world: World, state: State, m: int) -> bool:
    rows = state.rows
    return any(rows[p].state == DEAD and rows[p].seq < rows[m].seq for p in world.siblings[m])
