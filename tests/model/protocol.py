"""The protocol of `docs/protocol.md` as a transition system, and what must hold in each of its states.

Invariant of the page: no message is lost, doubled, overlapping with another of its key, out of order, charged
for another's crash, or stuck. `steps` says what can happen next, `violation` what is wrong with a state, and
`settled` whether nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.calling import BEGUN, HAS_RESULT, call_steps, effect_fault
from tests.model.claiming import claim_steps
from tests.model.claims import claimed
from tests.model.counting import due_steps, time_steps, waits_rightly
from tests.model.faults import receiver_fault_steps, worker_fault_steps
from tests.model.finishing import abandoned_steps, finish_steps
from tests.model.operating import operator_steps
from tests.model.receiving import adopt_steps, receive_steps, store_first_steps
from tests.model.relaying import has_published, owing_steps, relay_fault, relay_steps
from tests.model.settling import is_late, settle_steps
from tests.model.world import (
    ACKED,
    ALIVE,
    ALONE,
    DEAD,
    GONE,
    IDLE,
    INLINE_RUN,
    NONE,
    OWING,
    RUNNING,
    SCHEDULED,
    UNCLAIMED,
    ZOMBIE,
    State,
    Step,
    Worker,
    World,
    bits,
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
    if world.scenario.unhandled:
        yield from adopt_steps(world, state)
    if world.counted:
        yield from time_steps(state)
    if world.scenario.scheduled:
        yield from due_steps(state)


def _work_steps(world: World, state: State, w: int) -> Iterator[Step]:
    worker = state.workers[w]
    if worker.phase < RUNNING:
        yield from claim_steps(world, state, w)
        if world.scenario.stored_first and worker.phase == IDLE:
            yield from store_first_steps(world, state, w)
    elif worker.phase == OWING:
        yield from owing_steps(world, state, w)
    elif world.poison < 0 or not worker.batch >> world.poison & 1:  # a poisonous message only crashes
        yield from _run_steps(world, state, w)
    if worker.abandoned:
        yield from abandoned_steps(world, state, w)


def _run_steps(world: World, state: State, w: int) -> Iterator[Step]:
    """The handlers of a batch run, and then it is finished or settled."""
    worker = state.workers[w]
    may_finish = may_settle = True
    if worker.phase == RUNNING:
        if world.outgoing:
            yield from relay_steps(world, state, w)
            may_finish, may_settle = has_published(world, worker), not worker.knows
        elif world.scenario.effect:
            yield from call_steps(world, state, w)
            may_finish, may_settle = worker.knows == HAS_RESULT, worker.knows in (BEGUN, HAS_RESULT)
        else:
            may_finish = not is_late(world, worker)
    if may_finish:
        yield from finish_steps(world, state, w)
    if may_settle and worker.phase == RUNNING:
        yield from settle_steps(world, state, w)


def violation(world: World, state: State) -> str:
    """The kind of invariant this state violates, or nothing."""
    for m, row in enumerate(state.rows):
        if world.outgoing >> m & 1:
            continue
        if row.effects > 1:
            return "doubled"
        if (row.effects == 1) != (row.state == GONE):
            return "effect without done"
        if world.scenario.effect and (fault := effect_fault(world, row)):
            return fault
    for d, delivery in enumerate(state.deliveries):
        if delivery.phase == ACKED and state.rows[world.delivers[d]].state == NONE:
            return "lost"
    if world.outgoing and (fault := relay_fault(world, state)):
        return fault
    return _overlap(world, state) or _badly_isolated(world, state)


def _overlap(world: World, state: State) -> str:
    """Two claims on one key: by the rows in the table, or by what two living workers believe to hold."""
    claims: dict[int, int] = {}
    for m, row in enumerate(state.rows):
        if row.claim != UNCLAIMED and claims.setdefault(world.key_of[m], row.claim) != row.claim:
            return "overlap"
    first, second = state.workers
    if first.life == second.life == ALIVE and _believed(world, first) & _believed(world, second):
        return "overlap"
    for d, delivery in enumerate(state.deliveries):
        if delivery.phase == INLINE_RUN and world.key_of[world.delivers[d]] in claims:
            return "overlap"
    return ""


def _believed(world: World, worker: Worker) -> int:
    """The keys of what a worker believes to hold."""
    return world.keys(worker.batch | worker.alone) if RUNNING <= worker.phase < OWING else 0


def _badly_isolated(world: World, state: State) -> str:
    """An isolated message runs in company that it may not have, or an innocent one is charged for another's crash."""
    for m, row in enumerate(state.rows):
        if row.isolation and row.claim:
            others = [o for o in bits(claimed(state.rows, row.claim - 1)) if o != m]
            if row.isolation == ALONE and others:
                return "not alone"
            if any(state.rows[o].isolation for o in others):
                return "not apart"
        if row.crashes and world.poison >= 0 and m != world.poison:
            return "charged"
    return ""


def settled(world: World, state: State) -> bool:
    """Every delivery is answered, and every message is where it may stay.

    That is done, skipped, discarded or out of its key; dead, or held in time for a number that is missing; or behind
    such a one in its key.
    """
    return all(delivery.phase == ACKED for delivery in state.deliveries) and all(
        row.state != SCHEDULED
        and (
            not unfinished(row)
            or (row.claim == UNCLAIMED and (_may_stay(world, state, m) or _is_behind(world, state, m)))
        )
        for m, row in enumerate(state.rows)
    )


def _may_stay(world: World, state: State, m: int) -> bool:
    """Whether it is dead, in a world where a dead message holds its key; or held, and rightly."""
    if state.rows[m].state == DEAD:
        return not world.scenario.continues
    return world.counted and waits_rightly(world, state.rows, m)


def _is_behind(world: World, state: State, m: int) -> bool:
    rows = state.rows
    before = [p for p in world.siblings[m] if rows[p].seq < rows[m].seq and unfinished(rows[p])]
    return any(_may_stay(world, state, p) for p in before)
