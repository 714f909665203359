"""Receive and process: how a delivery becomes a ledger row.

Invariant: whatever is acknowledged is committed. The sequence number is taken when the insert begins, so a
lower number may become visible after a higher one.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.world import (
    ACKED,
    ACKED_EARLY,
    BLOCKED,
    CHECKED,
    DISCARDED,
    FALLBACK,
    GONE,
    INLINE_QUEUED,
    INLINE_RUN,
    INSERTED,
    LOCKED,
    NEW,
    NONE,
    READY,
    STORED,
    UNCOMMITTED_INSERTS,
    WAITING,
    Delivery,
    Row,
    State,
    Step,
    World,
    poorer,
    replaced,
    unfinished,
    with_delivery,
)


def receive_steps(world: World, state: State) -> Iterator[Step]:
    """What each delivery can do next."""
    for d, delivery in enumerate(state.deliveries):
        phase = delivery.phase
        if phase == ACKED:
            continue
        if phase in (NEW, FALLBACK) and (phase == FALLBACK or d not in world.scenario.inline):
            yield from _begin(world, state, d)
        elif phase in (NEW, LOCKED, INLINE_QUEUED, INLINE_RUN):
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
        event = "duplicate while in flight" if state.rows[m].note else "duplicate"
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
            busy = any(unfinished(state.rows[other]) for other in world.siblings[m])
            chosen = _numbered(world, state, d, INLINE_QUEUED if busy else INLINE_RUN)
            after = state.deliveries[d].after
            event = "inline: key is busy, queue" if busy else "inline: run"
            yield _at(state, d, chosen._replace(after=after), event)
    elif phase == INLINE_QUEUED:
        yield _commit(world, state, d)
    else:
        yield _commit_inline(world, state, d)
        if state.budget.retries:
            raised = with_delivery(poorer(state, "retries"), d, Delivery(FALLBACK))
            yield Step("inline: handler raises", -1 - d, 0, raised, progress=False)


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
    after = State(replaced(state.rows, m, row), state.workers, state.deliveries, state.budget)
    return _at(after, d, _answered(world), "late commit" if late else "commit the insert")


def _commit_inline(world: World, state: State, d: int) -> Step:
    delivery = state.deliveries[d]
    m = world.delivers[d]
    row = Row(GONE, effects=state.rows[m].effects + 1)
    late = any(unfinished(state.rows[p]) and delivery.after >> p & 1 for p in world.siblings[m])
    after = State(replaced(state.rows, m, row), state.workers, state.deliveries, state.budget)
    broken = "order" if late else ""
    return Step("inline: commit", -1 - d, 0, with_delivery(after, d, _answered(world)), broken=broken)


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
    return Delivery(phase, max(numbers) + 1, _acknowledged(world, state, d), flag)


def _acknowledged(world: World, state: State, d: int) -> int:
    """Unfinished messages of the key whose receive has returned: this one must come after them."""
    answered = {m for m, it in zip(world.delivers, state.deliveries, strict=True) if it.phase == ACKED}
    answered.update(world.scenario.messages.index(name) for name in world.scenario.received)
    before = [p for p in world.siblings[world.delivers[d]] if p in answered]
    return sum(1 << p for p in before if unfinished(state.rows[p]))


def _at(state: State, d: int, delivery: Delivery, event: str) -> Step:
    return Step(event, -1 - d, 0, with_delivery(state, d, delivery))
