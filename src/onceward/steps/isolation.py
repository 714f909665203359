"""Isolation: which lanes of a process hold claims, so that an isolated message can run alone in it.

Invariant: while one lane is alone, no other lane of the process holds a claim.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable


class Isolation:
    """Lanes go in before they claim, and out when they hold nothing; one of a kind at a time has isolated messages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: set[object] = set()
        self._alone: object | None = None
        self._with_isolated: dict[object, Hashable] = {}
        """The lanes inside with isolated messages, and of which kind it is."""
        self._turned_away: set[object] = set()
        """Those that asked while another was alone, or wanted to be."""

    def enter(self, who: object) -> bool:
        """Go in with the others, or stay; False while another is or wants to be alone."""
        with self._lock:
            if self._alone is not None:  # it waits for those inside: were they to wait too, nobody would ever move
                may_stay = self._alone is not who and who in self._inside
                if not may_stay:
                    self._turn_away(who)
                return may_stay
            self._inside.add(who)
            return True

    def enter_with_isolated(self, who: object, kind: Hashable) -> bool:
        """Go in with the others and a claim of isolated messages; False while another of this kind has one."""
        with self._lock:
            if self._alone is not None:
                self._turn_away(who)
                return False
            if kind in self._with_isolated.values():
                return False
            self._inside.add(who)
            self._with_isolated[who] = kind
            return True

    def _turn_away(self, who: object) -> None:
        """Under the lock."""
        if self._alone is not who:
            self._turned_away.add(who)

    def was_turned_away(self, who: object) -> bool:
        """Whether it has asked in vain since this was asked last: then it has not looked for what there may be."""
        with self._lock:
            was = who in self._turned_away
            self._turned_away.discard(who)
            return was

    def leave(self, who: object) -> None:
        """Go out; holds no claim any more."""
        with self._lock:
            self._inside.discard(who)
            self._with_isolated.pop(who, None)
            if self._alone is who:
                self._alone = None

    def enter_alone(self, who: object) -> bool:
        """Ask to be alone; True as soon as all others are out. Ask again until then."""
        with self._lock:
            if self._alone is None:
                self._alone = who
            return self._alone is who and self._inside <= {who}

    def inside(self) -> list[object]:
        """Those that may hold a claim now."""
        with self._lock:
            return [*self._inside, self._alone]

    @property
    def closed(self) -> bool:
        """Whether a lane is or wants to be alone."""
        return self._alone is not None
