"""Pauses: what operators have stopped for a while, and how much of a message's age that was.

Invariant: what is stopped only waits. It is stored, counted and found as always, and the time of a pause counts neither
for the age at which a message is given up nor for the deadline of a number within its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from onceward.domain.text import ago

PauseKind = Literal["type", "consumer", "source", "destination", "everything"]
KEPT_SECONDS = 90 * 86_400.0
"""So long after its end a pause is remembered: a message is hardly ever tried for longer."""

Rest = tuple[float, float]
"""A time that does not count, as ages in seconds: where it began, and where it ended."""


class PauseRow(NamedTuple):
    """A pause, of now or of before. Times are microseconds since 1970, by the clock of the database."""

    kind: PauseKind
    name: str
    """What is paused; empty for everything."""
    began_at: int
    ended_at: int | None
    actor: str
    reason: str

    @property
    def subject(self) -> str:
        """What is paused, in words."""
        return self.kind if self.kind == "everything" else f"{self.kind} {self.name}"

    @property
    def told(self) -> str:
        """Who has paused it, since when, and why."""
        reason = f": {self.reason}" if self.reason else ""
        return f"paused by {self.actor} {ago(datetime.fromtimestamp(self.began_at / 1_000_000, UTC))}{reason}"


class Pauses(NamedTuple):
    """The pauses of an inbox as they were read."""

    rows: Sequence[PauseRow] = ()
    now: int = 0
    """When that was, by the clock of the database,"""
    read_at: float = 0.0
    """and by that of the process."""

    def handling(self, consumer: str, message_type: str) -> PauseRow | None:
        """What keeps the messages of a type from the handler of a consumer, if anything does."""
        return self._open((("type", message_type), ("consumer", consumer)))

    def publishing(self, destination: str) -> PauseRow | None:
        """What keeps messages from being published to a destination."""
        return self._open((("destination", destination),))

    def reading(self, source: str) -> PauseRow | None:
        """What keeps a source from being read."""
        return self._open((("source", source),))

    def rests(self, consumer: str, message_type: str, clock: float, *, destination: str | None = None) -> list[Rest]:
        """When the messages of a type did not run, as ages at this moment of the process's clock.

        Or those that go to a destination: with these, type and consumer are of no account.
        """
        if not self.rows:  # the usual case
            return []
        now = self.now + int((clock - self.read_at) * 1_000_000)
        which = (
            {("type", message_type), ("consumer", consumer)} if destination is None else {("destination", destination)}
        )
        which.add(("everything", ""))
        found = sorted((one.began_at, one.ended_at or now) for one in self.rows if (one.kind, one.name) in which)
        return [((now - begin) / 1_000_000, (now - end) / 1_000_000) for begin, end in _joined(found)]

    def _open(self, which: Iterable[tuple[str, str]]) -> PauseRow | None:
        if not self.rows:  # the usual case
            return None
        wanted = {*which, ("everything", "")}
        return next((one for one in self.rows if one.ended_at is None and (one.kind, one.name) in wanted), None)


def rested(age: float, rests: Sequence[Rest]) -> float:
    """How many seconds of an age do not count."""
    return sum(max(0.0, min(age, began) - max(0.0, ended)) for began, ended in rests)


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans in order of their beginning, those that overlap as one."""
    found: list[tuple[int, int]] = []
    for begin, end in spans:
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found
