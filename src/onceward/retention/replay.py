"""Replay: receive finished messages again, from an archive or from the database itself."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace as changed
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from onceward.domain import checks
from onceward.domain.archived import Record, body_of
from onceward.inbox import Inbox
from onceward.message import Arguments
from onceward.registry import OUTBOX
from onceward.retention.archive import Archive
from onceward.retention.retention import TURN_MESSAGES, whole
from onceward.runtime.group_commit import SHARED
from onceward.runtime.runner import perform
from onceward.steps.archive import next_archivable


def chosen(  # noqa: PLR0913 - each is a filter
    where: Inbox | str | os.PathLike[str],
    *,
    type: str | None = None,  # noqa: A002 - the words every sender uses
    key: str | None = None,
    source: str | None = None,
    id: str | None = None,  # noqa: A002
    since: datetime | None = None,
    until: datetime | None = None,
) -> Iterator[Record]:
    """The finished messages of an archive or a database that came in, each id once, and still have their bodies."""
    seen: set[tuple[str, str]] = set()
    wanted = {"type": type, "key": key, "source": source, "id": id}
    for record in recorded(where, since, until):
        same = (record["source"], record["id"])
        if same not in seen and all(value is None or record[name] == value for name, value in wanted.items()):
            seen.add(same)
            yield record


def recorded(
    where: Inbox | str | os.PathLike[str], since: datetime | None = None, until: datetime | None = None
) -> Iterator[Record]:
    """As `chosen`, a record for each consumer that had the message."""
    for record in _stored(where) if isinstance(where, Inbox) else Archive(where).read():
        received_at = datetime.fromisoformat(record["received_at"])
        if (since is not None and received_at < since) or (until is not None and received_at >= until):
            continue
        if record["consumer"] != OUTBOX and body_of(record) is not None:
            yield record


def as_received(record: Record) -> Arguments:
    """What `receive` was given for it."""
    return {
        "source": record["source"],
        "id": record["id"],
        "type": record["type"],
        "version": record["version"],
        # What was found in a message is found again, by each consumer in its own way.
        "key": record["key"] if record.get("key_given", True) else None,
        "position": record.get("position"),
        "headers": record["headers"] or None,
        "body": body_of(record),
    }


def copy(
    inbox: Inbox,
    folder: str | os.PathLike[str],
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write finished messages to an archive and leave them where they are: a recorded day, for tests."""
    archive, copied = Archive(folder), 0
    records = recorded(inbox, since, until)
    while batch := list(itertools.islice(records, TURN_MESSAGES)):
        archive.add(batch)
        copied += len(batch)
        if progress:
            progress(copied)
    return copied


def _stored(inbox: Inbox) -> Iterator[Record]:
    """Every finished message that still has its body; the newest number of now is the last."""
    settings = changed(inbox.context.settings, body_retention=timedelta(0))
    context, after = changed(inbox.context, settings=settings), 0
    newest = max((row.seq for row in inbox.admin.messages(limit=1)), default=0)
    while records := perform(inbox.store, partial(next_archivable, context, after, SHARED)):
        for record, reference in records:
            after = record["seq"]
            if after > newest:  # it came meanwhile, perhaps from this very replay
                return
            yield record if reference is None else whole(context, record, reference)


def replay(
    inbox: Inbox,
    folder: str | os.PathLike[str] | None = None,
    *,
    again: str | None = None,
    progress: Callable[[int], None] | None = None,
    **filters: Any,
) -> Counter[str]:
    """Receive messages of an archive, or of the database itself, and count what became of them.

    What a consumer still remembers is a duplicate for it; what it has forgotten or never had runs, under its own id.
    With `again`, all run as messages of their own, whose ids have that label at their end; the same label twice runs
    nothing twice.
    """
    checks.no_others("replay()", filters, ("type", "key", "source", "id", "since", "until"))
    for edge in ("since", "until"):
        if filters.get(edge) is not None:  # one without a zone is local time, as everywhere
            filters[edge] = checks.moment("replay()", edge, filters[edge]).astimezone()
    if again is not None and not checks.is_text(again):
        checks.refuse("replay()", "again", again, "a label for this replay, for example a date")
    became: Counter[str] = Counter()

    def arguments() -> Iterator[Arguments]:
        for record in chosen(inbox if folder is None else folder, **filters):
            message = as_received(record)
            if again is not None:
                message["id"] = f"{message['id']}#{again}"
            yield message

    messages = arguments()
    while batch := list(itertools.islice(messages, SHARED)):
        became.update(receipt.status for receipt in inbox.receive_many(batch))
        if progress:
            progress(became.total())
    return became
