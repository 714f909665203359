"""A thread that does one thing again and again for as long as its process works.

Invariant: whatever a turn raises is logged and the next turn comes all the same; a thread that ends without being told
to says so to its owner, so that it does not rely on one that is gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("onceward")

Turn = Callable[[], float]
"""Does it once; returns in how many seconds the next turn is due."""


class Rounds:
    """The thread, and the time between its turns."""

    def __init__(self, name: str, turn: Turn, *, pause: float, lost: Callable[[BaseException], None]) -> None:
        self._turn, self._pause, self._lost = turn, pause, lost
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.busy = threading.Lock()
        """Held during a turn."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether further turns come."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Wait for the turn of now, and let no other come; fine when stopped already."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        pause = self._pause
        try:
            while not self._stopping.wait(pause):
                pause = self._once()
        except BaseException as error:  # noqa: BLE001 - such as a logging filter of the program's that raises
            self._lost(error)

    def _once(self) -> float:
        with self.busy:
            try:
                return self._turn()
            except BaseException:
                log.exception("%s failed with an unexpected error; it is tried again", self._thread.name)
                return self._pause
