"""What keeps the tables small and clean for years: the public methods of `Inbox` for retention, archive and erasure.

Running workers do this by themselves (`Settings.upkeep`); each method here does it now, and is safe beside them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

from onceward import identity, payload
from onceward.archive import Archive, Record, body_of
from onceward.desk import Desk, user
from onceward.errors import ConfigurationError
from onceward.flow import Wait
from onceward.spooling import Spooling
from onceward.steps.archive import drop_archived, next_archivable
from onceward.steps.erase import Match, Test, erase, has_field, has_key, same_id, search
from onceward.steps.prune import BATCH, Pruned, Sweep, declare, prune
from onceward.stores.protocol import Session
from onceward.transact import perform

FILE_MESSAGES = 50_000
"""How many messages a file of the archive has at most."""


class Upkeep(Desk):
    """Retention, archive, erasure and the spool."""

    _spooling: Spooling

    def drain_spool(self) -> int:
        """Store what waits in the spool, now; answers how many messages. It happens by itself, too."""
        return self._spooling.drain()

    @property
    def spooled(self) -> bool:
        """Whether messages wait in the spool."""
        return self._spooling.waiting

    def declare_source(self, name: str, *, redelivers_for: timedelta) -> None:
        """Say how long after the first delivery a source may still send a copy.

        A dedupe retention that is shorter is refused, here and wherever a program starts on the same tables.
        """
        declare(self._context, name, redelivers_for)

    def personal(
        self,
        *,
        key: Any = None,
        field: tuple[str, Any] | None = None,
        source: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> list[Match]:
        """What `erase` would be about: messages with a key, or a field (path and value), or an id of a source.

        Every body is read for a key or a field: live, finished, dead, outgoing and in quarantine. An id also finds
        what the handlers of its message sent.
        """
        _check_one(key, field, source, id)
        if source is not None and id is not None:
            seqs = perform(self._store, lambda: same_id(self._context, source, id))
            stories = [story for seq in seqs if (story := self.message(seq))]
            return [Match(one.seq, one.type or "", one.source, _unfinished(one.status)) for one in stories]
        test = _test(key, field)
        return perform(self._store, lambda: search(self._context, test))

    def erase(self, *seqs: int, reason: str, actor: str = "") -> list[int]:
        """Erase the bodies, headers, keys, results and errors of messages (see `personal`); ids and hashes stay.

        What is unfinished is discarded first. Answers what could not be erased: it runs just now, waits behind an
        earlier number of its key, or is not there.
        """
        who = actor or user()

        def erased(seq: int) -> bool:
            return perform(self._store, lambda: erase(self._context, seq, actor=who, reason=reason))

        return [seq for seq in seqs if not erased(seq)]

    def archive(self, folder: str | os.PathLike[str], *, progress: Callable[[int], None] | None = None) -> int:
        """Move finished messages older than `body_retention` to files in a folder; answers how many.

        A body leaves the database when the file that has it is on the disk. `progress` is told how many so far.
        """
        archive, after, moved = Archive(folder), 0, 0
        while True:
            seqs: list[int] = []
            archive.add(self._archivable(after, seqs))
            if not seqs:
                return moved
            for start in range(0, len(seqs), BATCH):
                batch = seqs[start : start + BATCH]
                moved += perform(self._store, partial(drop_archived, self._context, batch))
                (progress or (lambda _: None))(moved)
            after = seqs[-1]

    def _archivable(self, after: int, seqs: list[int]) -> Iterator[Record]:
        """The messages of the next file; their numbers are noted in `seqs`."""
        while len(seqs) < FILE_MESSAGES:
            records = perform(self._store, partial(next_archivable, self._context, after, BATCH))
            for record in records:
                seqs.append(record["seq"])
                yield record
            if len(records) < BATCH:
                return
            after = seqs[-1]

    def erase_archived(
        self,
        folder: str | os.PathLike[str],
        *,
        key: Any = None,
        field: tuple[str, Any] | None = None,
        source: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> int:
        """As `personal` and `erase`, in the files of an archive; answers how many messages were blanked."""
        _check_one(key, field, source, id)
        if source is not None:
            return Archive(folder).erase(lambda record: (record["source"], record["id"]) == (source, id))
        test = _test(key, field)
        return Archive(folder).erase(
            lambda record: test(record["key"], payload.encode_text(record["headers"]), body_of(record))
        )

    def prune(self, *, progress: Callable[[Pruned], None] | None = None) -> Pruned:
        """Remove what is older than the retention, in small batches; `progress` is told after each of them.

        Never touches what is unfinished, dead, in an open case of quarantine or under an effect of unknown outcome.
        """
        sweep = Sweep(told=progress or (lambda _: None))
        perform(self._store, lambda: prune(self._context, sweep), _resting)
        return sweep.pruned


def _check_one(key: Any, field: tuple[str, Any] | None, source: str | None, message_id: str | None) -> None:
    if (source is None) != (message_id is None) or sum(given is not None for given in (key, field, source)) != 1:
        raise ConfigurationError("say one of: key=, field=(path, value), or source= and id=")


def _test(key: Any, field: tuple[str, Any] | None) -> Test:
    return has_field(field[0], str(identity.key_text(field[1]))) if field else has_key(str(identity.key_text(key)))


def _unfinished(status: str) -> str:
    return "finished" if status in {"done", "discarded", "skipped"} else status


def _resting(session: Session) -> Callable[[Any], Any]:
    """A performer that can wait, which a session by itself cannot."""

    def performer(request: Any) -> Any:
        return time.sleep(request.seconds) if isinstance(request, Wait) else session.perform(request)

    return performer
