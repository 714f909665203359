"""Replay: give archived messages to the inbox again."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from onceward.archive import Archive, Record, body_of
from onceward.errors import ConfigurationError
from onceward.gather import SHARED
from onceward.inbox import Inbox
from onceward.message import Arguments
from onceward.registry import OUTBOX


def chosen(
    folder: str | os.PathLike[str],
    *,
    type: str | None = None,  # noqa: A002 - the word every sender uses
    key: str | None = None,
    source: str | None = None,
) -> Iterator[Record]:
    """The messages of an archive that came in, each id once, and still have their bodies."""
    seen: set[tuple[str, str]] = set()
    wanted = {"type": type, "key": key, "source": source}
    for record in Archive(folder).read():
        same = (record["source"], record["id"])
        if record["consumer"] == OUTBOX or same in seen or body_of(record) is None:
            continue
        if all(value is None or record[name] == value for name, value in wanted.items()):
            seen.add(same)
            yield record


def replay(
    inbox: Inbox,
    folder: str | os.PathLike[str],
    *,
    again: str | None = None,
    progress: Callable[[int], None] | None = None,
    **filters: Any,
) -> Counter[str]:
    """Receive archived messages, and count what became of them.

    What the inbox still remembers is a duplicate; what it has forgotten runs, under its own id. With `again`, all run
    as messages of their own, whose ids have that label at their end; the same label twice runs nothing twice.
    """
    if again == "":
        raise ConfigurationError("again= is a label for this replay, for example a date; it cannot be empty")
    became: Counter[str] = Counter()

    def arguments() -> Iterator[Arguments]:
        for record in chosen(folder, **filters):
            yield {
                "source": record["source"],
                "id": record["id"] if again is None else f"{record['id']}#{again}",
                "type": record["type"],
                "version": record["version"],
                "key": record["key"],
                "headers": record["headers"] or None,
                "body": body_of(record),
            }

    messages = arguments()
    while batch := list(itertools.islice(messages, SHARED)):
        became.update(receipt.status for receipt in inbox.receive_many(batch))
        if progress:
            progress(became.total())
    return became
