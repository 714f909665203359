"""Interrupts `def` handlers that overrun, and those whose message was taken away.

Invariant: a handler is interrupted at most once for each call, and one that has ended never is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from onceward.errors import ClaimLost, OncewardError
from onceward.flow import Call, Flow, Outcome
from onceward.steps.context import Context
from onceward.steps.lane import Lane
from onceward.stores.calls import overrun
from onceward.stores.protocol import AsyncSession, Session

log = logging.getLogger("onceward")

TICK = 0.2
LONG = 0.5
"""Only of a handler that has run for so many seconds is it looked whether it still has its message."""
LOST = "an operator has taken its message away, or another worker has it"


class Watch:
    """The deadline of one lane's running handler."""

    def __init__(self, lane: Lane | None = None) -> None:
        self._lock = threading.Lock()
        self._lane = lane
        self._deadline = float("inf")
        self._session: Session | None = None
        self._call: Call | None = None
        self._began = 0.0
        self._expired = self._lost = False

    def begin(self, session: Session | None, call: Call, seconds: float = float("inf")) -> None:
        """A handler starts; one that is awaited has its limit on the event loop."""
        with self._lock:
            self._session, self._call, self._began = session, call, time.monotonic()
            self._deadline, self._expired, self._lost = self._began + seconds, False, False

    def end(self) -> OncewardError | None:
        """The handler has ended; returns why it was interrupted, if it was."""
        with self._lock:
            limit = self._deadline - self._began
            self._session, self._call, self._deadline = None, None, float("inf")
            if self._lost:
                return ClaimLost(LOST)
            return overrun(limit) if self._expired else None

    def check(self, now: float) -> None:
        """Interrupt the handler if it has overrun."""
        with self._lock:
            if now > self._deadline and self._session is not None and not self._expired:
                self._expired = True
                self._session.interrupt()

    def running(self, now: float) -> Running | None:
        """What a lane has run for a while, of what it has claimed."""
        with self._lock:
            if self._lane is None or self._call is None or now - self._began < LONG:
                return None
            return Running(self, self._lane.owner, frozenset(self._lane.open_tokens), self._call)

    def interrupt(self, call: Call) -> None:
        """Interrupt the handler if it still runs: its claim was taken away."""
        with self._lock:
            if self._call is not call or self._lost:
                return
            log.warning("the handler of %s is interrupted: %s", call.handler.type, LOST)
            self._lost = True
            if self._session is not None:
                self._session.interrupt()
            elif call.interrupt is not None:
                call.interrupt()

    def cut(self) -> None:
        """End the handler's transaction, though not the handler: it is not waited for any more."""
        with self._lock:
            if self._session is not None:
                self._expired = True
                self._session.cut()


class Running(NamedTuple):
    """A handler that has run for a while, and the claims of its lane."""

    watch: Watch
    worker: int
    tokens: frozenset[int]
    call: Call

    @property
    def seqs(self) -> set[int]:
        """The messages that it runs."""
        messages = self.call.message if isinstance(self.call.message, list) else [self.call.message]
        return {message.seq for message in messages}


class Watchdog:
    """The deadlines of every lane of a process."""

    def __init__(self) -> None:
        self._watches: set[Watch] = set()

    @contextmanager
    def watched(self, lane: Lane | None = None) -> Iterator[Watch]:
        """A deadline for one lane."""
        watch = Watch(lane)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    def look(self) -> float:
        """Interrupt handlers that have overrun; a turn of its thread."""
        now = time.monotonic()
        for watch in list(self._watches):
            try:
                watch.check(now)
            except Exception:  # the others have deadlines, too
                log.exception("a handler ran longer than its timeout and could not be interrupted, trying again")
        return TICK

    def running(self) -> list[Running]:
        """The handlers that have run for a while."""
        now = time.monotonic()
        return [found for watch in list(self._watches) if (found := watch.running(now)) is not None]

    def interrupt_lost(self, context: Context) -> Flow[int]:
        """Interrupt handlers of messages that were taken away from this process while they run.

        It takes one look for all of them, and none while every handler is quick.
        """
        running = self.running()
        held: set[int] = set()
        for worker in sorted({one.worker for one in running}):  # mostly one: the number changes with a registration
            tokens = frozenset[int]().union(*(one.tokens for one in running if one.worker == worker))
            held |= yield from context.moves.claims.still_claimed(worker, tokens)
        for one in running:
            if not one.seqs <= held:
                one.watch.interrupt(one.call)
        return 0

    def cut(self) -> None:
        """End the transactions of handlers that still run, so that their locks hold up no other."""
        for watch in list(self._watches):
            watch.cut()


def watched_call(session: Session, watch: Watch, call: Call) -> Outcome:
    """Call a `def` handler under its time limit."""
    watch.begin(session, call, call.handler.timeout.total_seconds())
    try:
        outcome: Outcome = session.perform(call)
    finally:
        interrupted = watch.end()
    return outcome if interrupted is None else replace(outcome, error=interrupted, infrastructure=False)


async def watched_await(session: AsyncSession, watch: Watch, call: Call) -> Outcome:
    """Await an `async def` handler, which may be interrupted."""
    watch.begin(None, call)
    try:
        outcome: Outcome = await session.perform(call)
    finally:
        interrupted = watch.end()
    return outcome if interrupted is None else replace(outcome, error=interrupted, infrastructure=False)
