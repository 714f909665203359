"""What people do: redrive, discard, unblock; and a second operator at the same moment.

Invariant: a message leaves its key, by whoever's hand, only under the key lock, and its successor is promoted in the
same commit. Where numbers count, only the first of a key may be given up: its progress would pass over the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.calling import resolve_steps
from tests.model.counting import advanced, has_earlier, passed_over
from tests.model.finishing import promote, successors
from tests.model.settling import out_of_key
from tests.model.world import (
    DEAD,
    DETACHED,
    DISCARDED,
    GIVEN_UP,
    LOOSE,
    OPERATOR,
    READY,
    SCHEDULED,
    UNCLAIMED,
    Row,
    State,
    Step,
    World,
    poorer,
    replaced,
    tidied,
    unfinished,
    with_rows,
)


def operator_steps(world: World, state: State) -> Iterator[Step]:
    """Nothing but a row behind a dead one may depend on these."""
    row_locks, key_locks = world.locks(state)
    for m, row in enumerate(state.rows):
        if row_locks >> m & 1 or not (READY <= row.state <= DEAD or row.state in (DETACHED, SCHEDULED)):
            continue
        if state.budget.redrives:
            yield from _redrive(world, state, m)
        if row.state == DETACHED:
            yield _drop(state, m, "discard")
        elif row.state == DEAD or (world.scenario.discard_any and row.claim == UNCLAIMED):
            yield from _give_up(world, state, m, locked=bool(key_locks & world.key_of[m]))
    if world.scenario.clerks:
        yield from _clerk_steps(world, state)
    if world.scenario.effect:
        yield from resolve_steps(world, state)


def _give_up(world: World, state: State, m: int, *, locked: bool) -> Iterator[Step]:
    """Discard the message, or unblock its key."""
    guards = world.guards
    if world.counted and guards.give_up_only_at_head and has_earlier(world, state.rows, m):
        return
    if not (locked and guards.discard_takes_key_lock):
        yield _discard(world, state, m)
    if state.rows[m].state == DEAD and world.scenario.unblocks and not (locked and guards.unblock_takes_key_lock):
        yield _unblock(world, state, m)


def _redrive(world: World, state: State, m: int) -> Iterator[Step]:
    """A dead message becomes ready; one that has left its key takes its old place in it, if the operator says so."""
    row = state.rows[m]
    if row.state not in (DEAD, DETACHED) and world.guards.redrive_only_dead:
        return
    driven = row._replace(state=READY, claim=UNCLAIMED, crashes=0)
    event = "redrive"
    if row.state == DETACHED:
        event = "redrive out of order"
        driven = driven._replace(marks=row.marks | (0 if world.guards.redrive_restores_key else LOOSE))
    after = with_rows(poorer(state, "redrives"), replaced(state.rows, m, driven))
    yield Step(event, OPERATOR, 1 << m, after, progress=False)


def _discard(world: World, state: State, m: int) -> Step:
    rows = list(state.rows)
    rows[m] = _discarded(rows[m])
    promoted = successors(world, state.rows, 1 << m) if world.guards.discard_promotes else 0
    promote(rows, promoted)
    applied, broken = _progress(world, state, m, advances=world.guards.discard_advances)
    after = tidied(world, with_rows(state, tuple(rows), applied))
    event = "discard and promote" if promoted else "discard"
    return Step(event, OPERATOR, 1 << m, after, progress=False, broken=broken)


def _unblock(world: World, state: State, m: int) -> Step:
    """A key goes on without its dead message, which stays dead."""
    rows = list(state.rows)
    rows[m] = out_of_key(world, rows[m])
    promoted = successors(world, state.rows, 1 << m) if world.guards.unblock_promotes else 0
    promote(rows, promoted)
    applied, broken = _progress(world, state, m, advances=world.guards.unblock_advances)
    after = tidied(world, with_rows(state, tuple(rows), applied))
    event = "unblock the key and promote" if promoted else "unblock the key"
    return Step(event, OPERATOR, 1 << m, after, progress=False, broken=broken)


def _progress(world: World, state: State, m: int, *, advances: bool) -> tuple[tuple[int, ...], str]:
    """How far the key is after this message was given up, and whether that passes over somebody."""
    if not world.counted or not advances:
        return state.applied, ""
    return advanced(world, state.applied, 1 << m), passed_over(world, state, m)


def _clerk_steps(world: World, state: State) -> Iterator[Step]:
    """A discard in two statements: the first reads the key of the row, without a lock; the second removes it."""
    if not state.clerk:
        for m, row in enumerate(state.rows):
            if row.state == DETACHED:
                looked = state._replace(clerk=m + 1)
                yield Step("second operator: look, no key", OPERATOR, 1 << m, looked, progress=False)
        return
    m = state.clerk - 1
    row = state.rows[m]
    done = state._replace(clerk=0)
    same = row.state == DETACHED
    if same or (unfinished(row) and row.claim == UNCLAIMED and not world.guards.discard_checks_key_again):
        if not world.locks(state)[0] >> m & 1:
            yield _drop(done, m, "second operator: discard")
    else:
        yield Step("second operator: nothing to discard", OPERATOR, 1 << m, done, progress=False)


def _drop(state: State, m: int, event: str) -> Step:
    """Remove a row that has no key: no lock, nobody to promote."""
    rows = replaced(state.rows, m, _discarded(state.rows[m]))
    return Step(event, OPERATOR, 1 << m, with_rows(state, rows), progress=False)


def _discarded(row: Row) -> Row:
    return Row(DISCARDED, effects=row.effects, marks=row.marks & GIVEN_UP)
