"""What keeps the tables small and clean for years: retention, archive, erasure and the spool. `inbox.retention`.

Running workers do this by themselves (`Settings.maintenance`); each method here does it now, and is safe beside them.
What takes long has an awaited form for ASGI applications: `inbox.retention.aerase(...)`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

from onceward.admin.actor import user
from onceward.admin.admin import Admin
from onceward.domain import checks, identity, payload
from onceward.domain.archived import Record, body_of, with_body
from onceward.domain.reference import Reference
from onceward.errors import BlobsUnavailable, BodyLost, ConfigurationError
from onceward.retention.archive import Archive
from onceward.retention.maintenance import Maintenance
from onceward.runtime.awaited import awaited
from onceward.runtime.runner import perform
from onceward.runtime.spooling import Spooling
from onceward.steps import archive as archiving
from onceward.steps import erase as erasing
from onceward.steps.blob import know_folder, remove_unreferred
from onceward.steps.context import Context
from onceward.steps.prune import BATCH, Pruned, PruneProgress, declare, prune
from onceward.stores.protocol import Store

log = logging.getLogger("onceward")

FILE_MESSAGES = 50_000
"""How many messages a file of the archive has at most,"""
TURN_MESSAGES = 5_000
"""and how many where workers archive beside their work;"""
FILE_BYTES = 64 * 1024 * 1024
"""it is written in one piece, so large bodies end it sooner."""
GRACE = timedelta(days=1)
"""A blob is older than this before it is collected: longer than any receive takes, also in a caller's transaction."""


