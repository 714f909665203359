"""The world of the model: what is committed, who is in the middle of what, and what may still go wrong.

Invariant: a `State` holds everything the future depends on and nothing else, so equal states may be merged.
Writes of an open transaction are never in `State.rows`; they are implied by the phase of whoever holds it,
and its locks are derived from the same phase. That is READ COMMITTED: a step reads `rows`, i.e. what was
committed when its statement began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Final, NamedTuple, TypeVar

from tests.model.bounds import Budget, Scenario
from tests.model.guards import ALL_GUARDS, Guards

Item = TypeVar("Item")

# States of a message. NONE: no ledger row. GONE: ledger row and no queue row, which is "done".
NONE: Final = 0
READY: Final = 1
RETRY: Final = 2
WAITING: Final = 3
UNHANDLED: Final = 4
DEAD: Final = 5
GONE: Final = 6
DISCARDED: Final = 7
SKIPPED: Final = 8  # finished without running: a later number of its key was applied
DETACHED: Final = 9  # dead, and no longer in its key
SCHEDULED: Final = 10  # not due yet, and not in its key yet

# Marks on a row: what only some worlds need to know about it.
HELD: Final = 1  # waiting, with a deadline
OVER: Final = 2  # its time to wait for the number before it is over; scheduled: it is due
GIVEN_UP: Final = 4  # ghost: it left its key dead, at least once
LOOSE: Final = 8  # only in a broken variant: in the queue, but not in its key
INTENDED: Final = 16  # once: the intent is committed
RECORDED: Final = 32  # once: the result is committed
CALLED: Final = 64  # ghost: the call was made
CALLED_AGAIN: Final = 128  # ghost
EFFECT_MARKS: Final = INTENDED | RECORDED | CALLED | CALLED_AGAIN  # they have a table of their own

# Life of a worker process. Its row in `worker` exists while it is ALIVE, STOPPED or KILLED.
ALIVE: Final = 0
STOPPED: Final = 1  # suspended; its lease runs out
KILLED: Final = 2  # dead; nobody has taken over yet
SUSPENDED_ZOMBIE: Final = 3  # suspended and taken over
ZOMBIE: Final = 4  # resumed, and does not know that it was taken over

# What a worker is in the middle of. CLAIM_* and FINISH_* are open transactions.
IDLE: Final = 0
CLAIM_VIEW: Final = 1  # only in a broken variant: a view taken before the locks
CLAIM_PICKED: Final = 2  # worker row, rows and key locks held
CLAIM_CHECKED: Final = 3  # head check done, commit pending
RUNNING: Final = 4  # claim committed, handler at work; this and all that follows believes to own its batch
FINISH_VIEW: Final = 5  # only in a broken variant
FINISH_LOCKED: Final = 6  # key locks held
FINISH_DELETED: Final = 7  # guarded delete done
FINISH_PROMOTED: Final = 8  # successor chosen, commit pending
OWING: Final = 9  # only in a broken variant: finished, and something is still to be sent

# What a delivery is in the middle of.
NEW: Final = 0
CHECKED: Final = 1  # only in a broken variant: looked, saw nothing, has not inserted yet
BLOCKED: Final = 2  # its insert waits for an uncommitted one of the same message; its number is taken
INSERTED: Final = 3  # uncommitted
STORED: Final = 4  # committed, not yet acknowledged
ACKED: Final = 5
ACKED_EARLY: Final = 6  # only in a broken variant: acknowledged, uncommitted
LOCKED: Final = 7  # inline: key lock held, nothing inserted yet
INLINE_QUEUED: Final = 8  # inline: inserted for the workers, uncommitted
INLINE_RUN: Final = 9  # inline: effect written, uncommitted
FALLBACK: Final = 10  # inline: the handler raised; store it like any other
INLINE_SKIP: Final = 11  # inline: its number is stale; inserted without a queue row, uncommitted
REJECTED: Final = 12  # inline: the handler rejected it; store it dead

UNCOMMITTED_INSERTS: Final = frozenset({INSERTED, ACKED_EARLY, INLINE_QUEUED, INLINE_RUN, INLINE_SKIP})
INLINE_LOCKED: Final = frozenset({LOCKED, INLINE_QUEUED, INLINE_RUN, INLINE_SKIP})

# Who makes a step: workers from 0, deliveries from -1 downwards, and these.
OPERATOR: Final = -100
TIME: Final = -101

UNCLAIMED: Final = 0
STRAY_CLAIM: Final = 9  # a claim of a worker that no longer exists: nobody can ever match or clear it
ALONE: Final = 1
APART: Final = 2
CRASH_LIMIT: Final = 2  # three in the product; two keeps the space small and shows the same
PLACE_SHIFT: Final = 3


class Row(NamedTuple):
    """One message: its ledger and queue row, and two ghosts that only the invariants read."""

    state: int = NONE
    claim: int = UNCLAIMED  # 1 or 2: that worker's. One claim at a time per worker, so this is (worker, token)
    isolation: int = 0  # its level: how it runs after a process has died
    crashes: int = 0
    seq: int = 0  # its place in the key: its number, or (see `World.numbered`) its given place before that
    after: int = 0  # ghost: messages of the key that must take effect before this one
    effects: int = 0  # ghost: how often the effect was committed; for an outgoing message, how often it was published
    marks: int = 0


Rows = tuple[Row, ...]


class Worker(NamedTuple):
    """One worker process; `batch` and `alone` are what it believes to hold (bit masks of messages)."""

    life: int = ALIVE
    phase: int = IDLE
    batch: int = 0
    alone: int = 0
    extra: int = 0  # claim: kept rows | parked rows << 8; finish: rows to promote
    abandoned: int = 0  # an attempt given up by the watchdog whose transaction is still open
    knows: int = 0  # numbers: stale rows | late << 8 (| held << 16, in a claim); relay: published; once: how far


class Delivery(NamedTuple):
    """One delivery of a message; `seq` and `after` belong to its uncommitted insert."""

    phase: int = NEW
    seq: int = 0
    after: int = 0
    flag: int = 0  # only in a broken variant: `waiting` decided at insert


class State(NamedTuple):
    """Everything the future depends on."""

    rows: Rows
    workers: tuple[Worker, ...]
    deliveries: tuple[Delivery, ...]
    budget: Budget
    applied: tuple[int, ...] = ()  # `progress`: the highest number applied, per key, where numbers count
    clerk: int = 0  # an operator who has read that message (counted from 1) without a key and will discard it


class Step(NamedTuple):
    """One move: what happened, to whom, and the state after it."""

    event: str
    actor: int
    messages: int
    state: State
    progress: bool = True  # False: a fault or a person; nothing may depend on it to get unstuck
    broken: str = ""  # an invariant of the move itself that was violated


@dataclass(frozen=True)
class World:
    """A scenario under given guards, with what can be computed beforehand."""

    scenario: Scenario
    guards: Guards = ALL_GUARDS
    key_of: tuple[int, ...] = field(init=False)
    siblings: tuple[tuple[int, ...], ...] = field(init=False)
    delivers: tuple[int, ...] = field(init=False)
    poison: int = field(init=False)
    twins: tuple[tuple[int, int], ...] = field(init=False)  # deliveries that are interchangeable
    number: tuple[int, ...] = field(init=False)  # the digit in its name
    key_index: tuple[int, ...] = field(init=False)
    placed: bool = field(init=False)
    counted: bool = field(init=False)
    sent: tuple[int, ...] = field(init=False)  # what the handler of each message sends, as masks
    outgoing: int = field(init=False)

    def __post_init__(self) -> None:
        scenario = self.scenario
        messages = scenario.messages
        letters = sorted({name[0] for name in messages})
        computed = {
            "key_of": tuple(1 << letters.index(name[0]) for name in messages),
            "key_index": tuple(letters.index(name[0]) for name in messages),
            "siblings": tuple(self._same_key(name) for name in messages),
            "delivers": tuple(messages.index(d) for d in scenario.deliveries),
            "poison": messages.index(scenario.poison) if scenario.poison else -1,
            "twins": self._twins(),
            "number": tuple(int(name[1]) for name in messages),
            "placed": scenario.placed or scenario.counted,
            "counted": scenario.counted,
            "sent": tuple(sum(1 << messages.index(b) for a, b in scenario.sends if a == name) for name in messages),
            "outgoing": sum(1 << messages.index(name) for _, name in scenario.sends),
        }
        for name, value in computed.items():
            object.__setattr__(self, name, value)

    def _same_key(self, name: str) -> tuple[int, ...]:
        """The other messages of its key."""
        names = self.scenario.messages
        return tuple(m for m, other in enumerate(names) if other[0] == name[0] and other != name)

    def initial(self) -> State:
        """Two idle workers, nothing in the tables but what the scenario says."""
        scenario = self.scenario
        rows = tuple(self._received(m, name) for m, name in enumerate(scenario.messages))
        applied = (0,) * len(set(self.key_of)) if self.counted else ()
        workers = (Worker(), Worker())
        return State(rows, workers, (Delivery(),) * len(scenario.deliveries), scenario.budget, applied)

    def _received(self, m: int, name: str) -> Row:
        scenario = self.scenario
        if name in scenario.scheduled:
            return Row(SCHEDULED, seq=scenario.scheduled.index(name) + 1)
        if name in scenario.unhandled:
            return Row(UNHANDLED, seq=scenario.unhandled.index(name) + 1)
        if name not in scenario.received:
            return Row()
        arrival = len(scenario.scheduled) + scenario.received.index(name) + 1
        return Row(READY, seq=self.numbered(m, arrival), after=0 if self.placed else self._before(name))

    def numbered(self, m: int, arrival: int) -> int:
        """Its place in its key, as one number to compare: (place, number), or the number alone."""
        return self.number[m] << PLACE_SHIFT | arrival if self.placed else arrival

    def _twins(self) -> tuple[tuple[int, int], ...]:
        """At most one duplicate per message is in any scenario, so pairs are enough."""
        names, inline, stored_first = self.scenario.deliveries, self.scenario.inline, self.scenario.stored_first
        return tuple(
            (i, j)
            for j in range(len(names))
            for i in range(j)
            if names[i] == names[j] and (i in inline) == (j in inline) and (i in stored_first) == (j in stored_first)
        )

    def _before(self, name: str) -> int:
        received = self.scenario.received
        earlier = received[: received.index(name)]
        names = self.scenario.messages
        return sum(1 << names.index(other) for other in earlier if other[0] == name[0])

    def keys(self, messages: int) -> int:
        """The keys (a bit mask) of a mask of messages."""
        mask = 0
        for m in bits(messages):
            mask |= self.key_of[m]
        return mask

    def locks(self, state: State) -> tuple[int, int]:
        """Row locks and key locks held by open transactions, as masks."""
        rows = keys = 0
        for worker in state.workers:
            phase = worker.phase
            if phase in (CLAIM_PICKED, CLAIM_CHECKED):
                rows |= worker.batch
                if self.guards.claim_takes_key_lock:
                    keys |= self.keys(worker.batch)
            elif phase in (FINISH_LOCKED, FINISH_DELETED, FINISH_PROMOTED):
                if phase != FINISH_LOCKED:
                    rows |= worker.batch | worker.extra
                if self.guards.finish_takes_key_lock:
                    keys |= self.keys(worker.batch)
        if self.scenario.inline and self.guards.inline_takes_key_lock:
            for d, delivery in enumerate(state.deliveries):
                if delivery.phase in INLINE_LOCKED:
                    keys |= self.key_of[self.delivers[d]]
        return rows, keys


def bits(mask: int) -> tuple[int, ...]:
    """The members of a bit mask."""
    return _BITS[mask]


_BITS: Final = tuple(tuple(i for i in range(8) if mask >> i & 1) for mask in range(256))


def unfinished(row: Row) -> bool:
    """Whether the message has a queue row, in its key."""
    return READY <= row.state <= DEAD


@cache
def moved(row: Row, state: int, claim: int) -> Row:
    """The row in another state, with another claim; whatever moves it, its deadline is off."""
    return row._replace(state=state, claim=claim, marks=row.marks & ~HELD)


@cache
def claimed_by(row: Row, claim: int) -> Row:
    """The same row with another's claim."""
    return row._replace(claim=claim)


