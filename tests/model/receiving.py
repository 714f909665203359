"""Receive and process: how a delivery becomes a ledger row.

Invariant: whatever is acknowledged is committed. The sequence number is taken when the insert begins, so a
lower number may become visible after a higher one. Inline work asks the same questions as a claim: is the key free,
is it this number's turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.claims import rejected
from tests.model.counting import advanced, has_passed, is_stale
from tests.model.finishing import promote, successors
from tests.model.settling import left_key
from tests.model.world import (
    ACKED,
    ACKED_EARLY,
    APART,
    BLOCKED,
    CHECKED,
    DEAD,
    DISCARDED,
    FALLBACK,
    GONE,
    INLINE_QUEUED,
    INLINE_RUN,
    INLINE_SKIP,
    INSERTED,
    LOCKED,
    NEW,
    NONE,
    PLACE_SHIFT,
    READY,
    REJECTED,
    RUNNING,
    SKIPPED,
    STORED,
    TIME,
    UNCLAIMED,
    UNCOMMITTED_INSERTS,
    UNHANDLED,
    WAITING,
    ZOMBIE,
    Delivery,
    Row,
    State,
    Step,
    Worker,
    World,
    moved,
    poorer,
    replaced,
    tidied,
    unfinished,
    with_delivery,
    with_rows,
    with_worker,
)


def receive_steps(world: World, state: State) -> Iterator[Step]:
    """What each delivery can do next."""
    for d in range(len(state.deliveries)):
        if d not in world.scenario.stored_first:
            yield from _delivery_steps(world, state, d)


def _delivery_steps(world: World, state: State, d: int) -> Iterator[Step]:
    delivery = state.deliveries[d]
    phase = delivery.phase
    if phase == ACKED:
        return
    if phase in (NEW, FALLBACK) and (phase == FALLBACK or d not in world.scenario.inline):
        yield from _begin(world, state, d)
    elif phase == REJECTED:
        yield from _store_dead(world, state, d)
    elif phase in (NEW, LOCKED, INLINE_QUEUED, INLINE_RUN, INLINE_SKIP):
        yield from _process(world, state, d)
    elif phase == CHECKED:
        yield _at(state, d, _numbered(world, state, d, INSERTED), "insert")
    elif phase == BLOCKED:
        yield from _unblock(world, state, d)
    elif phase == INSERTED:
        if not world.guards.acknowledge_after_commit:
            yield _at(state, d, delivery._replace(phase=ACKED_EARLY), "acknowledge before commit")
        yield _commit(world, state, d)
    elif phase == ACKED_EARLY:
        yield _commit(world, state, d)
    else:
        yield _at(state, d, Delivery(ACKED), "acknowledge")


def _begin(world: World, state: State, d: int) -> Iterator[Step]:
    m = world.delivers[d]
    if state.rows[m].state != NONE:
        event = "duplicate while in flight" if state.rows[m].claim else "duplicate"
        yield _at(state, d, _answered(world), event)
    elif not world.guards.insert_is_unique:
        yield _at(state, d, Delivery(CHECKED), "look for the row")
    elif _conflicts(world, state, d):
        yield _at(state, d, _numbered(world, state, d, BLOCKED), "duplicate while in flight")
    elif world.scenario.receive_steps == 1:
        yield _commit(world, with_delivery(state, d, _numbered(world, state, d, INSERTED)), d)
    else:
        yield _at(state, d, _numbered(world, state, d, INSERTED), "insert")


def _unblock(world: World, state: State, d: int) -> Iterator[Step]:
    """The transaction it waited for is over: it was a duplicate, or (rolled back) it inserts after all."""
    if state.rows[world.delivers[d]].state != NONE:
        yield _at(state, d, _answered(world), "duplicate")
    elif not _conflicts(world, state, d):
        yield _at(state, d, state.deliveries[d]._replace(phase=INSERTED), "insert")


def _process(world: World, state: State, d: int) -> Iterator[Step]:
    """Inline: key lock, then (a new statement) insert and run or insert and queue, then commit."""
    m = world.delivers[d]
    phase = state.deliveries[d].phase
    if phase == NEW:
        free = not world.key_of[m] & world.locks(state)[1]
        if free or not world.guards.inline_takes_key_lock:
            yield _at(state, d, Delivery(LOCKED, after=_acknowledged(world, state, d)), "inline: key lock")
    elif phase == LOCKED:
        if state.rows[m].state != NONE:
            yield _at(state, d, _answered(world), "duplicate")
        elif not _conflicts(world, state, d):
            yield _take_turn(world, state, d)
    elif phase == INLINE_QUEUED:
        yield _commit(world, state, d)
    elif phase == INLINE_SKIP:
        yield _commit_skip(world, state, d)
    else:
        yield _commit_inline(world, state, d)
        if state.budget.retries:
            raised = with_delivery(poorer(state, "retries"), d, Delivery(FALLBACK))
            yield Step("inline: handler raises", -1 - d, 0, raised, progress=False)
        if state.budget.rejects:
            raised = with_delivery(poorer(state, "rejects"), d, Delivery(REJECTED))
            yield Step("inline: handler rejects", -1 - d, 0, raised, progress=False)


def _take_turn(world: World, state: State, d: int) -> Step:
    """Under the key lock: run when the key is free and the number is the next; skip a stale one; else queue it."""
    m = world.delivers[d]
    busy = any(unfinished(state.rows[other]) for other in world.siblings[m])
    phase, event = (INLINE_QUEUED, "inline: key is busy, queue") if busy else (INLINE_RUN, "inline: run")
    if not busy and world.counted and world.guards.inline_asks_the_gate:
        wanted = state.applied[world.key_index[m]] + 1
        if world.number[m] < wanted:
            phase, event = INLINE_SKIP, "inline: stale"
        elif world.number[m] > wanted:
            phase, event = INLINE_QUEUED, "inline: a number is missing, queue"
    chosen = _numbered(world, state, d, phase)
    return _at(state, d, chosen._replace(after=state.deliveries[d].after), event)


def _store_dead(world: World, state: State, d: int) -> Iterator[Step]:
    """The handler rejected it and all was rolled back: store it dead; with `on_dead="continue"`, out of its key."""
    m = world.delivers[d]
    goes_on = world.scenario.continues and world.guards.inline_continues
    locked = goes_on and world.guards.continue_takes_key_lock and world.locks(state)[1] & world.key_of[m]
    if state.rows[m].state != NONE:
        yield _at(state, d, _answered(world), "duplicate")
    elif not _conflicts(world, state, d) and not locked:
        inserted = _numbered(world, state, d, INSERTED)
        dead = Row(DEAD, seq=inserted.seq, after=inserted.after)
        after = with_rows(state, replaced(state.rows, m, dead))
        after = left_key(world, after, m) if goes_on else after
        yield _at(after, d, _answered(world), "inline: store dead, key goes on" if goes_on else "inline: store dead")


def _commit(world: World, state: State, d: int) -> Step:
    delivery = state.deliveries[d]
    m = world.delivers[d]
    row = state.rows[m]
    others = [state.rows[other] for other in world.siblings[m]]
    late = any(unfinished(other) and other.seq > delivery.seq for other in others)
    if row.state == NONE:
        row = Row(WAITING if delivery.flag else READY, seq=delivery.seq, after=delivery.after)
    elif row.state in (GONE, DISCARDED):  # without the unique key: a second queue row for the same message
        row = Row(READY, seq=delivery.seq, effects=row.effects)
    after = with_rows(state, replaced(state.rows, m, row))
    return _at(after, d, _answered(world), "late commit" if late else "commit the insert")


def _commit_inline(world: World, state: State, d: int) -> Step:
    delivery = state.deliveries[d]
    m = world.delivers[d]
    row = Row(GONE, effects=state.rows[m].effects + 1)
    late = any(unfinished(state.rows[p]) and delivery.after >> p & 1 for p in world.siblings[m])
    broken = "order" if late else ""
    applied = state.applied
    if world.counted:
        if is_stale(world, state.rows, m):
            broken = broken or "stale"
        elif not has_passed(world, state.rows, m, world.number[m] - 1):
            broken = broken or "gap"
        applied = advanced(world, applied, 1 << m)
    after = with_rows(state, replaced(state.rows, m, row), applied)
    return Step("inline: commit", -1 - d, 0, with_delivery(after, d, _answered(world)), broken=broken)


def _commit_skip(world: World, state: State, d: int) -> Step:
    after = with_rows(state, replaced(state.rows, world.delivers[d], Row(SKIPPED)))
    return _at(after, d, _answered(world), "inline: skip")


def store_first_steps(world: World, state: State, w: int) -> Iterator[Step]:
    """After a crash: a message is stored with a claim of the process that handles it, so that a killer is counted."""
    worker = state.workers[w]
    for d in world.scenario.stored_first:
        m = world.delivers[d]
        if state.deliveries[d].phase != NEW:
            continue
        if state.rows[m].state != NONE:
            yield _at(state, d, Delivery(ACKED), "duplicate")
        elif worker.life == ZOMBIE and world.guards.store_first_needs_worker_row:
            yield rejected(state, w, "zombie claim refused")
        else:
            row = Row(
                READY,
                w + 1,
                isolation=APART if world.scenario.group > 1 else 0,
                seq=_numbered(world, state, d, INSERTED).seq,
            )
            owner = Worker(worker.life, RUNNING, 1 << m, abandoned=worker.abandoned)
            stored = with_worker(state, w, owner, replaced(state.rows, m, row))
            yield Step("store with a claim", w, 1 << m, with_delivery(stored, d, Delivery(ACKED)))


def adopt_steps(world: World, state: State) -> Iterator[Step]:
    """A process that knows the type takes an unhandled message up: its place may be another, now that it counts."""
    row_locks, key_locks = world.locks(state)
    for m, row in enumerate(state.rows):
        locked = key_locks & world.key_of[m] and world.guards.adopt_takes_key_lock
        if row.state != UNHANDLED or locked or row_locks >> m & 1:
            continue
        rows = [other._replace(after=other.after & ~(1 << m)) for other in state.rows]  # no promise about its old place
        rows[m] = moved(row, READY, UNCLAIMED)._replace(seq=world.numbered(m, row.seq), after=0)
        if world.guards.adopt_promotes:
            promote(rows, successors(world, tuple(rows), 1 << m))
        yield Step("adopt", TIME, 1 << m, tidied(world, with_rows(state, tuple(rows))))


def _answered(world: World) -> Delivery:
    return Delivery(STORED if world.scenario.receive_steps == 3 else ACKED)


def _conflicts(world: World, state: State, d: int) -> bool:
    """Whether another transaction has inserted the same message and is still open."""
    return any(
        other != d and world.delivers[other] == world.delivers[d] and delivery.phase in UNCOMMITTED_INSERTS
        for other, delivery in enumerate(state.deliveries)
    )


def _numbered(world: World, state: State, d: int, phase: int) -> Delivery:
    """The delivery at the start of its insert: it takes the next number and remembers who was before it."""
    m = world.delivers[d]
    key = world.key_of[m]
    numbers = [state.rows[other].seq for other in (m, *world.siblings[m])]
    for other, delivery in zip(world.delivers, state.deliveries, strict=True):
        if world.key_of[other] == key:
            numbers.append(delivery.seq)
    seen = any(unfinished(state.rows[other]) for other in world.siblings[m])
    flag = int(seen and not world.guards.park_at_claim)
    if world.placed:
        arrival = max(number & (1 << PLACE_SHIFT) - 1 for number in numbers) + 1
        return Delivery(phase, world.numbered(m, arrival), 0, flag)
    return Delivery(phase, max(numbers) + 1, _acknowledged(world, state, d), flag)


def _acknowledged(world: World, state: State, d: int) -> int:
    """Unfinished messages of the key whose receive has returned: this one must come after them.

    Not where places are given: then they decide, and what must come first is found when a row is picked.
    """
    if world.placed:
        return 0
    answered = {m for m, it in zip(world.delivers, state.deliveries, strict=True) if it.phase == ACKED}
    answered.update(world.scenario.messages.index(name) for name in world.scenario.received)
    before = [p for p in world.siblings[world.delivers[d]] if p in answered]
    return sum(1 << p for p in before if unfinished(state.rows[p]))


def _at(state: State, d: int, delivery: Delivery, event: str) -> Step:
    return Step(event, -1 - d, 0, with_delivery(state, d, delivery))
