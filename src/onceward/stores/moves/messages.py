"""One message, as reports show it: its row in a list, and everything that is kept about it.

What is stored as text (headers, results) is text here, and a large body is the reference to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

MismatchKind = Literal["body", "type"]


class Listing(NamedTuple):
    """Which messages are listed: those that match all that is given."""

    limit: int
    outgoing: bool = False
    status: str | None = None
    type: str | None = None
    key: str | None = None
    source: str | None = None
    before: int | None = None
    """Messages with a lower number,"""
    since: datetime | None = None
    until: datetime | None = None
    """received since the first and before the second,"""
    fingerprint: str | None = None
    """whose last attempt failed in this way."""


@dataclass(frozen=True, slots=True)
class Row:
    """A message in a list."""

    seq: int
    status: str
    source: str
    id: str
    type: str
    version: int
    key: str | None
    consumer: str
    attempts: int
    crashes: int
    received_at: datetime
    due_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed attempt or a crash."""

    attempt: int
    kind: str
    charged: bool
    error: str
    traceback: str | None
    worker: int | None
    code_version: str
    at: datetime
    fingerprint: str
    """The kind of error: the same for all that failed in the same way."""


@dataclass(frozen=True, slots=True)
class CaseRow:
    """Another body, or the same under another type, that came under the message's id, and what was decided about it."""

    case: int
    kind: MismatchKind
    type: str
    version: int
    copies: int
    first_at: datetime
    last_at: datetime
    resolution: str | None
    accepted_seq: int | None


@dataclass(frozen=True, slots=True)
class Action:
    """Something an operator did."""

    at: datetime
    actor: str
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a handler sent."""

    seq: int
    id: str
    type: str
    to: str | None


class StoredEffect(NamedTuple):
    """An external call under `message.once`. Not done: its outcome is unknown, or it is happening now."""

    key: str
    seq: int
    name: str
    done: bool
    result: str | None
    started_at: datetime
    finished_at: datetime | None


class StoredMessage(NamedTuple):
    """Everything that is kept about one message."""

    seq: int
    source: str
    stored_id: bytes
    consumer: str
    hash: bytes
    received_at: datetime
    id: str | None
    """As its sender wrote it; None when its body is gone."""
    type: str | None
    version: int | None
    key: str | None
    headers: str | None
    body: bytes | None
    status: str
    attempts: int
    crashes: int
    due_at: datetime | None
    worker: int | None
    result: str | None
    duplicates: int
    destination: str | None
    cause: int | None
    first_duplicate_at: datetime | None
    last_duplicate_at: datetime | None
    scheduled_at: datetime | None
    """When it was to run, where that was not at once."""
    finished_at: datetime | None
    finished_by: int | None
    code_version: str | None
    history: tuple[Attempt, ...]
    actions: tuple[Action, ...]
    cases: tuple[CaseRow, ...]
    sent: tuple[Sent, ...]
    effects: tuple[StoredEffect, ...]


class Ahead(NamedTuple):
    """The message that another one waits behind."""

    seq: int
    state: str
    type: str