@cache
def marked(row: Row, on: int, off: int = 0) -> Row:
    """The row with some marks on and some off."""
    return row._replace(marks=row.marks & ~off | on)


@cache
def spent(budget: Budget, what: str) -> Budget:
    """The budget with one less of something."""
    return budget._replace(**{what: getattr(budget, what) - 1})


@cache
def turned(worker: Worker, life: int) -> Worker:
    """The worker in another life."""
    return worker._replace(life=life)


def replaced(items: tuple[Item, ...], index: int, item: Item) -> tuple[Item, ...]:
    """The tuple with one item changed."""
    return (*items[:index], item, *items[index + 1 :])


def subsets(candidates: list[int], size: int) -> Iterator[int]:
    """All sets of one up to `size` candidates, as masks."""
    for count in range(1, size + 1):
        for chosen in combinations(candidates, count):
            yield sum(1 << m for m in chosen)


def with_worker(state: State, w: int, worker: Worker, rows: Rows | None = None) -> State:
    """The state with one worker, and maybe rows, changed."""
    before, workers, deliveries, budget, applied, clerk = state
    workers = replaced(workers, w, worker)
    return State(before if rows is None else rows, workers, deliveries, budget, applied, clerk)


def with_delivery(state: State, d: int, delivery: Delivery) -> State:
    """The state with one delivery changed."""
    rows, workers, deliveries, budget, applied, clerk = state
    return State(rows, workers, replaced(deliveries, d, delivery), budget, applied, clerk)


