"""Wake-ups on PostgreSQL: LISTEN and NOTIFY as a hint, each on a connection of its own.

NOTIFY takes a lock at every commit, so it is never part of a receive: one thread notifies for all of them, at most
a hundred times a second, and once more after it could not. A lost notification costs one poll interval, nothing else.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg

_NOTIFY = "SET LOCAL synchronous_commit = off; NOTIFY {channel}"
"""A notification is a transaction, and would wait for the disk. Statements that are sent as one are one transaction."""

Connect = Callable[[], "psycopg.Connection[tuple[object, ...]]"]


class Notifier(threading.Thread):
    """Notifies for this process: at once, then not again for a moment."""

    GAP = 0.01
    AGAIN = 1.0
    """Seconds until it tries once more what failed."""

    def __init__(self, connect: Connect, channel: str) -> None:
        super().__init__(name="onceward-notifier", daemon=True)
        self._connect, self._statement = connect, _NOTIFY.format(channel=channel).encode()
        self._asked = threading.Event()
        self._wanted = False
        self._stopping = threading.Event()
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self.start()

    def notify(self) -> None:
        """Ask for a notification; returns at once."""
        self._wanted = True
        self._asked.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            self._asked.wait()
            self._asked.clear()  # also where nothing is wanted: set and never cleared, it would not wait again
            if self._wanted:
                self._wanted = False
                self._send()
                self._stopping.wait(self.GAP)
        if self._wanted:  # asked just before the end
            self._send()
        if self._connection:
            self._connection.close()

    def _send(self) -> None:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            self._connection.execute(self._statement)
        except psycopg.Error:  # a hint only: the poll of the workers is the fallback
            if not self._stopping.wait(self.AGAIN):
                self.notify()

    def close(self) -> None:
        """Stop; fine when stopped already."""
        self._stopping.set()
        self._asked.set()
        self.join(timeout=5)


class PostgresListener(threading.Thread):
    """Listens, and wakes this process when a process notifies."""

    def __init__(self, connect: Connect, channel: str, wake: Callable[[], None], forget: Callable[[], None]) -> None:
        super().__init__(name="onceward-listener", daemon=True)
        self._connect, self._channel, self._wake, self._forget = connect, channel, wake, forget
        self._stopping = threading.Event()
        self._end, self._other_end = socket.socketpair()  # so that it need not look now and then whether to stop
        self.start()

    def run(self) -> None:
        with self._end, self._other_end:
            while not self._stopping.is_set():
                try:
                    with self._connect() as connection, selectors.DefaultSelector() as selector:
                        self._listen(connection, selector)
                except psycopg.Error:  # a hint only: the poll of the workers is the fallback
                    self._stopping.wait(1)

    def _listen(self, connection: psycopg.Connection[tuple[object, ...]], selector: selectors.BaseSelector) -> None:
        selector.register(connection.fileno(), selectors.EVENT_READ)
        selector.register(self._end, selectors.EVENT_READ)
        connection.execute(f"LISTEN {self._channel}".encode())
        self._wake()  # whatever came while nobody was listening
        while not self._stopping.is_set():
            selector.select()
            # Whoever it wakes should find Python free: all is read before, and with libpq's own calls.
            connection.pgconn.consume_input()
            if [*iter(connection.pgconn.notifies, None)]:
                self._wake()

    def close(self) -> None:
        """Stop listening; fine when stopped already."""
        self._forget()
        self._stopping.set()
        with suppress(OSError):  # it has ended
            self._other_end.send(b".")
        self.join(timeout=5)
