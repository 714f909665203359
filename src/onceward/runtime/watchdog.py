"""Interrupts `def` handlers that overrun, from a thread that waits for nothing else.

Invariant: a handler is interrupted at most once for each call, and one that has ended never is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from onceward.flow import Call, Outcome
from onceward.stores.calls import overrun
from onceward.stores.protocol import Session

log = logging.getLogger("onceward")

TICK = 0.2


class Watch:
    """The deadline of one lane's running handler."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deadline = float("inf")
        self._session: Session | None = None
        self._expired = False

    def begin(self, session: Session, seconds: float) -> None:
        """A handler starts."""
        with self._lock:
            self._session, self._deadline, self._expired = session, time.monotonic() + seconds, False

    def end(self) -> bool:
        """The handler has ended; answers whether it was interrupted."""
        with self._lock:
            self._session, self._deadline = None, float("inf")
            return self._expired

    def check(self, now: float) -> None:
        """Interrupt the handler if it has overrun."""
        with self._lock:
            if now > self._deadline and self._session is not None and not self._expired:
                self._expired = True
                self._session.interrupt()

    def cut(self) -> None:
        """End the handler's transaction, though not the handler: nobody waits for it any more."""
        with self._lock:
            if self._session is not None:
                self._expired = True
                self._session.cut()


class Watchdog:
    """The deadlines of every lane of a process."""

    def __init__(self) -> None:
        self._watches: set[Watch] = set()

    @contextmanager
    def watched(self) -> Iterator[Watch]:
        """A deadline for one lane."""
        watch = Watch()
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    def look(self) -> float:
        """Interrupt whoever has overrun; a turn of its thread."""
        now = time.monotonic()
        for watch in list(self._watches):
            try:
                watch.check(now)
            except Exception:  # the others have deadlines, too
                log.exception("a handler that overruns could not be interrupted")
        return TICK

    def cut(self) -> None:
        """End the transactions of handlers that still run, so that their locks are in nobody's way."""
        for watch in list(self._watches):
            watch.cut()


def watched_call(session: Session, watch: Watch, call: Call) -> Outcome:
    """Call a `def` handler under its time limit."""
    limit = call.handler.timeout.total_seconds()
    watch.begin(session, limit)
    expired = True
    try:
        outcome: Outcome = session.perform(call)
    finally:
        expired = watch.end()
    return replace(outcome, error=overrun(limit), infrastructure=False) if expired else outcome
