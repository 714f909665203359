"""What happens to workers: crash, stop, resume, a lost connection, and the take-over that follows.

Invariant: a fault only loses what is uncommitted; claims outlive their process until somebody takes over.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.claims import claimed, strayed
from tests.model.counting import passed_over
from tests.model.settling import left_key
from tests.model.world import (
    ACKED,
    ACKED_EARLY,
    ALIVE,
    ALONE,
    APART,
    CLAIM_CHECKED,
    CLAIM_PICKED,
    CLAIM_VIEW,
    CRASH_LIMIT,
    DEAD,
    FINISH_DELETED,
    FINISH_PROMOTED,
    IDLE,
    KILLED,
    NEW,
    OWING,
    READY,
    RUNNING,
    STOPPED,
    SUSPENDED_ZOMBIE,
    UNCLAIMED,
    ZOMBIE,
    Delivery,
    Row,
    State,
    Step,
    Worker,
    World,
    bits,
    poorer,
    replaced,
    tidied,
    turned,
    with_delivery,
    with_worker,
)


def worker_fault_steps(world: World, state: State, w: int) -> Iterator[Step]:
    """Crash, stop, resume, loss of the connection, and the take-over that follows."""
    worker = state.workers[w]
    life = worker.life
    if life != KILLED and (state.budget.crashes or world.poison >= 0):
        yield from _crash(world, state, w)
    if life == ALIVE and state.budget.stops:
        yield _at(poorer(state, "stops"), w, turned(worker, STOPPED), "stop", progress=False)
    elif life == STOPPED:
        yield _at(state, w, turned(worker, ALIVE), "resume", progress=False)
    elif life == SUSPENDED_ZOMBIE:
        yield _at(state, w, turned(worker, ZOMBIE), "resume as zombie", progress=False)
    if worker.phase not in (IDLE, RUNNING, OWING):
        # For a suspended process this is the server's idle-in-transaction timeout: its locks do not last.
        claiming = worker.phase in (CLAIM_VIEW, CLAIM_PICKED, CLAIM_CHECKED)
        batch = 0 if claiming else worker.batch
        knows = worker.knows if world.counted and not claiming else 0  # a handler that runs again starts from nothing
        back = worker._replace(phase=IDLE if claiming else RUNNING, batch=batch, extra=0, knows=knows)
        yield _at(state, w, back, "connection lost", progress=life in (STOPPED, SUSPENDED_ZOMBIE))
    if life in (STOPPED, KILLED):
        yield from _take_over(world, state, w)


def _crash(world: World, state: State, w: int) -> Iterator[Step]:
    """A process dies with claims; without any, dying is the same as losing the connection."""
    worker = state.workers[w]
    if not claimed(state.rows, w):
        return
    if world.poison >= 0:
        if worker.batch >> world.poison & 1 and worker.phase == RUNNING and worker.life == ALIVE:
            yield _at(state, w, Worker(KILLED), "crash")
        return
    after = poorer(state, "crashes")
    if worker.life in (ALIVE, STOPPED):
        yield _at(after, w, Worker(KILLED), "crash", progress=False)
    else:  # its row is gone already: nobody will look for its claims
        fresh = with_worker(after, w, Worker(), strayed(state.rows, w))
        yield Step("crash of a zombie", w, worker.batch, fresh, progress=False)


def _take_over(world: World, state: State, w: int) -> Iterator[Step]:
    """Needs the worker row, which an open claim holds, and the claimed rows, which an open finish may hold."""
    worker = state.workers[w]
    if worker.phase in (CLAIM_PICKED, CLAIM_CHECKED) and world.guards.claim_locks_worker_row:
        return
    if worker.phase in (FINISH_DELETED, FINISH_PROMOTED):
        return
    lost = claimed(state.rows, w)
    alone = lost & (lost - 1) == 0
    charged = lost if alone or not world.guards.charge_only_alone else 0
    rows = state.rows
    if world.guards.take_over_clears_claims:
        for m in bits(lost):
            rows = replaced(rows, m, _given_back(world, rows[m], charged >> m & 1))
    killed = [m for m in bits(lost) if rows[m].state == DEAD]
    rows = strayed(rows, w)
    after = turned(worker, SUSPENDED_ZOMBIE) if worker.life == STOPPED else Worker()
    event = "taken over" if alone else "taken over with a group"
    # Where one message is known to be poisonous, the charges in the rows are judged instead.
    broken = "charged" if charged and not alone and world.poison < 0 else ""
    state = with_worker(state, w, after, rows)
    if killed:
        event = "taken over, message dead"
    if killed and world.scenario.continues and world.guards.take_over_continues:
        if world.guards.continue_takes_key_lock and world.locks(state)[1] & world.keys(lost):
            return  # it waits for the key lock
        event = "taken over, message dead, key goes on"
        for m in killed:
            if world.counted:
                broken = broken or passed_over(world, state, m, among=state.rows[m].after)
            state = left_key(world, state, m)
    yield Step(event, w, lost, state, broken=broken)


def _given_back(world: World, row: Row, charge: int) -> Row:
    crashes = row.crashes + charge
    # Half of two or three is one. With groups of one the level changes nothing: leave it out.
    level = 0 if world.scenario.group == 1 else ALONE if charge or row.isolation else APART
    if crashes >= CRASH_LIMIT:
        return row._replace(state=DEAD, claim=UNCLAIMED, isolation=level, crashes=0)
    return row._replace(state=READY, claim=UNCLAIMED, isolation=level, crashes=crashes)


def receiver_fault_steps(world: World, state: State) -> Iterator[Step]:
    """A receiving process dies: its insert is rolled back, and the sender, without an answer, repeats it."""
    if not state.budget.crashes or not world.scenario.receivers_crash:
        return
    for d, delivery in enumerate(state.deliveries):
        if delivery.phase in (NEW, ACKED):
            continue
        lost = Delivery(ACKED if delivery.phase == ACKED_EARLY else NEW)
        after = tidied(world, with_delivery(poorer(state, "crashes"), d, lost))
        yield Step("crash of a receiver", -1 - d, 0, after, progress=False)


def _at(state: State, w: int, worker: Worker, event: str, *, progress: bool = True) -> Step:
    return Step(event, w, state.workers[w].batch, with_worker(state, w, worker), progress)
