"""The relay: outgoing messages, written by the commit of the handler that sent them, published, then finished.

Invariant: an outgoing message exists exactly when the handler that sent it has committed, and it is finished only
after it was published. A crash in between publishes it again; nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.world import (
    ALIVE,
    GONE,
    IDLE,
    NONE,
    OWING,
    READY,
    Row,
    Rows,
    State,
    Step,
    Worker,
    World,
    bits,
    poorer,
    replaced,
    unfinished,
    with_rows,
    with_worker,
)

TWICE = 2  # as often as matters


def sent(world: World, rows: list[Row], finished: int) -> None:
    """The commit of the handlers makes visible what they sent."""
    if world.guards.send_before_commit:
        for m in bits(finished):
            _write(world, rows, world.sent[m])


def _write(world: World, rows: list[Row], messages: int) -> None:
    for o in bits(messages):
        if rows[o].state == NONE:
            there = [p for p in world.siblings[o] if unfinished(rows[p])]
            seq = max((rows[p].seq for p in there), default=0) + 1
            rows[o] = Row(READY, seq=seq, after=sum(1 << p for p in there))


def owed_after(world: World, worker: Worker, following: Worker) -> Worker:
    """Only in broken variants: what is still to be written or published after the commit, from memory."""
    if not world.outgoing:
        return following
    owed = 0 if world.guards.publish_before_finish else worker.batch & world.outgoing
    if not world.guards.send_before_commit:
        for m in bits(worker.batch):
            owed |= world.sent[m]
    return Worker(worker.life, OWING, owed) if owed else following


def has_published(world: World, worker: Worker) -> bool:
    """Whether a worker may finish its batch: all that is to be published was."""
    to_publish = worker.batch & world.outgoing
    return to_publish & worker.knows == to_publish or not world.guards.publish_before_finish


def relay_steps(world: World, state: State, w: int) -> Iterator[Step]:
    """Publish one after the other; where one fails, what was published before it is finished."""
    worker = state.workers[w]
    if not worker.batch & world.outgoing:
        if not world.guards.send_inside_transaction:
            yield from _send_outside(world, state, w)
        return
    left = worker.batch & ~worker.knows
    if not left or not world.guards.publish_before_finish:
        return
    m = min(bits(left), key=lambda o: state.rows[o].seq)
    yield _publish(state, w, m, worker._replace(knows=worker.knows | 1 << m))
    if worker.knows and state.budget.retries:
        if world.guards.publish_failure_keeps_the_rest:
            after = worker._replace(batch=worker.knows, alone=worker.alone | left)
        else:
            after = worker._replace(knows=0)
        failed = with_worker(poorer(state, "retries"), w, after)
        yield Step("publish fails inside a group", w, 1 << m, failed, progress=False)


def _publish(state: State, w: int, m: int, worker: Worker) -> Step:
    row = state.rows[m]
    first = [p for p in bits(row.after) if unfinished(state.rows[p])]
    early = not row.effects and any(not state.rows[p].effects for p in first)
    rows = replaced(state.rows, m, row._replace(effects=min(row.effects + 1, TWICE)))
    event = "publish again" if row.effects else "publish"
    return Step(event, w, 1 << m, with_worker(state, w, worker, rows), broken="order" if early else "")


def _send_outside(world: World, state: State, w: int) -> Iterator[Step]:
    """A broken variant: what a handler sends is committed on its own, at once."""
    rows = list(state.rows)
    for m in bits(state.workers[w].batch):
        _write(world, rows, world.sent[m])
    if tuple(rows) != state.rows:
        yield Step("send outside of the transaction", w, state.workers[w].batch, with_rows(state, tuple(rows)))


def owing_steps(world: World, state: State, w: int) -> Iterator[Step]:
    """Only in broken variants: write or publish from memory what the commit did not contain; or die before."""
    worker = state.workers[w]
    m = bits(worker.batch)[0]
    left = worker._replace(batch=worker.batch ^ 1 << m)
    paid = left if left.batch else Worker(worker.life)
    if state.rows[m].state == NONE:
        rows = list(state.rows)
        _write(world, rows, 1 << m)
        yield Step("write after the commit", w, 1 << m, with_worker(state, w, paid, tuple(rows)))
    else:
        yield _publish(state, w, m, paid)
    if state.budget.crashes:
        gone = with_worker(poorer(state, "crashes"), w, Worker(ALIVE, IDLE))
        yield Step("crash", w, worker.batch, gone, progress=False)


def relay_fault(world: World, state: State) -> str:
    """What is wrong with the outgoing messages, or nothing."""
    owed = 0
    for worker in state.workers:
        if worker.phase == OWING:
            owed |= worker.batch
    budget = world.scenario.budget
    for m, sends in enumerate(world.sent):
        for o in bits(sends):
            kind = _fault(state.rows, m, o)
            if kind and (kind != "lost" or not owed >> o & 1):
                return kind
            if state.rows[o].effects > 1 and not (budget.crashes or budget.stops):
                return "doubled"
    return ""


def _fault(rows: Rows, m: int, o: int) -> str:
    committed = rows[m].state == GONE
    if rows[o].effects and not committed:
        return "phantom"
    if committed and (rows[o].state == NONE or (rows[o].state == GONE and not rows[o].effects)):
        return "lost"
    return ""
