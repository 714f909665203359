"""What running workers do beside their work and takes its time: archiving, and collecting blobs that no row refers to.

In a thread of its own, because disks and blob stores may be slow and the thread of duties takes over dead processes.
Invariant: one process at a time has the turn of a task; a process that dies in the middle of one leaves what the next
turn finds again, and nothing that is lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from onceward.errors import OncewardError, StoreUnavailable
from onceward.runtime.runner import perform
from onceward.steps.context import Context
from onceward.stores.protocol import Store

log = logging.getLogger("onceward")

EVERY = timedelta(hours=1)
_REST = 0.1
"""Seconds between two turns while there is more to do, so that live traffic always has its turn."""

Task = Callable[[], bool]
"""Takes a turn; returns whether that was all there is to do."""


class Maintenance:
    """The thread that does these tasks."""

    def __init__(self, context: Context, store: Store, tasks: Mapping[str, Task]) -> None:
        self._context, self._store, self._tasks = context, store, tasks
        self._stopping = threading.Event()

    @contextmanager
    def during(self) -> Iterator[None]:
        """Do them while the block runs."""
        every = self._context.settings.maintenance
        if every is None or not self._tasks:
            yield
            return
        thread = threading.Thread(
            target=self._run, args=[every.total_seconds()], name="onceward-maintenance", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join(self._context.settings.stop_timeout.total_seconds())

    def _run(self, every: float) -> None:
        while not self._stopping.is_set():
            more = [name for name, task in self._tasks.items() if not self._turn(name, task)]
            self._stopping.wait(_REST if more else every)

    def _turn(self, name: str, task: Task) -> bool:
        """Take the turn of a task if it is due; returns whether there is nothing left to do for now."""
        try:
            moves = self._context.moves.retention
            if not perform(self._store, partial(moves.take_turn, name, EVERY.total_seconds())) or task():
                return True
            perform(self._store, partial(moves.give_turn, name))
        except StoreUnavailable as error:
            log.warning("%s is postponed: %s", name, error)
            return True
        except (OncewardError, OSError):
            log.exception("%s failed; it will be tried again", name)
            return True
        return False
