"""Blobs as files in a folder.

Invariant: a name appears only by renaming or linking a whole file that is on the disk; names are waited for, too, of
files and of the folders above them, also where another process has made them: it may have died before it waited.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path

from onceward.domain import identity
from onceward.domain.disk import sync_folder
from onceward.errors import BlobsUnavailable


class Files:
    """A folder of blobs; its owner alone may read them."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._waited: set[Path] = set()
        """The folders whose names are on the disk, as far as this process has waited for them."""

    def put(self, name: str, body: bytes) -> None:
        path = self._folder / name
        part = path.with_name(f"{path.name}.part")  # left by whoever dies here; the collector takes it as it takes all
        with self._trouble("write", name):
            self._write(part, body)
            part.rename(path)
            sync_folder(path.parent)

    def create(self, name: str, body: bytes) -> bool:
        path = self._folder / name
        part = path.with_name(f"{path.name}.{identity.new_id()}.part")
        with self._trouble("write", name):
            self._write(part, body)
            try:
                path.hardlink_to(part)
            except FileExistsError:
                return False
            finally:
                part.unlink()
                sync_folder(path.parent)
            return True

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
            path = self._folder / name
            path.unlink(missing_ok=True)
            with suppress(FileNotFoundError):  # then the name is gone, too
                sync_folder(path.parent)  # what was erased does not come back

    def listed(self, folder: str) -> Iterator[tuple[str, datetime]]:
        with self._trouble("list", folder):
            if self._folder.exists() and not self._folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self._folder))
            for parent, _, names in os.walk(self._folder / folder):
                sync_folder(Path(parent))  # what is removed because of a name here must find that name after a crash
                for path in (Path(parent, name) for name in names):
                    try:
                        found = path.stat()
                    except FileNotFoundError:
                        continue  # another process has removed it
                    yield str(path.relative_to(self._folder)), datetime.fromtimestamp(found.st_mtime, UTC)

    def _write(self, part: Path, body: bytes) -> None:
        """Write a file that is on the disk under a name that means nothing yet."""
        self._make(part.parent)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())

    def _make(self, folder: Path) -> None:
        """Make a folder and those above it; each is on the disk only when the one above it is."""
        there, ours = folder.is_dir(), self._folder in folder.parents
        if there and folder in self._waited:
            return
        if ours or not there:
            self._make(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
        # Above the whole store is what we may not be allowed to read.
        with suppress(PermissionError) if there and not ours else nullcontext():
            sync_folder(folder.parent)
        self._waited.add(folder)

    @contextmanager
    def _trouble(self, what: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BlobsUnavailable(f"cannot {what} the blob {name} in {self._folder}: {error}") from error
