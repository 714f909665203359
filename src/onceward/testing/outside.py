"""What a handler does outside of its database while a proof runs it: Python tells, through its audit events.

Not seen: what goes over a connection that was open before, which the report names, and what a driver written in C does
by itself.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
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


class NotAllowed(PermissionError):
    """The handler reached for something outside of its database, where a proof lets it not."""


@dataclass(slots=True)
class Outside:
    """What was seen, each once, in its order."""

    own: str = ""
    """The file of the inbox itself, if it has one."""
    addresses: frozenset[Any] = frozenset()
    """Where its server listens: what goes there is compared."""
    calls: list[str] = field(default_factory=list)
    """Connections and programs: they reach another program."""
    files: list[str] = field(default_factory=list)
    """Files that were opened to be written."""
    refuses: bool = False
    """Whether connections and programs are refused: the message is a real one."""
    deaf: int = 0
    """Inside of `message.once`, which records the call by itself."""

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Python tells what is about to happen."""
        if self.deaf:
            return
        if event in _CALLS:
            at = args[1] if event.startswith("socket.") else args[0]
            if not (event == "socket.connect" and at in self.addresses):
                self._call(f"{_CALLS[event]} {at!r}")
        elif event == "sqlite3.connect" and not self._is_own(str(args[0])):
            self._call(f"opened the SQLite database {args[0]!r}")
        elif event == "open" and self._is_written(*args):
            self._note(self.files, str(args[0]))

    def _call(self, what: str) -> None:
        self._note(self.calls, what)
        if self.refuses:  # raised where the event is told, so that it does not come to it
            raise NotAllowed(f"the handler {what}, which is refused here; use message.once(...)")

    def _is_own(self, database: str) -> bool:
        """Whether it is the inbox's, or one in memory that is gone with its connection."""
        return database in (self.own, ":memory:") or "vfs=memdb" in database

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


def own_addresses(store: Any) -> frozenset[Any]:
    """Where the inbox itself connects to by Python's sockets; other drivers have none that Python knows of."""
    if store.dialect != "mysql":
        return frozenset()
    address = store.address
    with suppress(OSError):
        return frozenset(found[4] for found in socket.getaddrinfo(address.host, address.port)) | {
            address.options.get("unix_socket")
        }
    return frozenset()


def open_connections(own: Any) -> list[str]:
    """Where the open connections of this process lead, but for those to the database of the inbox.

    `own` is a plain connection to that. What goes over these is seen by no audit event.
    """
    found: set[tuple[str, int] | None] = set()
    with suppress(OSError):  # a system that does not list them
        for file in Path("/dev/fd").iterdir():
            with suppress(OSError):
                found.add(_peer(int(file.name)))
    with suppress(OSError, AttributeError):  # of a driver whose connections are no files
        found.discard(_peer(own.fileno()))
    return sorted(f"{peer[0]} port {peer[1]}" for peer in found if peer)


def _peer(file: int) -> tuple[str, int] | None:
    """Host and port at the other end; raises `OSError` where there is none."""
    if not stat.S_ISSOCK(os.fstat(file).st_mode):
        return None
    with socket.socket(fileno=os.dup(file)) as copy:
        if copy.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        host, port = copy.getpeername()[:2]
        return str(host), int(port)
