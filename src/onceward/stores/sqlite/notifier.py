"""Wake-ups on SQLite: the file's change counter, looked at every few milliseconds."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable


class FileListener(threading.Thread):
    """Looks every few milliseconds whether another connection has written: a counter in memory, not a query."""

    INTERVAL = 0.01

    def __init__(self, connection: sqlite3.Connection, wake: Callable[[], None], listeners: set[FileListener]) -> None:
        super().__init__(name="onceward-listener", daemon=True)
        self._connection, self.wake, self._listeners = connection, wake, listeners
        self._stopping = threading.Event()
        self.start()

    def run(self) -> None:
        seen = None
        while not self._stopping.wait(self.INTERVAL):
            try:
                version = self._connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error:  # the poll of the worker itself is the fallback
                continue
            if version != seen:
                seen = version
                self.wake()
        self._connection.close()

    def close(self) -> None:
        self._listeners.discard(self)
        self._stopping.set()
        self.join()
