"""A disk that keeps only what was synced: it records what a program does to files, and makes what a crash may leave.

The model is as strict as POSIX allows. Bytes that no `fsync` has followed may be there, be torn, be zeros, or be
missing; each change of a name that no `fsync` of its folder has followed may be there or not, whatever became of the
others; and a folder whose own name is lost has lost all that is in it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import pytest

FOLDER = -1
"""What stands for a folder among the numbers of files."""
Names = dict[str, dict[str, int]]
State = Mapping[str, bytes | None]
"""The paths that a crash left, with the bytes of files; None for folders."""


class Killed(BaseException):
    """The process is gone: from here on it does nothing more, whatever it would have tidied up."""


@dataclass(frozen=True, slots=True)
class Named:
    """Names of a folder have changed, in one step: what they stand for now, None for nothing."""

    folder: str
    changes: tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, slots=True)
class Wrote:
    """Bytes have gone to the operating system."""

    file: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Synced:
    """The bytes of a file, or the names of a folder, are on the disk."""

    what: int | str


Step = Named | Wrote | Synced


class Disk:
    """Everything under a folder, and every step that was done to it while it records."""

    def __init__(
        self, root: Path, patch: pytest.MonkeyPatch, promised: Callable[[], frozenset[str]] = frozenset
    ) -> None:
        self.root, self.steps, self.promises = root, list[Step](), [promised()]
        """`promises` has, for each moment between two steps, what had been promised then."""
        self._promised = promised
        self._last: int | None = None
        self._handles: dict[int, int | str] = {}
        self._files: dict[str, int] = {}
        root.mkdir()
        replaced = ("open", "close", "fsync", "fdopen", "mkdir", "link", "rename", "unlink")
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in (*replaced, "write")}
        for name in replaced:
            patch.setattr(os, name, getattr(self, f"_{name}"))

    def kill_at(self, step: int | None) -> None:
        """Have the process die instead of making a step, counted from the first of all; None: another one begins."""
        self._last = step

    def promise(self) -> None:
        """Something may have been promised: from here on a crash must keep it."""
        self.promises[-1] |= self._promised()

    def crashes(self, where: Path, since: int = 0) -> Iterator[tuple[Path, frozenset[str]]]:
        """Every state that a crash may leave, at every moment, as a folder; and what had been promised by then."""
        seen, made = set(), itertools.count()
        for moment in range(since, len(self.steps) + 1):
            promised = self.promises[moment]
            for state in states(self.steps[:moment]):
                if (known := (frozenset(state.items()), promised)) not in seen:
                    seen.add(known)
                    yield _made(state, where / str(next(made))), promised

    def _step(self, step: Step, make: Callable[[], Any] = lambda: None) -> Any:
        self.promise()
        if self._last is not None and len(self.steps) >= self._last:
            raise Killed
        made = make()
        self.steps.append(step)
        self.promises.append(self._promised())
        return made

    def _inside(self, path: Any) -> str | None:
        path = Path(path)
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else None

    def _named(self, changes: Mapping[Any, int | None], make: Callable[[], Any]) -> Any:
        paths = {self._inside(path): to for path, to in changes.items()}
        if None in paths:
            return make()
        (folder,) = {str(Path(path).parent) for path in paths if path is not None}
        step = Named(folder, tuple((Path(path).name, to) for path, to in paths.items() if path is not None))
        made = self._step(step, make)
        for path, to in paths.items():
            if path is not None and to not in {None, FOLDER}:
                self._files[path] = to
        return made

    def _open(self, path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        def make() -> int:
            return int(self._real["open"](path, flags, mode, **more))

        inside = self._inside(path)
        if inside is None:
            return make()
        if flags & os.O_CREAT and not Path(path).exists():
            handle = int(self._named({path: len(self.steps)}, make))
        else:
            handle = make()
        self._handles[handle] = inside if Path(path).is_dir() else self._files[inside]
        return handle

    def _close(self, handle: int) -> None:
        self._handles.pop(handle, None)
        self._real["close"](handle)

    def _fsync(self, handle: int) -> None:
        if handle in self._handles:
            self._step(Synced(self._handles[handle]))

    def wrote(self, handle: int, data: bytes) -> None:
        """What was buffered goes to the operating system."""
        file = self._handles[handle]
        assert isinstance(file, int)
        self._step(Wrote(file, data), lambda: self._real["write"](handle, data))

    def _fdopen(self, handle: int, *rest: Any, **more: Any) -> Any:
        if handle in self._handles:
            return _Buffered(self, handle)
        return self._real["fdopen"](handle, *rest, **more)

    def _mkdir(self, path: Any, mode: int = 0o777, **more: Any) -> None:
        if Path(path).exists():
            raise FileExistsError(path)
        self._named({path: FOLDER}, lambda: self._real["mkdir"](path, mode, **more))

    def _link(self, source: Any, target: Any, **more: Any) -> None:
        if Path(target).exists():
            raise FileExistsError(target)
        self._named({target: self._file(source)}, lambda: self._real["link"](source, target, **more))

    def _rename(self, source: Any, target: Any, **more: Any) -> None:
        changes = {source: None, target: self._file(source)}
        self._named(changes, lambda: self._real["rename"](source, target, **more))

    def _unlink(self, path: Any, **more: Any) -> None:
        if not Path(path).exists():
            raise FileNotFoundError(path)
        self._named({path: None}, lambda: self._real["unlink"](path, **more))

    def _file(self, path: Any) -> int | None:
        return self._files.get(self._inside(path) or "")


class _Buffered:
    """A file as `os.fdopen` makes it: what is written waits until it is flushed, or the file is closed."""

    def __init__(self, disk: Disk, handle: int) -> None:
        self._disk, self._handle, self._waiting = disk, handle, b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.flush()
        finally:
            os.close(self._handle)

    def fileno(self) -> int:
        return self._handle

    def write(self, data: bytes) -> int:
        self._waiting += data
        return len(data)

    def flush(self) -> None:
        data, self._waiting = self._waiting, b""
        if data:
            self._disk.wrote(self._handle, data)


def states(steps: list[Step]) -> Iterator[State]:
    """What a crash after these steps may leave."""
    folders = sorted({step.folder for step in steps if isinstance(step, Named)})
    for chosen in itertools.product(*(_names(steps, folder) for folder in folders)):
        names = dict(zip(folders, chosen, strict=True))
        files = sorted({file for folder in _reached(names) for file in names[folder].values() if file != FOLDER})
        for contents in itertools.product(*(_contents(steps, file) for file in files)):
            yield _state(names, dict(zip(files, contents, strict=True)))


def _names(steps: list[Step], folder: str) -> list[dict[str, int]]:
    """What a folder may be after a crash: what was synced, and any of the changes since then."""
    safe = max((place for place, step in enumerate(steps) if step == Synced(folder)), default=0)
    changes = [(place, step) for place, step in enumerate(steps) if isinstance(step, Named) and step.folder == folder]
    possible: list[dict[str, int]] = []
    for kept in itertools.product(*([True] if place < safe else [True, False] for place, _ in changes)):
        names: dict[str, int | None] = {}
        for (_, step), keep in zip(changes, kept, strict=True):
            names |= dict(step.changes) if keep else {}
        left = {name: to for name, to in names.items() if to is not None}
        if left not in possible:
            possible.append(left)
    return possible


def _contents(steps: list[Step], file: int) -> list[bytes]:
    """What a file may hold after a crash."""
    safe = max((place for place, step in enumerate(steps) if step == Synced(file)), default=0)
    wrote = [(place, step.data) for place, step in enumerate(steps) if isinstance(step, Wrote) and step.file == file]
    kept = b"".join(data for place, data in wrote if place < safe)
    rest = b"".join(data for place, data in wrote if place >= safe)
    return list(dict.fromkeys((kept + rest, kept, kept + rest[: len(rest) // 2], kept + bytes(len(rest)))))


def _reached(names: Names) -> list[str]:
    """The folders whose own names, and those of all above them, are there."""
    found = [] if "." not in names else ["."]
    for folder in found:
        inside = [str(Path(folder, name)) for name, to in names[folder].items() if to == FOLDER]
        found += [one for one in inside if one in names]
    return found


def _state(names: Names, contents: dict[int, bytes]) -> State:
    found: dict[str, bytes | None] = {}
    for folder in _reached(names):
        for name, to in names[folder].items():
            found[str(Path(folder, name))] = None if to == FOLDER else contents[to]
    return found


def _made(state: State, folder: Path) -> Path:
    folder.mkdir(parents=True)
    for path, content in sorted(state.items()):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
    return folder
