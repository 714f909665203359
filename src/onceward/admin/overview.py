"""The read side about the inbox as a whole: groups of failures, blocked keys, workers, sources, sizes, traffic, audit.

Read only, like `admin/messages.py`, which is about numbers and single messages. The store reports; what it has as text
is decoded here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onceward.domain import payload
from onceward.domain.pauses import PauseKind, PauseRow, Pauses
from onceward.domain.text import ago
from onceward.flow import Flow
from onceward.message import moment
from onceward.registry import OUTBOX
from onceward.steps.context import Context
from onceward.stores.moves.reports import (
    Apart,
    AuditLine,
    BlockedKey,
    DeadGroup,
    Failing,
    Minute,
    Running,
    SourceRow,
    Storage,
)

__all__ = [
    "Apart",
    "AuditLine",
    "BlockedKey",
    "DeadGroup",
    "Failing",
    "Minute",
    "Pause",
    "PollRow",
    "Running",
    "SourceRow",
    "Storage",
]

NEWEST = 20_000
"""How many of the newest rows are looked at for what is about the last hour."""


@dataclass(frozen=True, slots=True)
class PollRow:
    """A polled API."""

    source: str
    cursor: Any
    responses: int
    """How many were ever stored."""
    running: bool
    due_seconds: float
    """Until the next turn, or until a running one may be taken over; negative when no process takes it."""
    ended_at: datetime | None
    failures: int
    """How many turns in a row have failed."""
    error: str | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Something that operators have stopped."""

    kind: PauseKind
    name: str
    """What is paused; empty for everything."""
    began_at: datetime
    ended_at: datetime | None
    """None while it goes on."""
    actor: str
    reason: str

    @property
    def subject(self) -> str:
        """What is paused, in words."""
        return self.kind if self.kind == "everything" else f"{self.kind} {self.name}"

    @property
    def told(self) -> str:
        """What is paused, by whom, since when and why."""
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.subject} is paused by {self.actor} {ago(self.began_at)}{reason}"


def pauses(context: Context, *, ended: bool) -> Flow[list[Pause]]:
    """What is paused, the oldest first; with `ended` also what was, in the last 90 days."""
    rows = (yield from context.moves.catalog.load_catalog()).pauses
    return [_pause(row) for row in rows if ended or row.ended_at is None]


def pause_of(context: Context, consumer: str, kind: str | None, destination: str | None) -> Flow[PauseRow | None]:
    """What keeps a message from being run, or published, if an operator does."""
    known = Pauses((yield from context.moves.catalog.load_catalog()).pauses)
    return pause_among(known, consumer, kind, destination)


def pause_among(known: Pauses, consumer: str, kind: str | None, destination: str | None) -> PauseRow | None:
    """As `pause_of`, of what is known."""
    return known.publishing(destination or "default") if consumer == OUTBOX else known.handling(consumer, kind or "")


def _pause(row: PauseRow) -> Pause:
    ended = None if row.ended_at is None else moment(row.ended_at)
    return Pause(row.kind, row.name, moment(row.began_at), ended, row.actor, row.reason)


def dead_groups(context: Context, *, limit: int) -> Flow[list[DeadGroup]]:
    """Dead messages by how they failed."""
    return (yield from context.moves.reports.dead_groups(limit))


def blocked_keys(context: Context, *, limit: int) -> Flow[list[BlockedKey]]:
    """Keys that a message holds which will not run by itself."""
    return (yield from context.moves.reports.blocked_keys(limit))


def running(context: Context, *, limit: int) -> Flow[list[Running]]:
    """What the workers have in hand."""
    return (yield from context.moves.reports.running(limit))


def sources(context: Context) -> Flow[list[SourceRow]]:
    """Who sends."""
    return (yield from context.moves.reports.sources(NEWEST))


def storage(context: Context) -> Flow[Storage]:
    """Table sizes and the oldest of what is kept."""
    return (yield from context.moves.reports.storage())


def audit(context: Context, *, before: int | None, limit: int) -> Flow[list[AuditLine]]:
    """What operators did, newest first."""
    return (yield from context.moves.reports.audit(before, limit))


def traffic(context: Context, *, minutes: int) -> Flow[list[Minute]]:
    """The last minutes, the newest last."""
    return (yield from context.moves.reports.traffic(minutes, NEWEST))


def polls(context: Context) -> Flow[list[PollRow]]:
    """The polled APIs."""
    found = yield from context.moves.reports.polls()
    return [
        PollRow(**{**one._asdict(), "cursor": payload.decode_text(one.cursor) if one.cursor else None}) for one in found
    ]
