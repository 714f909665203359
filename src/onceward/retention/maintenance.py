"""What running workers do beside their work and takes its time: archiving, and collecting blobs that nobody refers to.

In a thread of its own, because disks and blob stores may be slow and the thread of upkeep takes over dead processes.
Invariant: one process at a time has the turn of a chore; a process that dies in the middle of one leaves what the next
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
from onceward.flow import Query
from onceward.runtime.runner import perform
from onceward.steps.context import Context, once
from onceward.stores.protocol import Store

log = logging.getLogger("onceward")

EVERY = timedelta(hours=1)
_REST = 0.1
"""Seconds between two turns while there is more to do, so that live traffic always has its turn."""

Chore = Callable[[], bool]
"""Takes a turn; answers whether that was all there is to do."""


class Chores:
    """The thread that does them."""

    def __init__(self, context: Context, store: Store, chores: Mapping[str, Chore]) -> None:
        self._context, self._store, self._chores = context, store, chores
        self._stopping = threading.Event()

    @contextmanager
    def during(self) -> Iterator[None]:
        """Do them while the block runs."""
        every = self._context.settings.upkeep
        if every is None or not self._chores:
            yield
            return
        thread = threading.Thread(target=self._run, args=[every.total_seconds()], name="onceward-chores", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join(self._context.settings.stop_timeout.total_seconds())

    def _run(self, every: float) -> None:
        while not self._stopping.is_set():
            more = [name for name, chore in self._chores.items() if not self._turn(name, chore)]
            self._stopping.wait(_REST if more else every)

    def _turn(self, name: str, chore: Chore) -> bool:
        """Take the turn of a chore if it is due; answers whether there is nothing left to do for now."""
        try:
            if not self._ask("take_turn", task=name, every=EVERY.total_seconds()) or chore():
                return True
            self._ask("give_turn", task=name)
        except StoreUnavailable as error:
            log.warning("%s is put off: %s", name, error)
            return True
        except (OncewardError, OSError):
            log.exception("%s failed; it will be tried again", name)
            return True
        return False

    def _ask(self, statement: str, **params: object) -> bool:
        (rows,) = perform(self._store, partial(once, self._context, Query(statement, params)))
        return bool(rows)
