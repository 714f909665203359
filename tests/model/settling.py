"""Settle and unclaim: what a worker does when a handler raised, and when it stops.

Invariant: a message that runs alone or is given back takes its successors of the key with it, so that none of
them runs before it. A dead message leaves its key only under the key lock, with its claim still on it, and its
successor is promoted in the same commit.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.claims import claimed, rejected, without_claims
from tests.model.counting import LATE_SHIFT, advanced, passed_over
from tests.model.finishing import after_batch, finish_rest, promote, successors
from tests.model.world import (
    ALIVE,
    DEAD,
    DETACHED,
    GIVEN_UP,
    RETRY,
    UNCLAIMED,
    Row,
    State,
    Step,
    Worker,
    World,
    bits,
    moved,
    poorer,
    replaced,
    tidied,
    unfinished,
    with_rows,
    with_worker,
)


def settle_steps(world: World, state: State, w: int) -> Iterator[Step]:
    """How an attempt can end other than by finishing."""
    worker = state.workers[w]
    mine = claimed(state.rows, w)
    if worker.life == ALIVE:
        idle = Worker(abandoned=worker.abandoned)
        unclaimed = with_worker(state, w, idle, without_claims(state.rows, mine))
        yield Step("unclaim", w, mine, unclaimed, progress=False)
        if world.scenario.gives_back and worker.alone | worker.batch & (worker.batch - 1):
            yield from (_give_back(world, state, w, m) for m in bits(worker.batch | worker.alone))
    if worker.batch & (worker.batch - 1):
        if state.budget.retries:
            yield from (_run_alone(world, state, w, m) for m in bits(worker.batch))
            for m in bits(worker.batch):
                yield from _settle_with_others(world, state, w, m)
        return
    m = bits(worker.batch)[0]
    if world.guards.settle_matches_claim and not mine >> m & 1:
        yield _refused(world, state, w, m)
    elif unfinished(state.rows[m]) and not world.locks(state)[0] >> m & 1:
        yield from _settle(world, state, w, m)


def is_late(world: World, worker: Worker) -> bool:
    """Whether the worker has a message that is not run but given up, because it waited too long."""
    return world.counted and bool(worker.knows >> LATE_SHIFT & worker.batch)


def _refused(world: World, state: State, w: int, m: int) -> Step:
    """Its claim is gone: nothing is written."""
    step = rejected(state, w, "zombie settle rejected")
    dies = is_late(world, state.workers[w]) or state.budget.rejects
    if world.guards.continue_advances_under_claim or not (world.counted and world.scenario.continues and dies):
        return step
    if not unfinished(state.rows[m]):
        return step
    applied = advanced(world, state.applied, 1 << m)  # the broken variant: progress was written before the guard
    return step._replace(state=with_rows(step.state, step.state.rows, applied))


def _settle(world: World, state: State, w: int, m: int) -> Iterator[Step]:
    """The handler of a message that ran alone raised."""
    row = state.rows[m]
    worker = state.workers[w]
    if is_late(world, worker):
        yield from dead_steps(world, state, w, m, "settle: too late")
        return
    again = _survived(moved(row, RETRY, UNCLAIMED))
    if state.budget.retries:
        after = _given_back(world, poorer(state, "retries"), w, m, again)
        yield Step("settle: again", w, 1 << m, after, progress=False)
    if state.budget.rejects:
        for step in dead_steps(world, poorer(state, "rejects"), w, m, "settle: dead"):
            yield step._replace(progress=False)
    if state.budget.abandons and not worker.alone:
        after = _given_back(world, poorer(state, "abandons"), w, m, again)
        left_behind = Worker(worker.life, abandoned=worker.batch)
        yield Step("watchdog gives up", w, 1 << m, with_worker(after, w, left_behind), progress=False)


def dead_steps(world: World, state: State, w: int, m: int, event: str) -> Iterator[Step]:
    """Settle to dead; with `on_dead="continue"` under the key lock, and the key goes on."""
    row = state.rows[m]
    if not world.scenario.continues:
        dead = _survived(row)._replace(state=DEAD, claim=UNCLAIMED, crashes=0)  # a redrive starts with a new budget
        yield Step(event, w, 1 << m, _given_back(world, state, w, m, dead))
    elif not (world.guards.continue_takes_key_lock and world.locks(state)[1] & world.key_of[m]):
        broken = passed_over(world, state, m, among=row.after) if world.counted else ""
        settled = _given_back(world, state, w, m, _survived(row)._replace(claim=UNCLAIMED))
        yield Step(f"{event}, key goes on", w, 1 << m, left_key(world, settled, m), broken=broken)


def _survived(row: Row) -> Row:
    """The row of a message that failed and did not kill its process: not isolated, unless it has killed one before."""
    return row if row.crashes else row._replace(isolation=0)


def left_key(world: World, state: State, m: int) -> State:
    """A dead message leaves its key: the key goes on without it."""
    rows = list(state.rows)
    rows[m] = out_of_key(world, rows[m])
    if world.guards.continue_promotes:
        promote(rows, successors(world, state.rows, 1 << m))
    applied = state.applied
    if world.counted and world.guards.continue_advances:
        applied = advanced(world, applied, 1 << m)
    return tidied(world, with_rows(state, tuple(rows), applied))


def out_of_key(world: World, row: Row) -> Row:
    """The row, dead and without its key; it remembers its place."""
    marks = GIVEN_UP if world.counted else 0
    return Row(DETACHED, isolation=row.isolation, seq=row.seq, effects=row.effects, marks=marks)


def _give_back(world: World, state: State, w: int, m: int) -> Step:
    """One of several is given back unrun (the circuit of its handler has opened), with what comes after it."""
    worker = state.workers[w]
    back = 1 << m
    if world.guards.giving_back_takes_successors:
        back |= _held_successors(world, state, w, m)
    rows = without_claims(state.rows, back & claimed(state.rows, w))
    rest = worker._replace(batch=worker.batch & ~back, alone=worker.alone & ~back)
    after = with_worker(state, w, rest if rest.batch else after_batch(world, rest, rows), rows)
    return Step("give back", w, back, after, progress=False)


def _given_back(world: World, state: State, w: int, m: int, row: Row) -> State:
    """The row without its claim, and its successors among those that run alone as well."""
    worker = state.workers[w]
    unclaimed = _held_successors(world, state, w, m) if world.guards.settle_unclaims_successors else 0
    rows = without_claims(replaced(state.rows, m, row), unclaimed & claimed(state.rows, w))
    rest = worker._replace(alone=worker.alone & ~unclaimed) if unclaimed else worker
    return with_worker(state, w, after_batch(world, rest, rows), rows)


def _run_alone(world: World, state: State, w: int, m: int) -> Step:
    """One of a group raised: run it alone, unclaim its successors of the key, run the others again."""
    worker = state.workers[w]
    unclaimed = _held_successors(world, state, w, m) if world.guards.alone_unclaims_successors else 0
    rows = without_claims(state.rows, unclaimed & claimed(state.rows, w))
    left = worker.batch & ~(1 << m) & ~unclaimed
    rest = worker._replace(batch=left, alone=(worker.alone | 1 << m) & ~unclaimed)
    after = with_worker(poorer(state, "retries"), w, rest if left else after_batch(world, rest, rows), rows)
    return Step("run alone", w, 1 << m, after, progress=False)


def _settle_with_others(world: World, state: State, w: int, m: int) -> Iterator[Step]:
    """One of a group raised: back to its savepoint, settled in the commit that finishes the others."""
    worker = state.workers[w]
    mine = claimed(state.rows, w)
    behind = _held_successors(world, state, w, m) if world.guards.alone_unclaims_successors else 0
    rest = worker.batch & ~(1 << m) & ~behind
    if not rest or worker.batch & world.outgoing or is_late(world, worker):  # the relay: see relaying.py
        return
    row = _survived(moved(state.rows[m], RETRY, UNCLAIMED)) if mine >> m & 1 else state.rows[m]
    rows = without_claims(replaced(state.rows, m, row), behind & mine)
    others = worker._replace(batch=rest, alone=worker.alone & ~behind)
    yield from finish_rest(world, state, with_worker(poorer(state, "retries"), w, others, rows), w)


def _held_successors(world: World, state: State, w: int, m: int) -> int:
    """Later messages of the same key that this worker believes to hold, whether or not their claims are still there."""
    held = state.workers[w].batch | state.workers[w].alone
    seq = state.rows[m].seq
    return sum(1 << s for s in world.siblings[m] if held >> s & 1 and state.rows[s].seq > seq)
