"""Wake-ups on MySQL, which has no notifications: the newest number is looked at, often while something happens.

A look is a read of the last row of an index, a quarter of a millisecond; a process that is idle looks forty times a
second, and so wakes some 12 ms after a commit elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from onceward.errors import StoreError
from onceward.stores.mysql.failures import DRIVER
from onceward.stores.mysql.wire import send

AWAY: tuple[type[Exception], ...] = (StoreError, *DRIVER)
QUICK, SLOW = 0.005, 0.025
"""How many seconds between two looks: while something happens, and when nothing has for a while."""
_SLOWER = 1.2


class PollingListener(threading.Thread):
    """Looks whether another process has stored something, and wakes this one."""

    def __init__(
        self,
        connect: Callable[[], Any],
        table: str,
        wake: Callable[[], None],
        forget: Callable[[], None],
    ) -> None:
        super().__init__(name="onceward-listener", daemon=True)
        self._connect, self._wake, self._forget = connect, wake, forget
        self._look = f"SELECT max(seq) FROM {table}".encode()
        self._stopping = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                connection = self._connect()
                try:
                    self._watch(connection)
                finally:
                    connection.force_close()
            except AWAY:  # a hint only: the poll of the workers is the fallback
                self._stopping.wait(1)

    def _watch(self, connection: Any) -> None:
        self._wake()  # whatever came while nobody was looking
        pause, seen = QUICK, None
        while not self._stopping.wait(pause):
            newest = send(connection, [self._look, b"COMMIT"])[0][0][0]
            if newest != seen:
                pause, seen = QUICK, newest
                self._wake()
            else:
                pause = min(SLOW, pause * _SLOWER)

    def close(self) -> None:
        """Stop looking; fine when stopped already."""
        self._forget()
        self._stopping.set()
        with suppress(RuntimeError):  # from its own wake
            self.join(timeout=5)
