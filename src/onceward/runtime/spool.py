"""The spool: an append-only file that takes messages while the database is away (R24).

Invariant: what `append` returned for is on the disk, whole, and is read back in the order of appending. A record is its
length, checksums over length and content, and the content; so an append that was cut off at whatever byte is
recognised, and was never acknowledged. Bytes that make no sense in the middle are put aside for a person, not dropped.
Several processes of one host may share a file: each append, and the removal of what was drained, is under a lock.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from onceward.domain import identity
from onceward.domain.disk import sync_folder
from onceward.errors import StoreUnavailable
from onceward.message import NO_HEADERS, Delivery

log = logging.getLogger("onceward")

_HEAD = struct.Struct(">III")
"""Length of the content, checksum of the length, checksum of both: a wrong length must not hide what follows."""
_SIZE = struct.Struct(">I")
_MAGIC = b"onceward spool 1"
_START = len(_MAGIC) + 16
"""A file begins with these and 16 bytes of chance, so that what is known of one file is not believed of the next."""
_FIELDS = ("source", "id", "type", "version", "key", "position", "echo_window")
_PIECE = 1 << 20


class Spool:
    """A spool file and its locks."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._known = (b"", _START)
        """The file that was seen last, and up to where it is known to be sound."""

    @property
    def is_empty(self) -> bool:
        """Whether everything that was spooled has been drained."""
        try:
            return self.path.stat().st_size <= _START
        except FileNotFoundError:
            return True

    @property
    def name(self) -> bytes:
        """What tells this file from the next one under its path; empty where there is none."""
        try:
            with self.path.open("rb") as file:
                return file.read(_START)
        except FileNotFoundError:
            return b""

    def append(self, deliveries: Sequence[Delivery]) -> None:
        """Write deliveries and wait for the disk; when this returns they survive a crash of the machine."""
        data = b"".join(record(delivery) for delivery in deliveries)
        try:
            with self._locked("lock"), self._opened() as file:
                name, end = self._sound_end(file)
                try:
                    if not end:
                        name = _MAGIC + os.urandom(_START - len(_MAGIC))
                        data = name + data
                    os.ftruncate(file, end)
                    _write(file, data, end)
                    os.fsync(file)
                except OSError:
                    with suppress(OSError):
                        os.ftruncate(file, end)  # what is there was not acknowledged; a copy of it would be a duplicate
                    raise
                self._known = (name, end + len(data))
        except OSError as error:
            raise StoreUnavailable(
                f"the database is away, and the spool {self.path} cannot be written: {error}"
            ) from error

    def read(self, after: int, limit: int) -> tuple[list[Delivery], int]:
        """The next deliveries, and where to go on."""
        found: list[Delivery] = []
        try:
            with self.path.open("rb") as file:
                after = max(after, _START)
                file.seek(after)
                while len(found) < limit and (content := _next(file)) is not None:
                    found.append(delivery_of(content))
                    after = file.tell()
        except FileNotFoundError:
            return [], 0
        return found, after

    def clear(self, drained: int) -> bool:
        """Remove the file if it ends where it was drained to; False when more has come meanwhile."""
        with self._locked("lock"):
            try:
                with self._opened() as file:
                    if self._sound_end(file)[1] > max(drained, _START):
                        return False
            except FileNotFoundError:
                return True
            self.path.unlink(missing_ok=True)
            return True

    def put_aside(self, delivery: Delivery) -> Path:
        """Keep a delivery that nobody can place in a file of its own kind beside this one; answers which."""
        aside = Spool(self.path.with_name(self.path.name + ".refused"))
        aside.append([delivery])
        return aside.path

    @contextmanager
    def draining(self) -> Iterator[bool]:
        """The right to drain; one process at a time has it, and it ends with the process."""
        with self._lock_file("draining") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _sound_end(self, file: int) -> tuple[bytes, int]:
        """The file's name, and where its last whole record ends: 0 in a file that is not begun.

        What follows was cut off while it was written, or is put aside.
        """
        size = os.fstat(file).st_size
        with os.fdopen(os.dup(file), "rb") as reader:
            reader.seek(0)
            name = reader.read(_START)
            if len(name) < _START:
                return b"", 0
            if not name.startswith(_MAGIC):
                self._put_rest_aside(reader, 0)
                return b"", 0
            end = self._known[1] if self._known[0] == name else _START
            reader.seek(end)
            while _next(reader) is not None:
                end = reader.tell()
            if end < size and not _is_torn(reader, end, size):
                self._put_rest_aside(reader, end)
        return name, end

    def _put_rest_aside(self, reader: Any, end: int) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        reader.seek(end)
        with aside.open("xb") as copy:
            while piece := reader.read(_PIECE):
                copy.write(piece)
            copy.flush()
            os.fsync(copy.fileno())
        log.error(
            "the spool %s is damaged from byte %d on; the rest was put aside in %s: look at it", self.path, end, aside
        )

    @contextmanager
    def _opened(self) -> Iterator[int]:
        new = not self.path.exists()
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if new:
                sync_folder(self.path.parent)
            yield file
        finally:
            os.close(file)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with self._lock_file(name) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _lock_file(self, name: str) -> Iterator[int]:
        file = os.open(self.path.with_name(f"{self.path.name}.{name}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield file
        finally:
            os.close(file)  # and the lock with it


def record(delivery: Delivery) -> bytes:
    """A delivery as it stands in the file."""
    head = {name: getattr(delivery, name) for name in _FIELDS} | {"headers": dict(delivery.headers)}
    text = json.dumps(head).encode()
    content = _SIZE.pack(len(text)) + text + delivery.body
    return _HEAD.pack(len(content), *_checksums(content)) + content


def delivery_of(content: bytes) -> Delivery:
    """What `record` was given."""
    (size,) = _SIZE.unpack_from(content)
    head: Mapping[str, Any] = json.loads(content[_SIZE.size : _SIZE.size + size])
    body = content[_SIZE.size + size :]
    fields: dict[str, Any] = {name: head.get(name) for name in _FIELDS}
    return Delivery(
        **fields,
        headers=head["headers"] or NO_HEADERS,
        body=body,
        hash=identity.body_hash(body),
    )


def _checksums(content: bytes) -> tuple[int, int]:
    # The length counts in both: a stretch of zeros, which a file system may leave behind, is no record.
    first = zlib.crc32(_SIZE.pack(len(content)))
    return first, zlib.crc32(content, first)


def _next(file: Any) -> bytes | None:
    """The content of the record at the file's position; None at the end, or where there is no whole record."""
    head = file.read(_HEAD.size)
    length = _length(head)
    if length is None:
        return None
    content: bytes = file.read(length)
    return content if len(content) == length and head == _HEAD.pack(length, *_checksums(content)) else None


def _length(head: bytes) -> int | None:
    """The length of a record's content; None where no record begins."""
    if len(head) < _HEAD.size:
        return None
    length, checksum, _ = _HEAD.unpack(head)
    return length if length and checksum == zlib.crc32(_SIZE.pack(length)) else None


def _is_torn(file: Any, end: int, size: int) -> bool:
    """Whether what follows the last whole record is an append that was cut off: then nothing can come after it."""
    file.seek(end)
    head = file.read(_HEAD.size)
    length = _length(head)
    return len(head) < _HEAD.size or (length is not None and end + _HEAD.size + length >= size)


def _write(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written