def with_rows(state: State, rows: Rows, applied: tuple[int, ...] | None = None) -> State:
    """The state with rows, and maybe the progress of keys, changed."""
    _, workers, deliveries, budget, before, clerk = state
    return State(rows, workers, deliveries, budget, before if applied is None else applied, clerk)


def poorer(state: State, what: str) -> State:
    """The state with one less of something in its budget."""
    rows, workers, deliveries, budget, applied, clerk = state
    return State(rows, workers, deliveries, spent(budget, what), applied, clerk)


def tidied(world: World, state: State) -> State:
    """The state with its sequence numbers closed up and promises about finished messages forgotten.

    Only the order of the numbers matters to anybody, so this merges states that have the same future. Places that
    are given are left as they are: a later message may come in between.
    """
    alive = 0
    for m, row in enumerate(state.rows):
        if unfinished(row):
            alive |= 1 << m
    if world.placed:
        return with_rows(state, tuple([_renumbered_row(row, row.seq, row.after & alive) for row in state.rows]))
    numbers = _numbers(world, state)
    rows = list(state.rows)
    for m, row in enumerate(rows):
        if row.seq:
            rank = numbers[world.key_of[m]].index(row.seq) + 1
            rows[m] = _renumbered_row(row, rank, row.after & alive)
    deliveries = list(state.deliveries)
    for d, delivery in enumerate(deliveries):
        if delivery.seq:
            rank = numbers[world.key_of[world.delivers[d]]].index(delivery.seq) + 1
            deliveries[d] = delivery._replace(seq=rank, after=delivery.after & alive)
    return State(tuple(rows), state.workers, tuple(deliveries), state.budget, state.applied, state.clerk)


def _numbers(world: World, state: State) -> dict[int, list[int]]:
    """The numbers in use, by key, in order."""
    numbers: dict[int, list[int]] = {}
    for m, row in enumerate(state.rows):
        if row.seq:
            numbers.setdefault(world.key_of[m], []).append(row.seq)
    for m, delivery in zip(world.delivers, state.deliveries, strict=True):
        if delivery.seq:
            numbers.setdefault(world.key_of[m], []).append(delivery.seq)
    for taken in numbers.values():
        taken.sort()
    return numbers


@cache
def _renumbered_row(row: Row, seq: int, after: int) -> Row:
    return row._replace(seq=seq, after=after)
