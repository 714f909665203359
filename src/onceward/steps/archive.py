"""Archive: read what is finished and old enough, and remove the bodies of what was written to a file.

Invariant: a body is removed by its number, after the file that has it is on the disk; what was finished in between is
not among the numbers and waits for the next time.
"""

from __future__ import annotations

from onceward.domain import payload
from onceward.domain.archived import Record, with_body
from onceward.domain.reference import Reference, split
from onceward.flow import Flow
from onceward.message import moment
from onceward.steps.context import Context
from onceward.stores.moves.retention import Archivable


def next_archivable(context: Context, after: int, limit: int) -> Flow[list[tuple[Record, Reference | None]]]:
    """The next messages to archive, as they will stand in the file; and where the body is, if it is not in its row."""
    keep = context.settings.body_retention.total_seconds()
    rows = yield from context.moves.retention.archivable(after, keep, limit)
    return [_record(row) for row in rows]


def _record(row: Archivable) -> tuple[Record, Reference | None]:
    plain, reference = split(row.headers)
    record = {
        "seq": row.seq,
        "source": row.source,
        "id": row.id,
        "type": row.type,
        "version": row.version,
        "key": row.key,
        "key_given": row.key_from == "caller",
        "position": row.position,
        "consumer": row.consumer,
        "received_at": moment(row.received_at).isoformat(),
        "sha256": row.sha256,
        "headers": plain,
        "to": row.destination,
        "cause": row.cause,
        "result": payload.decode_text(row.result) if row.result else None,
    }
    return with_body(record, None if row.body is None or reference is not None else bytes(row.body)), reference


def drop_archived(context: Context, seqs: list[int]) -> Flow[int]:
    """Remove bodies that are in the archive by now."""
    return (yield from context.moves.retention.drop_bodies(seqs))
