"""The read side: the one place that reads what is in the inbox, for Python, the command line and the dashboard.

Read only. The same number everywhere, because it is computed here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onceward.domain import identity, payload
from onceward.domain.reference import Reference, split
from onceward.errors import BlobsUnavailable, BodyLost, InvalidMessage
from onceward.flow import Flow
from onceward.message import moment
from onceward.steps.blob import read
from onceward.steps.context import Context
from onceward.stores.moves.messages import (
    Action,
    Attempt,
    CaseRow,
    Listing,
    MismatchKind,
    Row,
    Sent,
    StoredEffect,
    StoredMessage,
)
from onceward.stores.moves.operations import Case
from onceward.stores.moves.reports import Hit, Stats, WorkerRow

__all__ = [
    "Action",
    "Attempt",
    "CaseRow",
    "Effect",
    "Hit",
    "MessageDetail",
    "Mismatch",
    "Row",
    "Sent",
    "Stats",
    "WorkerRow",
]

STATUSES = ("due", "running", "retrying", "scheduled", "waiting", "unhandled", "dead", "done", "discarded", "skipped")
OPEN = ("due", "waiting", "running", "retrying", "scheduled", "dead", "unhandled", "quarantined")
"""The numbers of `Stats` that are about what is not finished."""
SEARCHED = 1000
"""So many failures, and so many payloads, are searched for a text;"""
FOUND = 50
"""and so many messages found at most."""
_FINISHED = ("done", "discarded", "skipped")


@dataclass(frozen=True, slots=True)
class Effect:
    """An external call under `message.once`. Not done: it is unknown whether it happened, or it is happening now."""

    key: str
    seq: int
    name: str
    done: bool
    result: Any
    started_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """Everything known about one message."""

    seq: int
    status: str
    source: str
    id: str
    type: str | None
    version: int | None
    key: str | None
    consumer: str
    headers: Mapping[str, str]
    body: bytes | None
    hash: str
    received_at: datetime
    finished_at: datetime | None
    finished_by: int | None
    code_version: str | None
    attempts: int
    crashes: int
    due_at: datetime | None
    worker: int | None
    result: Any
    duplicates: int
    first_duplicate_at: datetime | None
    last_duplicate_at: datetime | None
    scheduled_at: datetime | None
    """When it was to run, where it came with `at=` or `delay=`."""
    cases: tuple[CaseRow, ...]
    destination: str | None
    cause: int | None
    history: tuple[Attempt, ...]
    actions: tuple[Action, ...]
    sent: tuple[Sent, ...]
    effects: tuple[Effect, ...]
    blob: str | None = None
    """The name under which a large body is in the blob store."""
    body_problem: str | None = None
    """Why it cannot be read from there just now."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An id that came again with other bytes, or under another type or version."""

    case: int
    kind: MismatchKind
    """`type` where the bytes are the same and only the type or its version differs, else `body`."""
    seq: int
    source: str
    id: str
    type: str
    version: int
    first_type: str | None
    """None where nothing but its id is kept any more; so is `first_version`."""
    first_version: int | None
    consumer: str
    copies: int
    first_at: datetime
    last_at: datetime
    first_body: bytes | None
    other_body: bytes
    first_hash: str
    other_hash: str
    differences: tuple[tuple[str, Any, Any], ...]
    """Field by field: path, value of the first body, value of the other."""


_AS_STORED = StoredMessage.__annotations__.keys() & MessageDetail.__annotations__.keys() - {
    "id",
    "hash",
    "headers",
    "body",
    "result",
    "effects",
}


def stats(context: Context) -> Flow[Stats]:
    """Counts by status and the age of the oldest due message."""
    return (yield from context.moves.reports.stats())


def messages(
    context: Context, *, status: str | None = None, limit: int = 100, outgoing: bool = False, **filters: Any
) -> Flow[list[Row]]:
    """Messages, newest first; the outgoing ones if asked for."""
    listing = Listing(limit, outgoing, status, **filters)
    found: list[Row] = []
    if status not in _FINISHED:
        found += yield from context.moves.reports.unfinished(listing)
    if status is None or status in _FINISHED:
        found += yield from context.moves.reports.finished(listing)
    return sorted(found, key=lambda row: -row.seq)[:limit]


