"""What a handler does outside of its database while a proof runs it: Python tells, through its audit events.

Not seen: what goes over a connection that was open before, and what a driver written in C does by itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

_CALLS = {
    "socket.connect": "connected to",
    "socket.sendto": "sent to",
    "socket.sendmsg": "sent to",
    "subprocess.Popen": "started",
    "os.system": "started",
    "os.posix_spawn": "started",
}
_WRITES = os.O_WRONLY | os.O_RDWR


@dataclass(slots=True)
class Outside:
    """What was seen, each once, in its order."""

    own: str = ""
    """The file of the inbox itself, if it has one."""
    calls: list[str] = field(default_factory=list)
    """Connections and programs: they reach somebody else."""
    files: list[str] = field(default_factory=list)
    """Files that were opened to be written."""
    deaf: int = 0
    """Inside of `message.once`, which records the call by itself."""

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Python tells what is about to happen."""
        if self.deaf:
            return
        if event in _CALLS:
            at = args[1] if event.startswith("socket.") else args[0]
            self._note(self.calls, f"{_CALLS[event]} {at!r}")
        elif event == "sqlite3.connect" and str(args[0]) != self.own and "vfs=memdb" not in str(args[0]):
            self._note(self.calls, f"opened the SQLite database {args[0]!r}")
        elif event == "open" and self._is_written(*args):
            self._note(self.files, str(args[0]))

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """What happens here is not noted."""
        self.deaf += 1
        try:
            yield
        finally:
            self.deaf -= 1

    @staticmethod
    def _note(seen: list[str], what: str) -> None:
        if what not in seen:
            seen.append(what)

    @staticmethod
    def _is_written(path: Any, mode: Any, flags: Any) -> bool:
        if isinstance(path, int) or "__pycache__" in str(path) or str(path) == os.devnull:
            return False
        writes = isinstance(flags, int) and bool(flags & _WRITES)
        return writes or (isinstance(mode, str) and not {*mode}.isdisjoint("wax+"))


_listening: list[Outside] = []


@cache
def _add_hook() -> None:
    """Once for the life of the process: Python cannot take a hook away again."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        for outside in _listening:
            outside.hear(event, args)

    sys.addaudithook(hook)


@contextmanager
def listening(outside: Outside) -> Iterator[None]:
    """Note what is done outside while the block runs."""
    _add_hook()
    _listening.append(outside)
    try:
        yield
    finally:
        _listening.remove(outside)


def own_file(store: Any) -> str:
    """The file that the inbox itself opens."""
    return str(store.path) if store.dialect == "sqlite" else ""
