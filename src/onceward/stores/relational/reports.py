"""Reports, as statements.

Invariant: they only read, and are planned as the database likes: what reads much is slow by an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from onceward.flow import Flow, Query
from onceward.message import microseconds, moment
from onceward.registry import OUTBOX
from onceward.stores.moves.messages import (
    Action,
    Ahead,
    Attempt,
    CaseRow,
    Listing,
    Row,
    Sent,
    StoredEffect,
    StoredMessage,
)
from onceward.stores.moves.operations import Case
from onceward.stores.moves.reports import (
    Apart,
    AuditLine,
    BlockedKey,
    DeadGroup,
    Failing,
    Halted,
    Hit,
    Keyless,
    Minute,
    Refused,
    Running,
    SourceRow,
    Stats,
    Storage,
    StoredPoll,
    TableSize,
    Unserved,
    WorkerRow,
)
from onceward.stores.relational.transaction import Transactions

_CALLS = 1000
"""So many external calls of one message are shown with it."""
_RECEIVED, _DONE, _FAILED = range(3)
"""The kinds that `traffic` counts."""
_TIMES = ("received_at", "due_at", "first_duplicate_at", "last_duplicate_at", "scheduled_at", "finished_at")
"""Those of a message."""


class Reports:
    """What operators see."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    # Messages

    def unfinished(self, listing: Listing) -> Flow[list[Row]]:
        rows = yield from self._rows("list_unfinished", **_filters(listing))
        return [_row(*row) for row in rows]

    def finished(self, listing: Listing) -> Flow[list[Row]]:
        rows = yield from self._rows("list_finished", **_filters(listing), outbox=OUTBOX)
        return [_row(*row) for row in rows]

    def message(self, seq: int) -> Flow[StoredMessage | None]:
        which = {"seq": seq}
        lists = ("show_run", "show_attempts", "show_audit", "show_cases", "show_sent")
        rows, *related = yield from self._transactions.read(
            Query("show", which),
            *(Query(name, which) for name in lists),
            Query("effects", {**which, "limit": _CALLS}),
        )
        return _message(rows[0], related) if rows else None

    def ahead(self, seq: int) -> Flow[Ahead | None]:
        rows = yield from self._rows("ahead", seq=seq)
        return Ahead(*rows[0]) if rows else None

    def find(self, source: str, consumer: str, *, from_id: bytes, below_id: bytes) -> Flow[list[int]]:
        rows = yield from self._rows("find", source=source, consumer=consumer, from_id=from_id, below_id=below_id)
        return [seq for (seq,) in rows]

    def find_anywhere(self, limit: int, *, from_id: bytes, below_id: bytes) -> Flow[list[int]]:
        rows = yield from self._rows("find_id", limit=limit, from_id=from_id, below_id=below_id)
        return [seq for (seq,) in rows]

    def search(self, text: str, newest: int, limit: int) -> Flow[list[Hit]]:
        wanted = {"text": text, "bytes": text.encode(errors="replace")}
        rows = yield from self._rows("search", **wanted, newest=newest, limit=limit)
        return [Hit(*row) for row in rows]

    def quarantined(self, limit: int) -> Flow[list[Case]]:
        rows = yield from self._rows("quarantined", case_id=None, limit=limit)
        return [Case(*row) for row in rows]

    def effects(self, seq: int | None, limit: int) -> Flow[list[StoredEffect]]:
        rows = yield from self._rows("effects", seq=seq, limit=limit)
        return [_effect(*row) for row in rows]

    # The inbox as a whole

    def stats(self) -> Flow[Stats]:
        (row,) = yield from self._rows("stats")
        counted = Stats(*row)
        return replace(counted, done=counted.done - counted.skipped)  # what is skipped has a run, too

    def workers(self) -> Flow[list[WorkerRow]]:
        rows = yield from self._rows("workers")
        return [
            WorkerRow(*(*process, bool(inline), moment(started), *rest))
            for *process, inline, started, rest in ((*row[:7], row[7:]) for row in rows)
        ]

    def running(self, limit: int) -> Flow[list[Running]]:
        rows = yield from self._rows("running", limit=limit)
        return [Running(*(*which, bool(outgoing), attempt)) for *which, outgoing, attempt in rows]

    def dead_groups(self, limit: int) -> Flow[list[DeadGroup]]:
        rows = yield from self._rows("dead_groups", limit=limit)
        return [
            DeadGroup(*(fingerprint, kind, consumer, bool(outgoing), *counts, moment(first), moment(last), error))
            for fingerprint, kind, consumer, outgoing, *counts, first, last, error in rows
        ]

    def blocked_keys(self, limit: int) -> Flow[list[BlockedKey]]:
        rows = yield from self._rows("blocked_keys", limit=limit)
        return [
            BlockedKey(seq, kind, key, consumer, bool(outgoing), moment(received), *behind)
            for seq, kind, key, consumer, outgoing, received, *behind in rows
        ]

    def failing(self, times: int, held: float, halted: Halted) -> Flow[Failing]:
        # No list is empty, which not every dialect can say: no subscription is 0, and no destination has no name.
        without = {"subscriptions": [0, *halted.subscriptions], "destinations": ["", *halted.destinations]}
        (row,) = yield from self._rows("failing", times=times, held=held, **without)
        return Failing(*row)

    def sources(self, newest: int) -> Flow[list[SourceRow]]:
        rows = yield from self._rows("sources", newest=newest)
        return [
            SourceRow(name, None if late is None else timedelta(seconds=late), recent, _maybe(last), copies)
            for name, late, recent, last, copies in rows
        ]

    def polls(self) -> Flow[list[StoredPoll]]:
        rows = yield from self._rows("polls")
        return [
            StoredPoll(source, cursor, number, bool(running), due, _maybe(ended), *last)
            for source, cursor, number, running, due, ended, *last in rows
        ]

    def storage(self) -> Flow[Storage]:
        sizes, (oldest,) = yield from self._transactions.read(Query("sizes"), Query("oldest"))
        return Storage(tuple(TableSize(*row) for row in sizes), *map(_maybe, oldest))

    def pruning_due(self) -> Flow[datetime | None]:
        ((*_, due),) = yield from self._rows("oldest")
        return _maybe(due)

    def audit(self, before: int | None, limit: int) -> Flow[list[AuditLine]]:
        rows = yield from self._rows("audit", before=before, limit=limit)
        return [AuditLine(number, moment(at), *action) for number, at, *action in rows]

    def traffic(self, minutes: int, newest: int) -> Flow[list[Minute]]:
        rows = yield from self._rows("traffic", minutes=minutes, newest=newest, outbox=OUTBOX)
        return list(_minutes(rows, minutes))

    # What can be wrong

    def unserved(self) -> Flow[list[Unserved]]:
        rows = yield from self._rows("unserved")
        return [Unserved(*row) for row in rows]

    def refused(self) -> Flow[Refused]:
        (row,) = yield from self._rows("refused")
        return Refused(*row)

    def unreachable(self) -> Flow[int]:
        ((number,),) = yield from self._rows("illegal")
        return int(number)

    def keyless(self, newest: int) -> Flow[list[Keyless]]:
        rows = yield from self._rows("keyless", newest=newest)
        return [Keyless(*row) for row in rows]

    def apart(self) -> Flow[list[Apart]]:
        rows = yield from self._rows("apart")
        return [Apart(*row) for row in rows]

    def debris(self) -> Flow[list[str]]:
        rows = yield from self._rows("debris")
        return [command for (command,) in rows]

    def _rows(self, statement: str, **params: Any) -> Flow[list[Any]]:
        (rows,) = yield from self._transactions.read(Query(statement, params))
        return rows


