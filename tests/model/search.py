"""Breadth-first search through every reachable state, and the shortest trace that leads to a bad one.

Invariant: a search that reports no violation has visited every state of its scenario.
"""

from __future__ import annotations

import gc
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from tests.model.protocol import settled, steps, violation
from tests.model.world import OPERATOR, STRAY_CLAIM, TIME, UNCLAIMED, State, Step, World, bits, claimed_by, replaced

OTHER = {UNCLAIMED: UNCLAIMED, 1: 2, 2: 1, STRAY_CLAIM: STRAY_CLAIM}  # claims, when the workers change places


@dataclass(frozen=True)
class Violation:
    """What went wrong, and how to get there."""

    kind: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.kind}, after {len(self.trace)} moves:", *self.trace])


@dataclass(frozen=True)
class Report:
    """What a search saw."""

    states: int
    transitions: int
    events: Counter[str]
    violation: Violation | None


def explore(world: World, *, only: str = "") -> Report:
    """Visit every state; stop at the first that violates an invariant, else look for one that is stuck.

    With `only`, other kinds of violations are passed over.

    The workers are interchangeable, and so are deliveries of one message: states that differ only in their
    names are merged. That would garble a trace, so a trace is told by a second search that merges nothing.
    """
    with _collector_off():
        report = _explore(world, only, symmetric=True)
        return _explore(world, only, symmetric=False) if report.violation else report


@contextmanager
def _collector_off() -> Iterator[None]:
    """A million tuples without a cycle: the collector costs a quarter of the time and finds nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _explore(world: World, only: str, *, symmetric: bool) -> Report:
    start = world.initial()
    known = {start: 0}
    states = [start]
    origin = array("l", [-1])
    sources, targets = array("l"), array("l")
    events: Counter[str] = Counter()
    transitions = 0
    number = 0
    while number < len(states):
        for step in steps(world, states[number]):
            transitions += 1
            events[step.event] += 1
            state = canonical(world, step.state) if symmetric else step.state
            target = known.get(state)
            if target is None:
                target = known[state] = len(states)
                states.append(state)
                origin.append(number)
                kind = step.broken or violation(world, state)
            else:
                kind = step.broken
            if kind and only in ("", kind):
                trace = () if symmetric else (*_trace(world, states, origin, number), describe(world, step))
                return Report(len(states), transitions, events, Violation(kind, trace))
            if step.progress and target != number:
                sources.append(number)
                targets.append(target)
        number += 1
    stuck = _stuck(world, states, sources, targets)
    if stuck is None:
        return Report(len(states), transitions, events, None)
    trace = () if symmetric else _trace(world, states, origin, stuck)
    return Report(len(states), transitions, events, Violation("stuck", trace))


def canonical(world: World, state: State) -> State:
    """The state with interchangeable things in a fixed order: the workers, and deliveries of one message."""
    rows, workers, deliveries, budget, applied, clerk = state
    first, second = workers
    if first > second:
        rows = tuple([claimed_by(row, OTHER[row.claim]) for row in rows])
        workers = (second, first)
    for i, j in world.twins:
        if deliveries[i] > deliveries[j]:
            deliveries = replaced(replaced(deliveries, i, deliveries[j]), j, deliveries[i])
    if workers is state.workers and deliveries is state.deliveries:
        return state
    return State(rows, workers, deliveries, budget, applied, clerk)


def _stuck(world: World, states: list[State], sources: array[int], targets: array[int]) -> int | None:
    """A state from which no progress, free of faults and operators, leads to a settled one.

    Sweeps over the edges from the last to the first until nothing changes: most edges lead forward, so a few
    sweeps do, without the memory of a graph turned round.
    """
    fine = bytearray(settled(world, state) for state in states)
    changed = True
    while changed:
        changed = False
        for source, target in zip(reversed(sources), reversed(targets), strict=True):
            if fine[target] and not fine[source]:
                fine[source] = changed = True
    if all(fine):
        return None
    # Of the states that are lost, one where everything stands still makes the clearest trace.
    still = bytearray(fine)
    for source in sources:
        still[source] = True
    return still.find(0) if not all(still) else fine.find(0)


def _trace(world: World, states: list[State], origin: array[int], number: int) -> tuple[str, ...]:
    """The moves that lead to a state, found again by repeating them."""
    path = [number]
    while origin[path[-1]] >= 0:
        path.append(origin[path[-1]])
    path.reverse()
    return tuple(
        describe(world, next(step for step in steps(world, states[before]) if step.state == states[after]))
        for before, after in pairwise(path)
    )


def describe(world: World, step: Step) -> str:
    """One line of a trace."""
    names = " ".join(world.scenario.messages[m] for m in bits(step.messages))
    if step.actor == OPERATOR:
        return f"operator: {step.event} {names}"
    if step.actor == TIME:
        return f"{step.event}: {names}"
    if step.actor >= 0:
        return f"worker {step.actor + 1}: {step.event} {names}".rstrip()
    return f"delivery {-step.actor} of {world.scenario.deliveries[-1 - step.actor]}: {step.event}"
