"""The bounds of a world: which messages there are, who does what, and how much may go wrong.

Invariant: everything here is finite, so the search ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple


class Budget(NamedTuple):
    """How much may still go wrong. Part of the state, so the space is finite."""

    crashes: int = 0
    stops: int = 0
    redrives: int = 0
    retries: int = 0
    rejects: int = 0
    abandons: int = 0


NO_TROUBLE: Final = Budget()


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
    discard_any: bool = False  # an operator may discard any row that is not claimed, not only a dead one
    poison: str = ""  # this message kills its process whenever it runs, and nothing else does
    placed: bool = False  # the digit in a name is its place in its key
    counted: bool = False  # the digit is its number in its key, and its place
    continues: bool = False  # on_dead="continue": a dead message leaves its key
    unblocks: bool = False  # an operator may unblock a key of its dead message
    clerks: bool = False  # a second operator discards messages without a key, in two statements
    gives_back: bool = False  # a worker may give back one of several messages (its circuit has opened)
    unhandled: tuple[str, ...] = ()  # received before anybody knew their type, in this order, before `received`
    scheduled: tuple[str, ...] = ()  # accepted before all others, and not due yet
    sends: tuple[tuple[str, str], ...] = ()  # the handler of the first sends the second
    effect: str = ""  # the handlers use "once", or "idempotent" once
    stored_first: tuple[int, ...] = ()  # deliveries that are stored with a claim of the worker that processes them
