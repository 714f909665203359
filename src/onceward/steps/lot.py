"""A lot: subscriptions that a lane claims together; how many of their messages, from where on, and past whom.

Together are those whose handlers want groups of one size, and those whose messages may share keys.

Invariant: whatever a look passes over (what was committed late or given back, keys that are held, a backlog of other
types) is looked at again soon: nothing is forgotten for longer than `LONGEST_PAUSE`. A claim takes what its lane can
run in about `claim_time`, so that no message waits behind a claim while another lane has nothing to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from onceward.registry import Subscription

LOOK_PAST_SECONDS = 0.25
"""How often a lane that has a backlog of some types looks for others behind it."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 1.0
"""Seconds between two looks that are repeated only because something may have been passed over."""
PART_OF_TIME = 10
"""Such looks take at most every tenth moment of a lane, however long they take."""
MOST_GROUPS = 5
"""So many groups of quick messages are claimed at a time where there is a backlog: a claim costs about as much as ten
messages, however many it brings. All of them are in memory, so their bodies are on average no larger than"""
LIGHT = 10_000
"""bytes."""
_KEPT = 0.7
"""What was measured counts for so much less with every claim."""


class HeldKeys:
    """Keys that another worker holds, whose rows are not worth looking at for a moment: the longer, the longer."""

    def __init__(self) -> None:
        self._keys: dict[int, tuple[float, float]] = {}
        self._passed: set[int] = set()
        """Those that no look has included since they were found held, or were left out: they may be free by now."""

    def add(self, keys: Iterable[int], now: float) -> None:
        """They were found held."""
        for key in keys:
            _, pause = self._keys.get(key, (now, SHORTEST_PAUSE))
            pause = min(pause * 2, LONGEST_PAUSE)
            self._keys[key] = (now + pause, pause)
            self._passed.add(key)

    def at(self, now: float) -> list[int]:
        """Those to be left out of a look."""
        if not self._keys:
            return []
        self._keys = {key: (until, pause) for key, (until, pause) in self._keys.items() if until + pause > now}
        self._passed = {key for key, (until, _) in self._keys.items() if until > now}
        return sorted(self._passed)

    def wait(self, now: float) -> float:
        """In how many seconds the first of those that were passed over is to be looked at again.

        At once where its pause has ended since: a slow machine may take longer from a look to here than the pause.
        """
        return min((self._keys[key][0] - now for key in self._passed), default=float("inf"))

    def forget(self) -> None:
        """None of them has anything ready."""
        self._keys, self._passed = {}, set()


