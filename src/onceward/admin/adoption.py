"""Importing what was handled before onceward: `inbox.admin.import_ids`, from a table or any iterable.

Invariant: memory is bounded by a batch, however many ids there are; each batch is one short transaction, and importing
an id again changes nothing. So an import that was interrupted is simply run again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from onceward.domain import checks, identity
from onceward.errors import ConfigurationError, InvalidMessage, StoreConflict, StoreUnavailable
from onceward.runtime.runner import perform
from onceward.steps import adopt
from onceward.steps.adopt import HandledId
from onceward.steps.context import Context
from onceward.steps.prune import check_window
from onceward.stores.protocol import Store

BATCH = 500
PAGE = 5000
"""So many ids of a table are read at once."""
TRIES = 10
"""So often a batch is tried while a live receive holds one of its ids, each time for `lock_wait`."""

Seen = datetime | int | float | str | None


@dataclass(slots=True)
class Imported:
    """How far an import has come."""

    consumers: list[str]
    """For whom copies of the ids are duplicates."""
    read: int = 0
    """How many ids were read."""
    imported: int = 0
    """How many rows are new: one for each id and consumer."""
    known: int = 0
    """How many were there already, from an earlier import or because the message was received."""
    too_old: int = 0
    """How many ids were skipped, for onceward would have forgotten them by now (`Settings.dedupe_retention`)."""
    refused: int = 0
    """How many ids were skipped because no message can have them: empty, too long, with control characters."""
    first_refused: str = ""
    last: str | int | None = None
    """The id that was read last; `after=` begins behind it."""


@dataclass(frozen=True, slots=True)
class Table:
    """Where a hand-written inbox keeps what it has handled; in the inbox's own database."""

    name: str
    id_column: str
    seen_column: str | None = None
    where: str | None = None
    """A condition in SQL, as its owner writes it: `source = 'stripe' AND status = 'done'`."""

    def rows(self, store: Store, after: Any = None) -> Iterator[tuple[Any, Any]]:
        """Ids and when they were seen last, in the order of the ids, a page at a time, each in a look of its own."""
        mark = "?" if store.dialect == "sqlite" else "%s"
        quote = "`" if store.dialect == "mysql" else '"'
        column, where, name = _quoted(self.id_column, quote), "", _quoted(self.name, quote)
        if self.where is not None:
            where = f" AND ({self.where})" if mark == "?" else f" AND ({self.where})".replace("%", "%%")
        seen = "NULL" if self.seen_column is None else f"max({_quoted(self.seen_column, quote)})"
        # MySQL may take several ids for one, by the collation of the column.
        bytewise = f"CAST({column} AS BINARY)"
        spellings = f"count(DISTINCT {bytewise})" if store.dialect == "mysql" else "1"
        first = f"SELECT {column}, {seen}, {spellings} FROM {name} WHERE {column} IS NOT NULL"
        order = f" GROUP BY {column} ORDER BY {column} LIMIT {PAGE}"
        several = f"SELECT min({column}), {seen}, 1 FROM {name} WHERE {column} = {mark}{where} GROUP BY {bytewise}"
        while True:
            further, values = ("", ()) if after is None else (f" AND {column} > {mark}", (after,))
            found: list[tuple[Any, ...]] = []
            with store.raw() as connection:
                if store.dialect == "mysql":
                    connection.execute("SET time_zone = '+00:00'")  # in which a TIMESTAMP is read
                page = connection.execute(f"{first}{further}{where}{order}", values).fetchall()
                for row in page:
                    found += [row] if row[2] == 1 else connection.execute(several, row[:1]).fetchall()
            yield from (row[:2] for row in found)
            if len(page) < PAGE:
                return
            after = page[-1][0]


