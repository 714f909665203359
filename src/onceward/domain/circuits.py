"""Open circuits: what each process tells the others about those of its handlers, with its heartbeat.

Invariant: a circuit opens and closes in its own process alone. What is told is for people, as old as the last
heartbeat, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class OpenCircuit(NamedTuple):
    """A handler, or a destination, that a process does not call for now."""

    consumer: str
    type: str
    """Of the relay: the destination."""
    seconds: float
    """For how long it stays open, at most."""


def told(circuits: Iterable[OpenCircuit]) -> str:
    """What a heartbeat carries: a line for each, of which the one that stays open for longest counts."""
    longest: dict[tuple[str, str], float] = {}
    for one in circuits:
        which = one.consumer, one.type
        longest[which] = max(one.seconds, longest.get(which, 0.0))
    return "".join(f"{consumer}\t{kind}\t{seconds:.1f}\n" for (consumer, kind), seconds in sorted(longest.items()))


def heard(text: str) -> tuple[OpenCircuit, ...]:
    """What another process has told; nothing of a line that another version may have written."""
    lines = (line.split("\t") for line in text.splitlines())
    return tuple(OpenCircuit(line[0], line[1], float(line[2])) for line in lines if len(line) > 2)  # noqa: PLR2004 - as told
