"""Messages as reports show them: rows of a list, and everything about one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from onceward.message import microseconds, moment
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
from onceward.testing.memory.tables import Tables


def listed(tables: Tables, listing: Listing, seqs: list[int]) -> list[Row]:
    """Those of these that match, newest first."""
    found = (_row(tables, seq) for seq in sorted(seqs, reverse=True))
    return [row for row in found if _matches(tables, listing, row)][: listing.limit]


def _matches(tables: Tables, listing: Listing, row: Row) -> bool:
    wanted = {"status": listing.status, "type": listing.type, "key": listing.key, "source": listing.source}
    last = tables.last_attempt(row.seq)
    at = tables.ledger[row.seq].received_at
    return (
        all(value is None or getattr(row, name) == value for name, value in wanted.items())
        and (listing.before is None or row.seq < listing.before)
        and (listing.since is None or at >= microseconds(listing.since))
        and (listing.until is None or at < microseconds(listing.until))
        and listing.fingerprint in (None, last and last.row["fingerprint"])
    )


def _row(tables: Tables, seq: int) -> Row:
    known, body, row = tables.ledger[seq], tables.bodies.get(seq), tables.queue.get(seq)
    last = tables.last_attempt(seq) if row is not None else None
    return Row(
        seq=seq,
        status=_status(tables, seq),
        source=tables.name(known.source),
        id=body["id"] if body else "",
        type=body["type"] if body else "",
        version=body["version"] if body else 0,
        key=body["key"] if body else None,
        consumer=tables.name(known.consumer),
        attempts=row.attempts if row else 0,
        crashes=row.crashes if row else 0,
        received_at=moment(known.received_at),
        due_at=maybe(row.due_at) if row else None,
        error=last.row["error"] if last else None,
    )


def _status(tables: Tables, seq: int) -> str:
    if seq in tables.queue:
        return tables.queue[seq].status(tables.now)
    actions = (line.action for line in tables.audit.values() if line.seq == seq)
    action = next((one for one in actions if one in ("discard", "skip")), None)
    return {"discard": "discarded", "skip": "skipped", None: "done"}[action]


def message_of(tables: Tables, seq: int) -> StoredMessage:
    """Everything about one."""
    row, copies, run, known = _row(tables, seq), tables.copies.get(seq), tables.run_of(seq), tables.ledger[seq]
    body, queued = tables.bodies.get(seq), tables.queue.get(seq)
    sent = [(number, one) for number, one in tables.bodies.items() if one["cause"] == seq]
    return StoredMessage(
        seq=seq,
        source=row.source,
        stored_id=known.stored_id,
        consumer=row.consumer,
        hash=known.hash,
        received_at=row.received_at,
        id=body and body["id"],
        type=body and body["type"],
        version=body and body["version"],
        key=row.key,
        headers=body and body["headers"],
        body=body and body["body"],
        status=row.status,
        attempts=row.attempts,
        crashes=row.crashes,
        due_at=row.due_at,
        worker=queued.worker if queued else None,
        result=tables.results.get(seq),
        duplicates=copies.copies if copies else 0,
        destination=body and body["destination"],
        cause=body and body["cause"],
        first_duplicate_at=moment(copies.first_at) if copies else None,
        last_duplicate_at=moment(copies.last_at) if copies else None,
        scheduled_at=maybe(body["due_at"]) if body else None,
        finished_at=moment(run.finished_at) if run else None,
        finished_by=run.worker if run else None,
        code_version=run.code_version if run else None,
        history=tuple(_attempts(tables, seq)),
        actions=tuple(
            Action(moment(line.at), line.actor, line.action, line.reason)
            for line in tables.audit.values()
            if line.seq == seq
        ),
        cases=tuple(_cases(tables, seq)),
        sent=tuple(Sent(number, one["id"], one["type"], one["destination"]) for number, one in sent),
        effects=tuple(effects_of(tables, seq)),
    )


def _attempts(tables: Tables, seq: int) -> Iterator[Attempt]:
    for row, at in tables.attempts.values():
        if row["seq"] == seq:
            yield Attempt(**{name: value for name, value in row.items() if name != "seq"}, at=moment(at))  # type: ignore[arg-type] # its fields


def _cases(tables: Tables, seq: int) -> Iterator[CaseRow]:
    for number, case in tables.cases.items():
        other = case.mismatch
        if other["seq"] == seq:
            kind: MismatchKind = "type" if other["hash"] == tables.ledger[seq].hash else "body"
            times = moment(case.first_at), moment(case.last_at)
            decided = case.resolution, case.accepted
            yield CaseRow(number, kind, other["type"], other["version"], case.copies, *times, *decided)


def effects_of(tables: Tables, seq: int | None) -> list[StoredEffect]:
    """Of one message; or all whose outcome is unknown, and whose messages are not running."""
    found = []
    for key, one in tables.effects.items():
        row = tables.queue.get(one.seq)
        is_open = not one.done and not (row and row.token is not None)
        if one.seq == seq or (seq is None and is_open):
            times = moment(one.started_at), maybe(one.finished_at)
            found.append(StoredEffect(key, one.seq, one.name, one.done, one.result, *times))
    return found


def maybe(at: int | None) -> datetime | None:
    """A moment, where there is one."""
    return None if at is None else moment(at)
