"""How far a source was read, kept beside the effects (R72).

Invariant: a position is kept only with what was read before it, and only when the database knows the one before. So a
database that was restored, or that lost commits in a failover, is behind; its reader finds that out, and goes back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from onceward.brokers.protocol import Arrival, BrokerUnavailable, Positioned, Source
from onceward.domain.marks import Mark
from onceward.errors import StoreError

LOOK_SECONDS = 1.0
"""How often a reader looks whether the database is where it left it."""


class Positions:
    """What a reader knows of the database, for one source."""

    def __init__(self, name: str, ask: Callable[[str], Mapping[str, str]]) -> None:
        self._name, self._ask = name, ask
        self._known: dict[str, str] = {}
        self._looked_at = time.monotonic()

    def asked(self) -> Mapping[str, str]:
        """Where the database is: a part is about to be read."""
        try:
            found = self._ask(self._name)
        except StoreError as error:
            raise BrokerUnavailable(
                f"how far {self._name} was read cannot be asked of the database: {error}"
            ) from error
        self._known.update(found)
        return found

    def marks(self, arrivals: Sequence[Arrival]) -> list[Mark]:
        """How far these come."""
        ends = {one.part: one.behind for one in arrivals if one.part is not None and one.behind is not None}
        return [Mark(self._name, part, self._known.get(part), end) for part, end in ends.items()]

    def kept(self, marks: Sequence[Mark]) -> None:
        """They are committed, unless the database was elsewhere."""
        self._known.update((mark.part, mark.position) for mark in marks)

    async def look(self, source: Source) -> None:
        """Now and then: is the database where we left it? Else it has lost what we had stored."""
        now = time.monotonic()
        if not isinstance(source, Positioned) or not self._known or now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at, known = now, dict(self._known)
        try:
            found = await asyncio.to_thread(self.asked)
        except BrokerUnavailable:
            return  # the database is away: the next batch waits for it in hand, and the parts stay ours
        elsewhere = {part: found.get(part) for part, position in known.items() if found.get(part) != position}
        for part in known.keys() - found.keys():
            self._known.pop(part, None)
        if elsewhere:
            await source.rewind(elsewhere)
