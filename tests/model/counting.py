"""Numbers within a key: which may pass, which is held, which is stale, and how far a key is.

Invariant: the effect of a number comes only after the number before it was applied or given up, and never after a
higher one. Nobody is skipped because a later number was given up, if it was in the queue when that was decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.world import (
    DISCARDED,
    GIVEN_UP,
    GONE,
    HELD,
    OVER,
    READY,
    SCHEDULED,
    TIME,
    UNCLAIMED,
    WAITING,
    Rows,
    State,
    Step,
    World,
    bits,
    marked,
    replaced,
    unfinished,
    with_rows,
)

LATE_SHIFT = 8
HELD_SHIFT = 16
MASK = 0xFF
VIEW_BITS = 4  # of a remembered progress, per key


class Verdict(NamedTuple):
    """What the numbers of claimed rows say, as masks of messages. Stale and late ones are kept."""

    kept: int
    parked: int = 0
    held: int = 0
    stale: int = 0
    late: int = 0

    @property
    def knows(self) -> int:
        """What a worker remembers of it."""
        return self.stale | self.late << LATE_SHIFT | self.held << HELD_SHIFT


def gate(world: World, applied: tuple[int, ...], rows: Rows, kept: int) -> Verdict:
    """Let a number pass when the one before it is applied or passes in this claim; skip a lower one, hold a higher.

    One that comes after a held one of its key in the same claim is parked behind it: whatever its own deadline, the
    one before it is still there.
    """
    guards = world.guards
    wanted = [number + 1 for number in applied]
    blocked = parked = held = stale = late = 0
    for m in sorted(bits(kept), key=lambda m: rows[m].seq):
        key, number = world.key_index[m], world.number[m]
        if number < wanted[key]:
            stale |= 1 << m if guards.stale_is_skipped else 0
        elif number == wanted[key] or not guards.gate_holds:
            wanted[key] = number + 1
        elif blocked & world.key_of[m] and guards.late_only_at_head:
            parked |= 1 << m
        elif rows[m].marks & OVER:
            late |= 1 << m
        else:
            held |= 1 << m
            blocked |= world.key_of[m]
    return Verdict(kept & ~parked & ~held, parked, held, stale, late)


def packed(applied: tuple[int, ...]) -> int:
    """The progress of all keys as one number, for a worker to remember."""
    return sum(number << VIEW_BITS * key for key, number in enumerate(applied))


def unpacked(view: int, keys: int) -> tuple[int, ...]:
    """A remembered progress."""
    return tuple(view >> VIEW_BITS * key & (1 << VIEW_BITS) - 1 for key in range(keys))


def advanced(world: World, applied: tuple[int, ...], messages: int) -> tuple[int, ...]:
    """The progress after these messages were applied or given up."""
    for m in bits(messages):
        key = world.key_index[m]
        if world.number[m] > applied[key]:
            applied = replaced(applied, key, world.number[m])
    return applied


def has_passed(world: World, rows: Rows, m: int, number: int) -> bool:
    """Whether a number of this message's key was applied or given up; what is before the first always was."""
    return number == 0 or any(world.number[o] == number and _is_through(rows, o) for o in (m, *world.siblings[m]))


def _is_through(rows: Rows, m: int) -> bool:
    return rows[m].state in (GONE, DISCARDED) or bool(rows[m].marks & GIVEN_UP)


def is_stale(world: World, rows: Rows, m: int) -> bool:
    """Whether its number or a higher one of its key has taken effect."""
    return any(world.number[o] >= world.number[m] and rows[o].state == GONE for o in world.siblings[m])


def number_fault(world: World, state: State, batch: int, stale: int) -> str:
    """What is wrong with finishing these messages, by their numbers."""
    run = batch & ~stale
    for m in bits(run):
        number = world.number[m]
        with_it = [o for o in world.siblings[m] if run >> o & 1]
        twice = any(world.number[o] == number and state.rows[o].seq < state.rows[m].seq for o in with_it)
        if twice or is_stale(world, state.rows, m):
            return "stale"
        before = any(world.number[o] == number - 1 for o in with_it)
        if not before and not has_passed(world, state.rows, m, number - 1):
            return "gap"
    for m in bits(stale):
        above = [o for o in (m, *world.siblings[m]) if world.number[o] >= world.number[m]]
        if not any(run >> o & 1 or _is_through(state.rows, o) for o in above):
            return "skipped"
    return ""


def has_earlier(world: World, rows: Rows, m: int) -> bool:
    """Whether an earlier message of its key is unfinished."""
    return any(unfinished(rows[o]) and rows[o].seq < rows[m].seq for o in world.siblings[m])


def passed_over(world: World, state: State, m: int, *, among: int = MASK) -> str:
    """Giving this message up moves the progress of its key: nobody earlier that is there may become stale by it."""
    rows = state.rows
    applied = state.applied[world.key_index[m]]
    there = [o for o in world.siblings[m] if among >> o & 1 and unfinished(rows[o]) and rows[o].seq < rows[m].seq]
    return "skipped" if any(world.number[o] > applied for o in there) else ""


def time_steps(state: State) -> Iterator[Step]:
    """The time to wait for the number before is over. Nothing else may depend on it."""
    for m, row in enumerate(state.rows):
        if row.state in (READY, WAITING) and row.claim == UNCLAIMED and not row.marks & OVER:
            after = with_rows(state, replaced(state.rows, m, marked(row, OVER)))
            yield Step("deadline is over", TIME, 1 << m, after, progress=False)


def waits_rightly(world: World, rows: Rows, m: int) -> bool:
    """Whether a message is held in time, and for a number that is really missing."""
    row = rows[m]
    held = row.state == WAITING and row.marks & (HELD | OVER) == HELD
    return held and not has_passed(world, rows, m, world.number[m] - 1)


def due_steps(state: State) -> Iterator[Step]:
    """The time of what was scheduled comes. It always does: others may depend on it."""
    for m, row in enumerate(state.rows):
        if row.state == SCHEDULED and not row.marks & OVER:
            after = with_rows(state, replaced(state.rows, m, marked(row, OVER)))
            yield Step("is due", TIME, 1 << m, after)