def import_ids(  # noqa: PLR0913 - each is one decision
    context: Context,
    store: Store,
    source: str,
    ids: Iterable[Any] | Table,
    *,
    consumers: Collection[str] = (),
    after: str | int | None = None,
    preview: bool = False,
    progress: Callable[[Imported], None] | None = None,
) -> Imported:
    """Import ids in batches; see `Admin.import_ids`."""
    identity.check_name("source", source)
    adopt.check_consumers(consumers)
    store.check_schema()
    for name, seconds in perform(store, context.moves.retention.latest_sources).items():
        check_window(context, name, timedelta(seconds=seconds))
    known = perform(store, lambda: adopt.consumers_of(context))
    imported = Imported(sorted(set(consumers)) or known)
    rows = ids.rows(store, after) if isinstance(ids, Table) else iter(ids)
    step = adopt.known_ids if preview else adopt.adopt
    while batch := list(itertools.islice(rows, BATCH)):
        handled = list(_handled(context, batch, imported))
        found = _performed(store, partial(step, context, source, imported.consumers, handled))
        rest = len(handled) * len(imported.consumers) - found
        imported.imported += rest if preview else found
        imported.known += found if preview else rest
        if progress is not None:
            progress(imported)
    return imported


def _handled(context: Context, batch: Iterable[Any], imported: Imported) -> Iterator[HandledId]:
    """The ids of a batch as they are stored, each once; the others are counted."""
    keep, now, newest = context.settings.dedupe_retention, datetime.now(UTC), dict[str, timedelta]()
    for row in batch:
        given, seen = row if isinstance(row, tuple) else (row, None)
        imported.read += 1
        imported.last = given if isinstance(given, int) else str(given)
        try:
            message_id = identity.check_id(_text(given))
        except InvalidMessage as error:
            imported.refused += 1
            imported.first_refused = imported.first_refused or str(error)
            continue
        age = max(now - _moment(seen, now), timedelta(0))
        if age >= keep:
            imported.too_old += 1
        else:
            newest[message_id] = min(age, newest.get(message_id, age))
    for message_id, age in newest.items():
        yield HandledId(message_id, age // timedelta(microseconds=1))


def _performed(store: Store, step: Callable[[], Any]) -> int:
    """Run a step for as long as live receives are in its way; what it committed is found when it runs again."""
    for _ in range(TRIES - 1):
        try:
            return int(perform(store, step))
        except (StoreConflict, StoreUnavailable):
            time.sleep(0.05)
    return int(perform(store, step))


def _text(given: Any) -> Any:
    """An id as a message would bring it: text as it is, a number or a UUID in its usual form."""
    if isinstance(given, UUID) or (isinstance(given, int) and not isinstance(given, bool)):
        return str(given)
    if isinstance(given, bytes | bytearray | memoryview):
        try:
            return bytes(given).decode()
        except UnicodeDecodeError:
            raise InvalidMessage(f"id {bytes(given)[:40]!r} is not text; make it text and import from Python") from None
    return given


def _moment(seen: Seen, now: datetime) -> datetime:
    """When an id was handled: a time, ISO 8601 text, or seconds since 1970; without a zone in UTC."""
    if seen is None:
        return now
    try:
        if isinstance(seen, int | float):
            return datetime.fromtimestamp(seen, UTC)
        read = datetime.fromisoformat(seen) if isinstance(seen, str) else seen
        return read if read.tzinfo else read.replace(tzinfo=UTC)
    except (AttributeError, TypeError, ValueError, OverflowError, OSError):
        raise ConfigurationError(
            f"{seen!r} is not a time that can be read: a timestamp, ISO 8601 text (2026-11-18T12:00) or seconds since "
            "1970 can. Leave the column of times out, and every id is remembered from now on"
        ) from None


def _quoted(name: str, quote: str) -> str:
    """A name of a table or column, perhaps with its schema, as SQL takes it."""
    parts = name.split(".")
    if not all(parts):
        raise ConfigurationError(f"{name!r} is not the name of a table or column; write processed or legacy.processed")
    return ".".join(
        quote + checks.text("import_ids()", "name", part).replace(quote, quote * 2) + quote for part in parts
    )
