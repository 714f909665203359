"""Archive: read what is finished and old enough, and remove the bodies of what was written to a file.

Invariant: a body is removed by its number, after the file that has it is on the disk; what was finished in between is
not among the numbers and waits for the next time.
"""

from __future__ import annotations

from onceward.domain import payload
from onceward.domain.reference import Reference, split
from onceward.flow import COMMIT, Flow, Query
from onceward.message import moment
from onceward.retention.archive import Record, with_body
from onceward.steps.context import Context, once


def next_archivable(context: Context, after: int, limit: int) -> Flow[list[tuple[Record, Reference | None]]]:
    """The next messages to archive, as they will stand in the file; and where the body is, if it is not in its row."""
    keep = context.settings.body_retention.total_seconds()
    (rows,) = yield from once(context, Query("archivable", {"after": after, "keep": keep, "limit": limit}))
    return [_record(*row) for row in rows]


def _record(  # noqa: PLR0913, PLR0917 - the columns of the row
    seq: int,
    source: str,
    consumer: str,
    message_id: str,
    kind: str,
    version: int,
    key: str | None,
    key_from: str | None,
    position: int | None,
    headers: str | None,
    body: bytes | None,
    digest: str,
    destination: str | None,
    cause: int | None,
    received_at: int,
    result: str | None,
) -> tuple[Record, Reference | None]:
    plain, reference = split(headers)
    record = {
        "seq": seq,
        "source": source,
        "id": message_id,
        "type": kind,
        "version": version,
        "key": key,
        "key_given": key_from == "caller",
        "position": position,
        "consumer": consumer,
        "received_at": moment(received_at).isoformat(),
        "sha256": digest,
        "headers": plain,
        "to": destination,
        "cause": cause,
        "result": payload.decode_text(result) if result else None,
    }
    return with_body(record, None if body is None or reference is not None else bytes(body)), reference


def drop_archived(context: Context, seqs: list[int]) -> Flow[int]:
    """Remove bodies that are in the archive by now."""
    yield context.short()
    locked = yield Query("lock_ledger", {"seqs": seqs})
    gone = yield Query("drop_bodies", {"seqs": [seq for (seq,) in locked]})
    yield COMMIT
    return len(gone)