def detail(context: Context, seq: int) -> Flow[MessageDetail | None]:
    """One message with its history."""
    stored = yield from context.moves.reports.message(seq)
    if stored is None:
        return None
    headers, reference = split(stored.headers)
    body, problem = yield from _whole(context, reference, stored.body)
    return MessageDetail(
        **{name: getattr(stored, name) for name in _AS_STORED},
        id=identity.readable_id(stored.stored_id) if stored.id is None else stored.id,
        hash=stored.hash.hex(),
        headers=headers,
        body=body,
        blob=None if reference is None else reference.name,
        body_problem=problem,
        result=None if stored.result is None else payload.decode_text(stored.result),
        effects=tuple(map(_effect, stored.effects)),
    )


def find(context: Context, source: str, message_id: str) -> Flow[list[int]]:
    """The numbers under which an id of a source is known, one for each consumer."""
    return (yield from context.moves.reports.find(source, context.service, **identity.stored_range(message_id)))


def find_anywhere(context: Context, message_id: str, *, limit: int = 100) -> Flow[list[int]]:
    """The numbers under which an id is known, from whatever source and for whatever consumer."""
    return (yield from context.moves.reports.find_anywhere(limit, **identity.stored_range(message_id)))


def search(context: Context, text: str) -> Flow[list[Hit]]:
    """Messages with a text in an error or a payload, among the newest of each."""
    return (yield from context.moves.reports.search(text, SEARCHED, FOUND))


def quarantine(context: Context, *, limit: int = 100) -> Flow[list[Mismatch]]:
    """Open mismatches: ids with two bodies, or two types."""
    cases = yield from context.moves.reports.quarantined(limit)
    found = []
    for case in cases:
        first, _ = yield from _whole(context, split(case.first_headers)[1], case.first_body)
        found.append(_mismatch(case, first))
    return found


def _whole(context: Context, reference: Reference | None, body: bytes | None) -> Flow[tuple[bytes | None, str | None]]:
    """A body wherever it is, or why it cannot be read: what else is known is worth seeing all the same."""
    if reference is None or body is None:
        return None if body is None else bytes(body), None
    try:
        return (yield from read(context, reference)), None
    except (BlobsUnavailable, BodyLost) as error:
        return None, str(error)


def effects(context: Context, *, seq: int | None = None, limit: int = 1000) -> Flow[list[Effect]]:
    """The external calls of one message, also of one that was rolled back; or all whose outcome is not known."""
    found = yield from context.moves.reports.effects(seq, limit)
    return [_effect(one) for one in found]


def _effect(stored: StoredEffect) -> Effect:
    result = None if stored.result is None else payload.decode_text(stored.result)
    return Effect(**{**stored._asdict(), "result": result})


def workers(context: Context) -> Flow[list[WorkerRow]]:
    """The processes that are registered."""
    return (yield from context.moves.reports.workers())


def _mismatch(case: Case, first: bytes | None) -> Mismatch:
    return Mismatch(
        case=case.case,
        seq=case.seq,
        source=case.source,
        id=case.first_id or identity.readable_id(case.stored_id),
        kind="type" if case.hash == case.first_hash else "body",
        type=case.type,
        version=case.version,
        first_type=case.first_type,
        first_version=case.first_version,
        consumer=case.consumer,
        copies=case.copies,
        first_at=moment(case.first_at),
        last_at=moment(case.last_at),
        first_body=first,
        other_body=case.body,
        first_hash=case.first_hash.hex(),
        other_hash=case.hash.hex(),
        differences=() if first is None else tuple(differences(first, case.body)),
    )


MISSING = "(missing)"


def differences(first: bytes, other: bytes) -> list[tuple[str, Any, Any]]:
    """Where two bodies differ, field by field; as a whole where they are not JSON."""
    try:
        return _compare("", payload.decode(first), payload.decode(other))
    except InvalidMessage:
        return [("", first.decode(errors="replace"), other.decode(errors="replace"))]


def _compare(path: str, first: Any, other: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(first, dict) and isinstance(other, dict):
        found = []
        for name in sorted(first.keys() | other.keys()):
            inner = f"{path}.{name}" if path else name
            found += _compare(inner, first.get(name, MISSING), other.get(name, MISSING))
        return found
    return [] if first == other and type(first) is type(other) else [(path, first, other)]