@dataclass(slots=True, eq=False)
class Lot:
    """What a lane knows about its claims for some subscriptions."""

    subscriptions: list[Subscription] = field(default_factory=list)
    group: int = 1
    """How many messages their handlers want at a time."""
    seconds: float = float("inf")
    """How much handler time a claim takes (`Settings.claim_time`). One that takes half of it leaves their share to the
    other lanes: below, a group saves more than it delays."""
    has_keys: bool = False
    """A claim takes a lock for each key, and of those a server has only so many."""
    is_light: bool = False
    """The bodies of the last claim were small."""
    steady: bool = False
    """They want that many however long they take: a handler that takes them all in one call, or a sink."""
    has_backlog: bool = False
    """The last claim found as many as it may: there is more to take."""
    cursor: int = 0
    """The claim cursor: where a look for new messages begins; zero after a full scan that brought nothing."""
    scanned_at: float = float("-inf")
    """When it last made a full scan: a look from the very beginning."""
    scanned_idle: bool = False
    """The last look, a full scan, found nothing."""
    held: HeldKeys = field(default_factory=HeldKeys)
    is_empty: bool = True
    """Nothing of it is known to wait."""
    rests_until: float = float("-inf")
    """While others have a backlog, which a look for this one reads through, it is not looked for before."""
    front: frozenset[int] = frozenset()
    """The subscriptions whose messages filled the last claim."""
    _scan_seconds: tuple[float, float] = (0.0, 0.0)
    _past_at: float = float("-inf")
    _past_seconds: float = 0.0
    _spent: float = 0.0
    _ran: float = 0.0
    _turn: int = 0

    def add(self, subscription: Subscription, group: int, *, steady: bool) -> None:
        """One more, whose handler wants groups of such a size."""
        self.subscriptions.append(subscription)
        self.group, self.steady = max(self.group, group), self.steady or steady

    # How many

    def measured(self, seconds: float, ran: int) -> None:
        """So many of its messages took their handlers so long."""
        self._spent = self._spent * _KEPT + seconds
        self._ran = self._ran * _KEPT + ran

    @property
    def size(self) -> int:
        """How many messages a claim takes."""
        if self.steady or self.group == 1 or not self._ran:
            return self.group
        fitting = self.seconds * self._ran / self._spent if self._spent else float("inf")
        groups = MOST_GROUPS if self.has_backlog and self.is_light and not self.has_keys else 1
        return max(1, int(min(self.group, fitting)), int(min(self.group * groups, fitting / 2)))

    @property
    def is_shared(self) -> bool:
        """Whether a claim is to leave their share to other lanes: it takes long, or how long is not known yet."""
        if self.steady or self.group == 1:
            return False
        return not self._ran or self._spent / self._ran * self.size > self.seconds / 2

    def again(self, limit: int) -> int:
        """How many of a claim may be those that are tried again: where both wait, they and new ones come in turn."""
        self._turn = 1 - self._turn
        return (limit + self._turn) // 2 if self.has_backlog else limit

    def rest(self, began: float, now: float, *, is_empty: bool) -> None:
        """After a look: when it is worth another one beside a backlog of others."""
        self.is_empty = is_empty
        self.rests_until = now + _pause(now - began, LOOK_PAST_SECONDS) if is_empty else float("-inf")

    # From where on

    def full_scan_due(self, now: float) -> bool:
        """Whether the next look is a full scan, for what was committed late or given back."""
        return self.full_scan_wait(now) <= 0

    def full_scan_wait(self, now: float) -> float:
        """In how many seconds a full scan is due."""
        # The quicker of the last two: one that only had to wait says nothing about how much there is to read.
        return self.scanned_at + _pause(min(self._scan_seconds), SHORTEST_PAUSE) - now

    def full_scan_done(self, began: float, now: float) -> None:
        """It has made a full scan."""
        self.scanned_at, self._scan_seconds = now, (self._scan_seconds[1], now - began)

    def found_empty(self, began: float, now: float) -> None:
        """A full scan, for this and others, has found nothing of it."""
        self.cursor = 0
        self.held.forget()
        self.full_scan_done(began, now)
        self.rest(began, now, is_empty=True)

    def begin_anew(self) -> None:
        """The next look is a full scan and passes over none."""
        self.scanned_at = float("-inf")
        self.held.forget()

    def wait(self, now: float) -> float:
        """After a look in vain: in how many seconds another one may find what this one has passed over."""
        scan = float("inf") if self.cursor == 0 else self.full_scan_wait(now)
        return max(0.0, min(scan, self.held.wait(now)))

    # Past whom

    def behind(self, wanted: Collection[int], now: float) -> list[int]:
        """The subscriptions that a backlog of others may hide, if it is time to look for their messages."""
        if not self.front or now - self._past_at < _pause(self._past_seconds, LOOK_PAST_SECONDS):
            return []
        return [one for one in wanted if one not in self.front]

    def looked_past(self, began: float, now: float, *, full: bool) -> None:
        """It has looked behind the backlog. While that is full, too, they come in turn."""
        self.front = frozenset()
        self._past_at, self._past_seconds = (float("-inf"), 0.0) if full else (now, now - began)


def _pause(seconds: float, least: float) -> float:
    return min(max(seconds * PART_OF_TIME, least), LONGEST_PAUSE)
