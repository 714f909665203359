"""Effects under `message.once`: intent committed, call made, result committed; each may be the last thing that happens.

Invariant: when a call was made, a committed intent says so, whatever becomes of the handler's transaction. An intent
without a result is called again only where the other side honours the key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.model.claims import claimed, rejected
from tests.model.finishing import after_batch
from tests.model.settling import dead_steps
from tests.model.world import (
    CALLED,
    CALLED_AGAIN,
    DEAD,
    GONE,
    INTENDED,
    KILLED,
    OPERATOR,
    RECORDED,
    RETRY,
    RUNNING,
    UNCLAIMED,
    Row,
    State,
    Step,
    World,
    bits,
    marked,
    moved,
    poorer,
    replaced,
    with_rows,
    with_worker,
)

# How far a handler is.
BEGUN: Final = 0
INTENDS: Final = 1  # the call comes next
HAS_CALLED: Final = 2  # the result is still to be recorded
HAS_RESULT: Final = 3
UNKNOWN: Final = 4  # an earlier attempt may have called
RAISES: Final = 5
HAS_RECORDED: Final = 6  # only in a broken variant: the call is still to be made


def call_steps(world: World, state: State, w: int) -> Iterator[Step]:
    """What the handler of the one message of a worker does next with its call."""
    knows = state.workers[w].knows
    m = bits(state.workers[w].batch)[0]
    if knows == BEGUN:
        yield _intend(world, state, w, m)
    elif knows in (INTENDS, HAS_RECORDED):
        yield from _call(world, state, w, m)
    elif knows == HAS_CALLED:
        on = RECORDED if world.guards.intent_is_committed_first else 0
        yield _known(state, w, m, HAS_RESULT, "record the result", on=on)
    elif knows in (UNKNOWN, RAISES):
        yield from _settle(world, state, w, m)


def _intend(world: World, state: State, w: int, m: int) -> Step:
    """Commit the intent, or find what an earlier attempt has left."""
    marks = state.rows[m].marks
    if marks & RECORDED:
        return _known(state, w, m, HAS_RESULT, "find the result")
    if marks & INTENDED:
        again = world.scenario.effect == "idempotent" or not world.guards.unknown_is_dead
        if again:
            return _known(state, w, m, INTENDS, "find the intent, call again")
        return _known(state, w, m, UNKNOWN, "find the intent, outcome unknown")
    on = INTENDED if world.guards.intent_is_committed_first else 0
    return _known(state, w, m, INTENDS, "intend", on=on)


def _call(world: World, state: State, w: int, m: int) -> Iterator[Step]:
    made = CALLED_AGAIN if state.rows[m].marks & CALLED else CALLED
    if state.workers[w].knows == HAS_RECORDED:
        yield _known(state, w, m, HAS_RESULT, "call", on=made)
        return
    if not world.guards.result_after_call:
        yield _known(state, w, m, HAS_RECORDED, "record the result", on=RECORDED)
        return
    yield _known(state, w, m, HAS_CALLED, "call", on=made)
    if state.budget.retries:
        poor = poorer(state, "retries")
        yield _known(poor, w, m, RAISES, "call fails, and was made", on=made)
        yield _known(poor, w, m, RAISES, "call fails, and was not made")
        yield _known(poor, w, m, RAISES, "call says that it was not made", off=INTENDED)


def _settle(world: World, state: State, w: int, m: int) -> Iterator[Step]:
    """A retry, or, where nobody knows what happened, dead until a person says."""
    if not claimed(state.rows, w) >> m & 1:
        yield rejected(state, w, "zombie settle rejected")
    elif world.locks(state)[0] >> m & 1:
        return
    elif state.workers[w].knows == UNKNOWN:
        yield from dead_steps(world, state, w, m, "settle: outcome unknown")
    else:
        rows = replaced(state.rows, m, moved(state.rows[m], RETRY, UNCLAIMED))
        after = with_worker(state, w, after_batch(world, state.workers[w], rows), rows)
        yield Step("settle: again", w, 1 << m, after)


def _known(  # noqa: PLR0913 - what a step says
    state: State, w: int, m: int, knows: int, event: str, *, on: int = 0, off: int = 0
) -> Step:
    """The worker is one step further; what is committed is so on a connection of its own."""
    rows = replaced(state.rows, m, marked(state.rows[m], on, off))
    return Step(event, w, 1 << m, with_worker(state, w, state.workers[w]._replace(knows=knows), rows))


def resolve_steps(world: World, state: State) -> Iterator[Step]:
    """A person looks at the other side and says truthfully whether the call was made."""
    for m, row in enumerate(state.rows):
        if row.state != DEAD or row.marks & (INTENDED | RECORDED) != INTENDED:
            continue
        if row.marks & CALLED:
            yield _resolved(state, m, marked(row, RECORDED), "resolve: it happened")
        elif not (world.guards.resolve_after_process_is_gone and _may_still_call(state, m)):
            yield _resolved(state, m, marked(row, 0, INTENDED), "resolve: it did not happen")


def _resolved(state: State, m: int, row: Row, event: str) -> Step:
    return Step(event, OPERATOR, 1 << m, with_rows(state, replaced(state.rows, m, row)), progress=False)


def _may_still_call(state: State, m: int) -> bool:
    """Whether a process that has begun the call, and was taken over, may come back and make it."""
    return any(
        worker.life != KILLED and worker.phase == RUNNING and worker.knows == INTENDS and worker.batch >> m & 1
        for worker in state.workers
    )


def effect_fault(world: World, row: Row) -> str:
    """What is wrong with the call of a message, or nothing."""
    if row.marks & CALLED_AGAIN and world.scenario.effect == "once":
        return "called twice"
    return "not called" if row.state == GONE and not row.marks & CALLED else ""
