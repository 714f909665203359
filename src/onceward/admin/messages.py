"""The read side: one place that answers what is in the inbox, for Python, the command line and whatever comes later.

Read only. The same number everywhere, because it is computed here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from onceward.domain import identity, payload
from onceward.domain.reference import Reference, split
from onceward.errors import BlobsUnavailable, BodyLost, InvalidMessage
from onceward.flow import Flow, Query
from onceward.message import microseconds, moment
from onceward.registry import OUTBOX
from onceward.steps.blob import read
from onceward.steps.context import Context, look

STATUSES = ("due", "running", "retrying", "waiting", "unhandled", "dead", "done", "discarded", "skipped")
OPEN = ("due", "waiting", "running", "retrying", "dead", "unhandled", "quarantined")
"""The numbers of `Stats` that are about what is not finished."""
_FINISHED = ("done", "discarded", "skipped")
MismatchKind = Literal["body", "type"]
FILTERS = ("type", "key", "source", "before", "since", "until", "fingerprint")


@dataclass(frozen=True, slots=True)
class Stats:
    """The inbox in numbers."""

    due: int
    waiting: int
    running: int
    retrying: int
    dead: int
    unhandled: int
    quarantined: int
    done: int
    discarded: int
    skipped: int
    duplicates: int
    failures: int
    workers: int
    oldest_due_seconds: float
    done_last_minute: int
    outbox_unsent: int
    outbox_dead: int
    outbox_sent: int
    polls_failing: int


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
class Case:
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


@dataclass(frozen=True, slots=True)
class Effect:
    """An external call under `message.once`. Not done: nobody knows whether it happened, or it is happening now."""

    key: str
    seq: int
    name: str
    done: bool
    result: Any
    started_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Story:
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
    cases: tuple[Case, ...]
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


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A process that runs or ran handlers."""

    id: int
    process: str
    host: str
    pid: int
    code_version: str
    inline: bool
    started_at: datetime
    lease_seconds: float
    holds: int


def stats(context: Context) -> Flow[Stats]:
    """Counts by status and the age of the oldest due message."""
    (rows,) = yield from look(context, Query("stats"))
    numbers = Stats(*rows[0])
    return replace(numbers, done=numbers.done - numbers.skipped)


def messages(
    context: Context, *, status: str | None = None, limit: int = 100, outgoing: bool = False, **filters: Any
) -> Flow[list[Row]]:
    """Messages, newest first; the outgoing ones if asked for."""
    params = {**dict.fromkeys(FILTERS), **filters, "limit": limit, "outgoing": outgoing, "outbox": OUTBOX}
    for edge in ("since", "until"):
        if params[edge] is not None:
            params[edge] = microseconds(params[edge])
    found: list[tuple[Any, ...]] = []
    if status not in _FINISHED:
        (rows,) = yield from look(context, Query("list_unfinished", {**params, "status": status}))
        found += rows
    if status is None or status in _FINISHED:
        (rows,) = yield from look(context, Query("list_finished", {**params, "status": status}))
        found += rows
    found.sort(key=lambda row: -row[0])
    return [Row(*(*row[:10], moment(row[10]), _maybe(row[11]), row[12])) for row in found[:limit]]


def story(context: Context, seq: int) -> Flow[Story | None]:
    """One message with its history."""
    params = {"seq": seq}
    rows, runs, attempts, actions, cases, sent, calls = yield from look(
        context,
        Query("show", params),
        Query("show_run", params),
        Query("show_attempts", params),
        Query("show_audit", params),
        Query("show_cases", params),
        Query("show_sent", params),
        Query("effects", {"seq": seq, "limit": 1000}),
    )
    if not rows:
        return None
    row, run = rows[0], (runs[0] if runs else None)
    headers, reference = split(row[10])
    body, problem = yield from _whole(context, reference, row[11])
    return Story(
        seq=row[0],
        source=row[1],
        id=row[6] if row[6] is not None else identity.readable_id(bytes(row[2])),
        consumer=row[3],
        hash=bytes(row[4]).hex(),
        received_at=moment(row[5]),
        type=row[7],
        version=row[8],
        key=row[9],
        headers=headers,
        body=body,
        blob=None if reference is None else reference.name,
        body_problem=problem,
        status=row[12],
        attempts=row[13],
        crashes=row[14],
        due_at=_maybe(row[15]),
        worker=row[16],
        result=None if row[17] is None else payload.decode_text(row[17]),
        duplicates=row[18],
        destination=row[19],
        cause=row[20],
        first_duplicate_at=_maybe(row[21]),
        last_duplicate_at=_maybe(row[22]),
        cases=tuple(Case(*(*one[:5], moment(one[5]), moment(one[6]), *one[7:])) for one in cases),
        sent=tuple(Sent(*one) for one in sent),
        effects=tuple(_effect(one) for one in calls),
        finished_at=moment(run[0]) if run else None,
        finished_by=run[1] if run else None,
        code_version=run[2] if run else None,
        history=tuple(Attempt(*(*one[:2], bool(one[2]), *one[3:7], moment(one[7]), one[8])) for one in attempts),
        actions=tuple(Action(moment(at), actor, action, reason) for at, actor, action, reason in actions),
    )


def find(context: Context, source: str, message_id: str) -> Flow[list[int]]:
    """The numbers under which an id of a source is known, one for each consumer."""
    params = {"source": source, **identity.stored_range(message_id), "consumer": context.service}
    (rows,) = yield from look(context, Query("find", params))
    return [seq for (seq,) in rows]


def find_anywhere(context: Context, message_id: str, *, limit: int = 100) -> Flow[list[int]]:
    """The numbers under which an id is known, from whatever source and for whatever consumer."""
    (rows,) = yield from look(context, Query("find_id", {**identity.stored_range(message_id), "limit": limit}))
    return [seq for (seq,) in rows]


def quarantine(context: Context, *, limit: int = 100) -> Flow[list[Mismatch]]:
    """Open cases of an id with two bodies, or two types."""
    (rows,) = yield from look(context, Query("quarantined", {"case_id": None, "limit": limit}))
    found = []
    for row in rows:
        first, _ = yield from _whole(context, split(row[17])[1], row[13])
        found.append(_mismatch(row, first))
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
    (rows,) = yield from look(context, Query("effects", {"seq": seq, "limit": limit}))
    return [_effect(row) for row in rows]


def _effect(row: tuple[Any, ...]) -> Effect:
    key, seq, name, done, result, started, finished = row
    value = None if result is None else payload.decode_text(result)
    return Effect(key, seq, name, bool(done), value, moment(started), _maybe(finished))


def workers(context: Context) -> Flow[list[WorkerRow]]:
    """The processes that are registered."""
    (rows,) = yield from look(context, Query("workers"))
    return [WorkerRow(*(*row[:5], bool(row[5]), moment(row[6]), *row[7:])) for row in rows]


def _mismatch(row: tuple[Any, ...], first: bytes | None) -> Mismatch:
    other = bytes(row[6])
    return Mismatch(
        case=row[0],
        seq=row[1],
        source=row[10],
        id=row[15] or identity.readable_id(bytes(row[11])),
        kind="type" if bytes(row[2]) == bytes(row[12]) else "body",
        type=row[3],
        version=row[4],
        first_type=row[18],
        first_version=row[19],
        consumer=row[14],
        copies=row[7],
        first_at=moment(row[8]),
        last_at=moment(row[9]),
        first_body=first,
        other_body=other,
        first_hash=bytes(row[12]).hex(),
        other_hash=bytes(row[2]).hex(),
        differences=() if first is None else tuple(differences(first, other)),
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


def _maybe(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else moment(microseconds)
