"""Gate: which lanes of a process hold claims, so that a suspect can run alone in it.

Invariant: while one lane is alone, no other lane of the process holds a note.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable


class Gate:
    """Lanes go in before they claim, and out when they hold nothing; one of a kind at a time goes in with suspects."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: set[object] = set()
        self._alone: object | None = None
        self._with_suspects: dict[object, Hashable] = {}
        """Whoever is inside with suspects, and of which kind it is."""

    def enter(self, who: object) -> bool:
        """Go in with the others, or stay; False while somebody is or wants to be alone."""
        with self._lock:
            if self._alone is not None:  # it waits for those inside: were they to wait too, nobody would ever move
                return self._alone is not who and who in self._inside
            self._inside.add(who)
            return True

    def enter_with_suspects(self, who: object, kind: Hashable) -> bool:
        """Go in with the others and a claim of suspects; False while another of this kind has one."""
        with self._lock:
            if self._alone is not None or kind in self._with_suspects.values():
                return False
            self._inside.add(who)
            self._with_suspects[who] = kind
            return True

    def leave(self, who: object) -> None:
        """Go out; holds no note any more."""
        with self._lock:
            self._inside.discard(who)
            self._with_suspects.pop(who, None)
            if self._alone is who:
                self._alone = None

    def enter_alone(self, who: object) -> bool:
        """Ask to be alone; True as soon as everybody else is out. Ask again until then."""
        with self._lock:
            if self._alone is None:
                self._alone = who
            return self._alone is who and self._inside <= {who}

    def inside(self) -> list[object]:
        """Whoever may hold a note now."""
        with self._lock:
            return [*self._inside, self._alone]

    @property
    def closed(self) -> bool:
        """Whether somebody is or wants to be alone."""
        return self._alone is not None
