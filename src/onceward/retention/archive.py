"""The archive: finished messages in compressed JSON Lines that anything can read, with a manifest of checksums (R32).

Invariant: a file is named in the manifest only when it is whole and on the disk, and the manifest is replaced as a
whole; whoever dies leaves at most a file that nobody names, and the messages are still in the database. So a message
may be in two files, never in none; reading gives it once. A file is changed only by erasing, and then by another one.
"""

from __future__ import annotations

import base64
import fcntl
import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onceward.domain import identity
from onceward.domain.disk import sync_folder
from onceward.errors import ConfigurationError

MANIFEST = "manifest.json"
_PIECE = 1 << 20

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file as the manifest knows it."""

    name: str
    sha256: str
    messages: int
    first_seq: int
    last_seq: int


class Archive:
    """A folder of archived messages."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def files(self) -> list[ArchiveFile]:
        """What the manifest names, in the order in which it was archived."""
        try:
            text = (self.folder / MANIFEST).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [ArchiveFile(**one) for one in json.loads(text)["files"]]

    def add(self, records: Iterable[Record]) -> ArchiveFile | None:
        """Write messages to a new file; when this returns they are on the disk and in the manifest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._tidy()
            written = self._write(records)
            if written is not None:
                self._publish([*self.files(), written])
            return written

    def read(self) -> Iterator[Record]:
        """Every message once; a file that is not as it was written is refused."""
        seen: set[int] = set()
        for file in self.files():
            self.check(file)
            for record in self._records(file):
                if record["seq"] not in seen:
                    seen.add(record["seq"])
                    yield record

    def check(self, file: ArchiveFile) -> None:
        """Raise when a file is missing or has been changed."""
        path = self.folder / file.name
        if not path.exists():
            raise ConfigurationError(f"the archive {self.folder} has lost {file.name}; restore it from a backup")
        if _digest(path) != file.sha256:
            raise ConfigurationError(
                f"{path} is not as it was written (its checksum differs); restore it from a backup"
            )

    def erase(self, of_person: Callable[[Record], bool]) -> int:
        """Blank what says something about a person; ids and hashes stay. Answers how many messages had something."""
        erased = 0
        if not self.files():
            return 0
        with self._locked():
            for file in self.files():
                self.check(file)
                found = sum(1 for record in self._records(file) if not record.get("erased") and of_person(record))
                if found:
                    blanked = self._write(blank(one) if of_person(one) else one for one in self._records(file))
                    assert blanked is not None  # noqa: S101 - it has as many messages as before
                    self._publish([blanked if one == file else one for one in self.files()])
                    erased += found
            self._tidy()
        return erased

    def _records(self, file: ArchiveFile) -> Iterator[Record]:
        with gzip.open(self.folder / file.name, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)

    def _write(self, records: Iterable[Record]) -> ArchiveFile | None:
        """A whole file, on the disk, that nobody names yet."""
        part = self.folder / f"{identity.new_id()}.part"
        seqs: list[int] = []
        with part.open("xb") as raw:
            os.fchmod(raw.fileno(), 0o600)
            with gzip.open(raw, "wt", encoding="utf-8", compresslevel=6) as lines:
                for record in records:
                    lines.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
                    seqs.append(record["seq"])
            raw.flush()
            os.fsync(raw.fileno())
        if not seqs:
            part.unlink()
            return None
        name = f"messages-{min(seqs)}-{max(seqs)}-{part.stem[:8]}.jsonl.gz"
        part.rename(self.folder / name)
        sync_folder(self.folder)
        return ArchiveFile(name, _digest(self.folder / name), len(seqs), min(seqs), max(seqs))

    def _publish(self, files: list[ArchiveFile]) -> None:
        """Replace the manifest."""
        part = self.folder / f"{MANIFEST}.part"
        with part.open("w", encoding="utf-8") as file:
            json.dump({"format": 1, "files": [asdict(one) for one in files]}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        part.rename(self.folder / MANIFEST)
        sync_folder(self.folder)

    def _tidy(self) -> None:
        """Remove what somebody who died has left: files that no manifest names."""
        named = {file.name for file in self.files()}
        for path in (*self.folder.glob("*.part"), *self.folder.glob("messages-*.jsonl.gz")):
            if path.name not in named:
                path.unlink()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def blank(record: Record) -> Record:
    """A message without what says something about a person."""
    kept = {name: value for name, value in record.items() if name not in {"body", "body_base64", "result"}}
    return {**kept, "key": None, "headers": {}, "body": None, "erased": True}


def with_body(record: Record, body: bytes | None) -> Record:
    """A record with its body: as text where it is text, so that every tool can look into it."""
    if body is None:
        return {**record, "body": None}
    try:
        return {**record, "body": body.decode()}
    except UnicodeDecodeError:
        return {**record, "body_base64": base64.b64encode(body).decode()}


def body_of(record: Mapping[str, Any]) -> bytes | None:
    """The bytes that `with_body` was given."""
    if "body_base64" in record:
        return base64.b64decode(record["body_base64"])
    text = record["body"]
    return None if text is None else text.encode()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