class Retention:
    """Retention, archive, erasure and the spool."""

    def __init__(
        self, context: Context, store: Store, admin: Admin, spooling: Spooling, folder: str | os.PathLike[str] | None
    ) -> None:
        self._context, self._store, self._admin, self._spooling = context, store, admin, spooling
        self._folder = folder
        """Where workers archive, if they do."""

    def drain_spool(self) -> int:
        """Store what waits in the spool, now; returns how many messages. It happens by itself, too."""
        return self._spooling.drain()

    @property
    def spooled(self) -> bool:
        """Whether messages wait in the spool."""
        return self._spooling.waiting

    def declare_source(self, name: str, *, redelivers_for: timedelta) -> None:
        """Declare how long after the first delivery a source may still send a copy.

        A dedupe retention that is shorter is refused, here and wherever a program starts on the same tables.
        """
        checks.duration("declare_source()", "redelivers_for", redelivers_for, least=timedelta(0))
        declare(self._context, name, redelivers_for)

    def personal(
        self,
        *,
        key: Any = None,
        field: tuple[str, Any] | None = None,
        source: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> list[erasing.Match]:
        """Return what `erase` would erase: messages with a key, or a field (path and value), or an id of a source.

        Every body is read for a key or a field: live, finished, dead, outgoing and in quarantine. An id also finds
        what the handlers of its message sent.
        """
        _check_one(key, field, source, id)
        if source is not None and id is not None:
            seqs = perform(self._store, lambda: erasing.same_id(self._context, source, id))
            details = [detail for seq in seqs if (detail := self._admin.message(seq))]
            return [erasing.Match(one.seq, one.type or "", one.source, _unfinished(one.status)) for one in details]
        test = _test(key, field)
        return perform(self._store, lambda: erasing.search(self._context, test))

    def erase(self, /, *seqs: int, reason: str, actor: str = "") -> list[int]:
        """Erase the bodies, headers, keys, results and errors of messages (see `personal`); ids and hashes stay.

        What is unfinished is discarded first. Returns what could not be erased: it runs just now, waits behind an
        earlier number of its key, or is not there.
        """
        for seq in seqs:
            checks.whole("erase()", "seq", seq, least=0)
        checks.text("erase()", "reason", reason)
        who = actor or user()

        def erased(seq: int) -> bool:
            return perform(self._store, lambda: erasing.erase(self._context, seq, actor=who, reason=reason))

        return [seq for seq in seqs if not erased(seq)]

    def archive(self, folder: str | os.PathLike[str], *, progress: Callable[[int], None] | None = None) -> int:
        """Move finished messages older than `body_retention` to files in a folder; returns how many.

        A body leaves the database when the file that has it is on the disk. `progress` is called with how many so far.
        """
        checks.path("archive()", "folder", folder)
        if progress is not None:
            checks.function("archive()", "progress", progress)
        after, moved = 0, 0
        while seqs := self._add_file(Archive(folder), after, FILE_MESSAGES):
            for gone in self._drop_archived(seqs):
                moved += gone
                (progress or (lambda _: None))(moved)
            after = seqs[-1]
        return moved

    def _archive_turn(self) -> bool:
        """Move some messages to the folder of `Inbox(archive=...)`; returns whether that were all."""
        assert self._folder is not None  # noqa: S101 - nobody has this turn without a folder
        seqs = self._add_file(Archive(self._folder), 0, TURN_MESSAGES)
        for _ in self._drop_archived(seqs):
            pass
        return not seqs

    def _add_file(self, archive: Archive, after: int, limit: int) -> list[int]:
        """Write the next file; when this returns it is on the disk, and what it has may go."""
        seqs: list[int] = []
        archive.add(self._archivable(after, seqs, limit))
        return seqs

    def _drop_archived(self, seqs: list[int]) -> Iterator[int]:
        for start in range(0, len(seqs), BATCH):
            yield perform(self._store, partial(archiving.drop_archived, self._context, seqs[start : start + BATCH]))

    def _archivable(self, after: int, seqs: list[int], limit: int) -> Iterator[Record]:
        """The messages of the next file; their numbers are noted in `seqs`."""
        size = 0
        while len(seqs) < limit:
            records = perform(self._store, partial(archiving.next_archivable, self._context, after, BATCH))
            for record, reference in records:
                seqs.append(record["seq"])
                full = record if reference is None else whole(self._context, record, reference)
                size += len(body_of(full) or b"")
                yield full
                if size > FILE_BYTES:
                    return
            if len(records) < BATCH:
                return
            after = seqs[-1]

    def collect(self, *, older_than: timedelta | None = None) -> int:
        """Remove blobs that no message refers to (any more), unless younger than a day: they may be about to be.

        What was pruned, archived or rolled back leaves them; workers do this every hour, and `prune` does it too.
        Returns how many.
        """
        if older_than is not None:
            checks.instance(
                "collect()", "older_than", older_than, timedelta, "a timedelta, for example timedelta(days=1)"
            )
        if self._context.large.store is None:
            return 0
        perform(self._store, lambda: know_folder(self._context))
        limit, removed = datetime.now(UTC) - (GRACE if older_than is None else older_than), 0
        old = (name for name, written in self._context.large.listed() if written < limit)
        while names := list(islice(old, BATCH)):  # listed first, looked up afterwards: see steps/blob.py
            removed += perform(self._store, partial(remove_unreferred, self._context, names))
        return removed

    def _collect_turn(self) -> bool:
        self.collect()
        return True

    def during(self) -> AbstractContextManager[None]:
        """Archive and collect while the block runs, in a thread beside the workers."""
        wanted: dict[str, Callable[[], bool]] = {}
        if self._folder is not None:
            wanted["archive"] = self._archive_turn
        if self._context.large.store is not None:
            wanted["collect"] = self._collect_turn
        return Maintenance(self._context, self._store, wanted).during()

    def erase_archived(
        self,
        folder: str | os.PathLike[str],
        *,
        key: Any = None,
        field: tuple[str, Any] | None = None,
        source: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> int:
        """As `personal` and `erase`, in the files of an archive; returns how many messages were blanked."""
        _check_one(key, field, source, id)
        archive = Archive(folder)
        if source is not None and id is not None:
            # The tables first: what they have forgotten by then is in a file by then, and so is what it sent.
            seqs = set(perform(self._store, lambda: erasing.same_id(self._context, source, id)))
            seqs |= {one["seq"] for one in archive.read() if (one["source"], one["id"]) == (source, id)}
            return archive.erase(lambda record: record["seq"] in seqs or record["cause"] in seqs)
        test = _test(key, field)
        return archive.erase(
            lambda record: test.holds(record["key"], payload.encode_text(record["headers"]), body_of(record))
        )

    def prune(self, *, progress: Callable[[Pruned], None] | None = None) -> Pruned:
        """Remove what is older than the retention, in small batches; `progress` is called after each of them.

        Never touches what is unfinished, dead, in an open mismatch or under an effect with unknown outcome.
        """
        if progress is not None:
            checks.function("prune()", "progress", progress)
        pruning = PruneProgress(told=progress or (lambda _: None))
        perform(self._store, lambda: prune(self._context, pruning))
        try:
            pruning.pruned.blobs = self.collect()
        except BlobsUnavailable as error:
            log.warning("blobs that no row refers to stay for now: %s", error)
        return pruning.pruned

    # For ASGI applications, which must not block their event loop

    adrain_spool = awaited(drain_spool)
    apersonal = awaited(personal)
    aerase = awaited(erase)
    aarchive = awaited(archive)
    aerase_archived = awaited(erase_archived)
    acollect = awaited(collect)
    aprune = awaited(prune)


def whole(context: Context, record: Record, reference: Reference) -> Record:
    """A record with its large body; where that is lost, the rest of it all the same."""
    try:
        return with_body(record, context.large.fetch(reference))
    except BodyLost as error:
        log.error("message #%d is without its body: %s", record["seq"], error)  # noqa: TRY400 - no traceback
        return record


def _check_one(key: Any, field: Any, source: str | None, message_id: str | None) -> None:
    if (source is None) != (message_id is None) or sum(given is not None for given in (key, field, source)) != 1:
        raise ConfigurationError("give one of: key=, field=(path, value), or source= and id=")
    if field is not None and not (isinstance(field, tuple) and len(field) == 2 and isinstance(field[0], str)):  # noqa: PLR2004
        example = "a pair of a path and a value, for example ('customer.email', 'a@b.example')"
        checks.refuse("personal() and erase_archived()", "field", field, example)


def _test(key: Any, field: tuple[str, Any] | None) -> erasing.Test:
    return (
        erasing.has_field(field[0], str(identity.key_text(field[1])))
        if field
        else erasing.has_key(str(identity.key_text(key)))
    )


def _unfinished(status: str) -> str:
    return "finished" if status in {"done", "discarded", "skipped"} else status
