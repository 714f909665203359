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

Item = TypeVar("Item")

# States of a message. NONE: no ledger row. GONE: ledger row and no queue row, which is "done".
NONE: Final = 0
READY: Final = 1
RETRY: Final = 2
WAITING: Final = 3
DEAD: Final = 4
GONE: Final = 5
DISCARDED: Final = 6

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
RUNNING: Final = 4  # note committed, handler at work; this and all that follows believes to own its batch
FINISH_VIEW: Final = 5  # only in a broken variant
FINISH_LOCKED: Final = 6  # key locks held
FINISH_DELETED: Final = 7  # guarded delete done
FINISH_PROMOTED: Final = 8  # successor chosen, commit pending

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

UNCOMMITTED_INSERTS: Final = frozenset({INSERTED, ACKED_EARLY, INLINE_QUEUED, INLINE_RUN})

NO_NOTE: Final = 0
STRAY_NOTE: Final = 9  # a note of a worker that no longer exists: nobody can ever match or clear it
CRASH_LIMIT: Final = 2  # three in the product; two keeps the space small and shows the same


class Row(NamedTuple):
    """One message: its ledger and queue row, and two ghosts that only the invariants read."""

    state: int = NONE
    note: int = NO_NOTE  # 1 or 2: that worker's. One claim at a time per worker, so this is (worker, token)
    solo: int = 0
    crashes: int = 0
    seq: int = 0
    after: int = 0  # ghost: messages of the key that were acknowledged before this one's receive began
    effects: int = 0  # ghost: how often the effect was committed


Rows = tuple[Row, ...]


class Worker(NamedTuple):
    """One worker process; `batch` and `aside` are what it believes to hold (bit masks of messages)."""

    life: int = ALIVE
    phase: int = IDLE
    batch: int = 0
    aside: int = 0
    extra: int = 0  # claim: kept rows | parked rows << 8; finish: rows to promote
    abandoned: int = 0  # an attempt given up by the watchdog whose transaction is still open


class Delivery(NamedTuple):
    """One delivery of a message; `seq` and `after` belong to its uncommitted insert."""

    phase: int = NEW
    seq: int = 0
    after: int = 0
    flag: int = 0  # only in a broken variant: `waiting` decided at insert


class Budget(NamedTuple):
    """How much may still go wrong. Part of the state, so the space is finite."""

    crashes: int = 0
    stops: int = 0
    redrives: int = 0
    retries: int = 0
    rejects: int = 0
    abandons: int = 0


NO_TROUBLE: Final = Budget()


class State(NamedTuple):
    """Everything the future depends on."""

    rows: Rows
    workers: tuple[Worker, ...]
    deliveries: tuple[Delivery, ...]
    budget: Budget


class Step(NamedTuple):
    """One move: what happened, to whom, and the state after it."""

    event: str
    actor: int
    messages: int
    state: State
    progress: bool = True  # False: a fault or a person; nothing may depend on it to get unstuck
    broken: str = ""  # an invariant of the move itself that was violated


@dataclass(frozen=True)
class Guards:
    """The guards of the protocol; a broken variant switches off exactly one."""

    acknowledge_after_commit: bool = True
    insert_is_unique: bool = True
    park_at_claim: bool = True
    claim_takes_key_lock: bool = True
    claim_needs_worker_row: bool = True
    claim_locks_worker_row: bool = True
    claim_outcome_is_read: bool = True
    head_check_has_new_view: bool = True
    head_check_sees_notes: bool = True
    head_check_sees_retry: bool = True
    head_check_sees_dead: bool = True
    park_only_behind_earlier: bool = True
    finish_takes_key_lock: bool = True
    finish_counts_rows: bool = True
    finish_matches_note: bool = True
    finish_matches_token: bool = True
    promote_after_finish: bool = True
    promote_has_new_view: bool = True
    promote_lowest: bool = True
    settle_matches_note: bool = True
    aside_releases_successors: bool = True
    settle_releases_successors: bool = True
    take_over_clears_notes: bool = True
    charge_only_alone: bool = True
    solo_runs_alone: bool = True
    redrive_only_dead: bool = True
    discard_promotes: bool = True
    discard_takes_key_lock: bool = True
    inline_takes_key_lock: bool = True


