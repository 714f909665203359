"""The read side about the inbox as a whole: groups of failures, blocked keys, workers, sources, sizes, traffic, audit.

Read only, like `admin/messages.py`, which is about numbers and single messages. Every statement's cost has an end that
the size of the history does not move.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from onceward.domain import payload
from onceward.flow import Flow, Query
from onceward.message import moment
from onceward.registry import OUTBOX
from onceward.steps.context import Context, look

NEWEST = 20_000
"""How many of the newest rows are looked at for what is about the last hour."""


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead messages of a type whose last attempt failed in the same way."""

    fingerprint: str
    type: str
    consumer: str
    outgoing: bool
    messages: int
    first_seq: int
    last_seq: int
    first_at: datetime
    last_at: datetime
    error: str


@dataclass(frozen=True, slots=True)
class PollRow:
    """A polled API."""

    source: str
    cursor: Any
    responses: int
    """How many were ever stored."""
    running: bool
    due_seconds: float
    """Until the next turn, or until a running one may be taken over; negative when nobody takes it."""
    ended_at: datetime | None
    failures: int
    """How many turns in a row have failed."""
    error: str | None


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A message that holds its key and will not run by itself, and what waits behind it."""

    seq: int
    type: str
    key: str | None
    consumer: str
    outgoing: bool
    received_at: datetime
    behind: int
    next_seq: int | None
    state: Literal["dead", "unhandled"] = "dead"
    """Unhandled: nobody handles its type, and it was given a key."""


@dataclass(frozen=True, slots=True)
class Failing:
    """What keeps failing and is not dead yet."""

    messages: int
    """Messages that have failed so many times."""
    held_keys: int
    """Keys in which others have waited behind a failing message for so long."""


@dataclass(frozen=True, slots=True)
class Running:
    """A message that a worker has in hand."""

    seq: int
    worker: int
    type: str
    key: str | None
    consumer: str
    outgoing: bool
    attempt: int


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A source: how late it may redeliver, and what the newest messages say about it."""

    name: str
    redelivers_for: timedelta | None
    recent: int
    last_at: datetime | None
    duplicates: int


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table. What the database does not know cheaply is None."""

    name: str
    rows: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Storage:
    """How much is kept, and since when."""

    tables: tuple[TableSize, ...]
    ledger_since: datetime | None
    bodies_since: datetime | None
    upkeep_due_at: datetime | None


@dataclass(frozen=True, slots=True)
class AuditLine:
    """Something a person did to a message, or a number that was skipped."""

    id: int
    at: datetime
    actor: str
    action: str
    seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class Minute:
    """What happened in a minute, so many minutes ago."""

    ago: int
    received: int
    done: int
    failed: int


def dead_groups(context: Context, *, limit: int) -> Flow[list[DeadGroup]]:
    """Dead messages by how they failed."""
    (rows,) = yield from look(context, Query("dead_groups", {"limit": limit}))
    return [DeadGroup(*(*row[:3], bool(row[3]), *row[4:7], moment(row[7]), moment(row[8]), row[9])) for row in rows]


def blocked_keys(context: Context, *, limit: int) -> Flow[list[BlockedKey]]:
    """Keys that a message holds which will not run by itself."""
    (rows,) = yield from look(context, Query("blocked_keys", {"limit": limit}))
    return [BlockedKey(*(*row[:4], bool(row[4]), moment(row[5]), *row[6:])) for row in rows]


def failing(context: Context, *, times: int, held_for: timedelta) -> Flow[Failing]:
    """What keeps failing."""
    (rows,) = yield from look(context, Query("failing", {"times": times, "held": held_for.total_seconds()}))
    return Failing(*rows[0])


def running(context: Context, *, limit: int) -> Flow[list[Running]]:
    """What the workers have in hand."""
    (rows,) = yield from look(context, Query("running", {"limit": limit}))
    return [Running(*(*row[:5], bool(row[5]), row[6])) for row in rows]


def sources(context: Context) -> Flow[list[SourceRow]]:
    """Who sends."""
    (rows,) = yield from look(context, Query("sources", {"newest": NEWEST}))
    return [
        SourceRow(name, None if late is None else timedelta(seconds=late), recent, _maybe(last), copies)
        for name, late, recent, last, copies in rows
    ]


def storage(context: Context) -> Flow[Storage]:
    """Table sizes and the oldest of what is kept."""
    sizes, oldest = yield from look(context, Query("sizes"), Query("oldest"))
    return Storage(tuple(TableSize(*row) for row in sizes), *map(_maybe, oldest[0]))


def audit(context: Context, *, before: int | None, limit: int) -> Flow[list[AuditLine]]:
    """What people did, newest first."""
    (rows,) = yield from look(context, Query("audit", {"before": before, "limit": limit}))
    return [AuditLine(row[0], moment(row[1]), *row[2:]) for row in rows]


def traffic(context: Context, *, minutes: int) -> Flow[list[Minute]]:
    """The last minutes, the newest last."""
    (rows,) = yield from look(context, Query("traffic", {"newest": NEWEST, "minutes": minutes, "outbox": OUTBOX}))
    return list(_minutes(rows, minutes))


def _minutes(rows: Iterable[tuple[Any, ...]], minutes: int) -> Iterable[Minute]:
    counts = {(kind, -minute): int(number) for kind, minute, number in rows}
    for ago in range(minutes - 1, -1, -1):
        yield Minute(ago, *(counts.get((kind, ago), 0) for kind in range(3)))


def polls(context: Context) -> Flow[list[PollRow]]:
    """The polled APIs."""
    (rows,) = yield from look(context, Query("polls"))
    return [
        PollRow(
            source, payload.decode_text(cursor) if cursor else None, number, bool(running), due, _maybe(ended), *last
        )
        for source, cursor, number, running, due, ended, *last in rows
    ]


def _maybe(stored: int | None) -> datetime | None:
    return None if stored is None else moment(stored)
