"""Blobs as files in a folder.

Invariant: a name appears only by renaming a whole file that is on the disk, and `put` waits for the folders too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from onceward.domain.disk import sync_folder
from onceward.errors import BlobsUnavailable


class Files:
    """A folder of blobs; its owner alone may read them."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def put(self, name: str, body: bytes) -> None:
        path = self._folder / name
        part = path.with_name(f"{path.name}.part")  # left by whoever dies here; the collector takes it as it takes all
        with self._trouble("write", name):
            _make(path.parent)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            part.rename(path)
            sync_folder(path.parent)

    def get(self, name: str) -> bytes | None:
        with self._trouble("read", name):
            try:
                return (self._folder / name).read_bytes()
            except FileNotFoundError:
                if (self._folder / Path(name).parts[0]).is_dir():
                    return None
                raise  # not even the folder of this inbox is there: the disk is not mounted

    def delete(self, name: str) -> None:
        with self._trouble("remove", name):
            (self._folder / name).unlink(missing_ok=True)

    def listed(self, folder: str) -> Iterator[tuple[str, datetime]]:
        with self._trouble("list", folder):
            for path in (self._folder / folder).rglob("*"):
                try:
                    found = path.stat()
                except FileNotFoundError:
                    continue  # somebody else has removed it
                if path.is_file():
                    yield str(path.relative_to(self._folder)), datetime.fromtimestamp(found.st_mtime, UTC)

    @contextmanager
    def _trouble(self, what: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BlobsUnavailable(f"cannot {what} the blob {name} in {self._folder}: {error}") from error


def _make(folder: Path) -> None:
    """Make a folder and those above it; each is on the disk only when the one above it is."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