@dataclass(frozen=True)
class Scenario:
    """A bounded world; the search visits all of it."""

    name: str
    messages: tuple[str, ...]  # the first letter is the key
    deliveries: tuple[str, ...] = ()
    inline: tuple[int, ...] = ()  # deliveries (by position) that call `process` instead of `receive`
    received: tuple[str, ...] = ()  # already accepted and acknowledged, in this order
    budget: Budget = NO_TROUBLE
    group: int = 1
    fine: bool = False  # transactions of workers statement by statement
    receive_steps: int = 2  # 1: at once; 2: insert, commit (late commits); 3: insert, commit, acknowledge
    receivers_crash: bool = False
    discard_any: bool = False  # an operator may discard any row without a note, not only a dead one
    poison: str = ""  # this message kills its process whenever it runs, and nothing else does


@dataclass(frozen=True)
class World:
    """A scenario under given guards, with what can be computed beforehand."""

    scenario: Scenario
    guards: Guards = Guards()
    key_of: tuple[int, ...] = field(init=False)
    siblings: tuple[tuple[int, ...], ...] = field(init=False)
    delivers: tuple[int, ...] = field(init=False)
    poison: int = field(init=False)
    twins: tuple[tuple[int, int], ...] = field(init=False)  # deliveries that are interchangeable

    def __post_init__(self) -> None:
        messages = self.scenario.messages
        letters = sorted({name[0] for name in messages})
        same = tuple(self._same_key(name) for name in messages)
        poison = messages.index(self.scenario.poison) if self.scenario.poison else -1
        object.__setattr__(self, "key_of", tuple(1 << letters.index(name[0]) for name in messages))
        object.__setattr__(self, "siblings", same)
        object.__setattr__(self, "delivers", tuple(messages.index(d) for d in self.scenario.deliveries))
        object.__setattr__(self, "poison", poison)
        object.__setattr__(self, "twins", self._twins())

    def _same_key(self, name: str) -> tuple[int, ...]:
        """The other messages of its key."""
        names = self.scenario.messages
        return tuple(m for m, other in enumerate(names) if other[0] == name[0] and other != name)

    def initial(self) -> State:
        """Two idle workers, nothing in the tables but what the scenario says."""
        scenario = self.scenario
        rows = tuple(
            Row(READY, seq=scenario.received.index(name) + 1, after=self._before(name))
            if name in scenario.received
            else Row()
            for name in scenario.messages
        )
        return State(rows, (Worker(), Worker()), (Delivery(),) * len(scenario.deliveries), scenario.budget)

    def _twins(self) -> tuple[tuple[int, int], ...]:
        """At most one duplicate per message is in any scenario, so pairs are enough."""
        names, inline = self.scenario.deliveries, self.scenario.inline
        return tuple(
            (i, j)
            for j in range(len(names))
            for i in range(j)
            if names[i] == names[j] and (i in inline) == (j in inline)
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
                if delivery.phase in (LOCKED, INLINE_QUEUED, INLINE_RUN):
                    keys |= self.key_of[self.delivers[d]]
        return rows, keys


def bits(mask: int) -> tuple[int, ...]:
    """The members of a bit mask."""
    return _BITS[mask]


_BITS: Final = tuple(tuple(i for i in range(8) if mask >> i & 1) for mask in range(256))


def unfinished(row: Row) -> bool:
    """Whether the message has a queue row."""
    return READY <= row.state <= DEAD


@cache
def moved(row: Row, state: int, note: int) -> Row:
    """The row in another state, with another note."""
    return row._replace(state=state, note=note)


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
    workers = replaced(state.workers, w, worker)
    return State(state.rows if rows is None else rows, workers, state.deliveries, state.budget)


def with_delivery(state: State, d: int, delivery: Delivery) -> State:
    """The state with one delivery changed."""
    return State(state.rows, state.workers, replaced(state.deliveries, d, delivery), state.budget)


def poorer(state: State, what: str) -> State:
    """The state with one less of something in its budget."""
    return State(state.rows, state.workers, state.deliveries, spent(state.budget, what))


def tidied(world: World, state: State) -> State:
    """The state with its sequence numbers closed up and promises about finished messages forgotten.

    Only the order of the numbers matters to anybody, so this merges states that have the same future.
    """
    alive = 0
    numbers: dict[int, list[int]] = {}
    for m, row in enumerate(state.rows):
        if unfinished(row):
            alive |= 1 << m
            numbers.setdefault(world.key_of[m], []).append(row.seq)
    for m, delivery in zip(world.delivers, state.deliveries, strict=True):
        if delivery.seq:
            numbers.setdefault(world.key_of[m], []).append(delivery.seq)
    for taken in numbers.values():
        taken.sort()
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
    return State(tuple(rows), state.workers, tuple(deliveries), state.budget)


@cache
def _renumbered_row(row: Row, seq: int, after: int) -> Row:
    return row._replace(seq=seq, after=after)
