"""The archive: finished messages in compressed JSON Lines that anything can read, in a folder or a bucket (R32).

Invariant: a file belongs to the archive when an entry of the manifest names it, and the entry is made when the file is
whole and safe; a death before leaves a file without an entry, and the messages are still in the database. So a
message may be in two files, never in none; reading gives it once. A file is never changed: erasing makes its next
edition, and of two that erase at the same time the second begins anew with what the first has made.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from onceward.blobs.protocol import BlobStore, open_blobs
from onceward.domain import identity
from onceward.domain.archived import Record, blank
from onceward.domain.ids import time_ordered_id
from onceward.errors import ConfigurationError

MANIFEST, MESSAGES = "manifest", "messages"
GRACE = timedelta(days=1)
"""A file without an entry is older than this before it is removed: it may be about to get one."""
_ENTRY = re.compile(rf"{MANIFEST}/([0-9a-f-]{{36}})\.([0-9]{{4}})\.json")
_UNFINISHED = re.compile(r".*\.part")
_FILE = re.compile(rf"{MESSAGES}/[0-9]+-[0-9]+-([0-9a-f-]{{36}})\.([0-9]{{4}})\.[0-9a-f]+\.jsonl\.gz")


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file as the manifest knows it."""

    place: str
    """Where it stands in the order of the archive;"""
    edition: int
    """and how often something was erased from it."""
    name: str
    sha256: str
    messages: int
    first_seq: int
    last_seq: int

    @property
    def entry(self) -> str:
        """The name of its entry in the manifest."""
        return f"{MANIFEST}/{self.place}.{self.edition:04}.json"


class Archive:
    """A folder, or a part of a bucket, with archived messages: a path, `file:///...` or `s3://bucket/prefix`."""

    def __init__(self, where: str | os.PathLike[str]) -> None:
        self.where = os.fspath(where)
        self._store: BlobStore = open_blobs(self.where if "://" in self.where else Path(self.where).absolute().as_uri())

    def files(self) -> list[ArchiveFile]:
        """What the manifest names, in the order in which it was archived."""
        found: list[ArchiveFile] = []
        for place, edition in sorted(self._newest().items()):
            entry = self._store.get(f"{MANIFEST}/{place}.{edition:04}.json")
            if entry is None:  # there is a newer one by now
                return self.files()
            found.append(ArchiveFile(**json.loads(entry)))
        return found

    def add(self, records: Iterable[Record]) -> ArchiveFile | None:
        """Write messages to a new file; when this returns it is safe, and in the manifest."""
        self.tidy()
        written = self._write(records, time_ordered_id(), 1)
        if written is not None:
            self._publish(written)
        return written

    def read(self) -> Iterator[Record]:
        """Every message once; a file that is not as it was written is refused."""
        seen: set[int] = set()
        for file in self.files():
            for record in _records(self._content(file)):
                if record["seq"] not in seen:
                    seen.add(record["seq"])
                    yield record

    def check(self, file: ArchiveFile) -> None:
        """Raise when a file is missing or has been changed."""
        self._content(file)

    def erase(self, of_person: Callable[[Record], bool]) -> int:
        """Blank what says something about a person; ids and hashes stay. Returns how many messages had something."""
        erased = sum(self._erased(file, of_person) for file in self.files())
        self.tidy()
        return erased

    def _erased(self, file: ArchiveFile, of_person: Callable[[Record], bool]) -> int:
        content = self._content(file)
        found = sum(1 for record in _records(content) if not record.get("erased") and of_person(record))
        if not found:
            return 0
        records = (blank(one) if of_person(one) else one for one in _records(content))
        written = self._write(records, file.place, file.edition + 1)
        assert written is not None  # noqa: S101 - it has as many messages as before
        if self._publish(written):
            return found
        self._store.delete(written.name)  # somebody else erases: what they left is looked through
        (newest,) = (one for one in self.files() if one.place == file.place)
        return self._erased(newest, of_person)

    def tidy(self) -> None:
        """Remove editions that have a newer one, and what a process that died has left."""
        newest = self._newest()
        for folder in (MANIFEST, MESSAGES):
            for name, written, _ in self._listed(folder, _UNFINISHED):
                if written < datetime.now(UTC) - GRACE:
                    self._store.delete(name)
        files = [(name, found[1], int(found[2]), written) for name, written, found in self._listed(MESSAGES, _FILE)]
        editions = Counter((place, edition) for _, place, edition, _ in files)
        young = datetime.now(UTC) - GRACE
        for name, place, edition, written in files:
            known = newest.get(place, 0)
            if edition < known or (edition > known and written < young):
                self._store.delete(name)
            elif edition == known and editions[place, edition] > 1:  # two have erased, and one of them has died
                entry = self._store.get(f"{MANIFEST}/{place}.{edition:04}.json")
                if entry is not None and ArchiveFile(**json.loads(entry)).name != name:
                    self._store.delete(name)
        for name, _, found in self._listed(MANIFEST, _ENTRY):  # last: they say that there is something to remove
            if int(found[2]) < newest.get(found[1], 0):
                self._store.delete(name)

    def _newest(self) -> dict[str, int]:
        """The newest edition of each place."""
        newest: dict[str, int] = {}
        for _, _, found in self._listed(MANIFEST, _ENTRY):
            newest[found[1]] = max(int(found[2]), newest.get(found[1], 0))
        return newest

    def _listed(self, folder: str, form: re.Pattern[str]) -> list[tuple[str, datetime, re.Match[str]]]:
        listed = self._store.listed(folder)
        return [(name, written, found) for name, written in listed if (found := form.fullmatch(name))]

    def _content(self, file: ArchiveFile) -> bytes:
        content = self._store.get(file.name)
        if content is None:
            (newest,) = (one for one in self.files() if one.place == file.place)
            if newest != file:  # something was erased meanwhile
                return self._content(newest)
            raise ConfigurationError(f"the archive {self.where} has lost {file.name}; restore it from a backup")
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise ConfigurationError(
                f"{file.name} in the archive {self.where} is not as it was written (its checksum differs); "
                "restore it from a backup"
            )
        return content

    def _write(self, records: Iterable[Record], place: str, edition: int) -> ArchiveFile | None:
        """A whole file that is safe, and that the manifest does not name yet."""
        seqs: list[int] = []
        content = io.BytesIO()
        with gzip.open(content, "wt", encoding="utf-8", compresslevel=6) as lines:
            for record in records:
                lines.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
                seqs.append(record["seq"])
        if not seqs:
            return None
        first, last = min(seqs), max(seqs)
        name = f"{MESSAGES}/{first}-{last}-{place}.{edition:04}.{identity.new_id()[:8]}.jsonl.gz"
        data = content.getvalue()
        self._store.put(name, data)
        return ArchiveFile(place, edition, name, hashlib.sha256(data).hexdigest(), len(seqs), first, last)

    def _publish(self, file: ArchiveFile) -> bool:
        """Make the entry; returns False where another has made this edition."""
        if self._store.create(file.entry, json.dumps(asdict(file)).encode()):
            return True
        entry = self._store.get(file.entry)  # it may be our own: made by a try whose answer was lost
        return entry is not None and ArchiveFile(**json.loads(entry)) == file


def _records(content: bytes) -> Iterator[Record]:
    with gzip.open(io.BytesIO(content), "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