def _filters(listing: Listing) -> dict[str, Any]:
    edges = {"since": listing.since, "until": listing.until}
    return {**listing._asdict(), **{name: edge and microseconds(edge) for name, edge in edges.items()}}


def _row(*row: Any) -> Row:
    *which, received, due, error = row
    return Row(*(*which, moment(received), _maybe(due), error))


def _message(row: Sequence[Any], related: Sequence[list[Any]]) -> StoredMessage:
    runs, attempts, audit, cases, sent, calls = related
    finished, by, code_version, _ = runs[0] if runs else (None,) * 4
    kept = dict(zip(StoredMessage._fields, (*row, finished, by, code_version), strict=False))
    return StoredMessage(
        **{**kept, **{name: _maybe(kept[name]) for name in _TIMES}},
        history=tuple(_attempt(*one) for one in attempts),
        actions=tuple(Action(moment(at), *done) for at, *done in audit),
        cases=tuple(_case(*one) for one in cases),
        sent=tuple(Sent(*one) for one in sent),
        effects=tuple(_effect(*one) for one in calls),
    )


def _attempt(*row: Any) -> Attempt:
    attempt, kind, charged, *failure, at, fingerprint = row
    return Attempt(*(attempt, kind, bool(charged), *failure, moment(at), fingerprint))


def _case(*row: Any) -> CaseRow:
    *which, first, last, resolution, accepted = row
    return CaseRow(*(*which, moment(first), moment(last), resolution, accepted))


def _effect(*row: Any) -> StoredEffect:
    key, seq, name, done, result, started, finished = row
    return StoredEffect(key, seq, name, bool(done), result, moment(started), _maybe(finished))


def _minutes(rows: Sequence[Any], minutes: int) -> Iterator[Minute]:
    counts = {(kind, -minute): int(number) for kind, minute, number in rows}
    for ago in range(minutes - 1, -1, -1):
        received, done, failed = (counts.get((kind, ago), 0) for kind in (_RECEIVED, _DONE, _FAILED))
        yield Minute(ago, received, done, failed)


def _maybe(stored: int | None) -> datetime | None:
    return None if stored is None else moment(stored)
