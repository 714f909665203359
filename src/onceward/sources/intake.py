"""Taking in: from a broker into the inbox, a batch at a time, each committed before it is accepted.

Invariant: every delivery ends in exactly one of accepted (after its commit), released, or left with a connection that
is closed. While the database is away nothing more is read: the batch in hand waits for it. A message that the database
refuses holds up the others for a moment only, and is kept under another name.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, Unpack

from onceward.domain.rate_limit import Pace
from onceward.errors import StoreConflict, StoreError, StoreUnavailable
from onceward.message import Arguments, Receipt
from onceward.sources.envelope import Envelope
from onceward.sources.protocol import Arrival, BrokerUnavailable, Source

log = logging.getLogger("onceward")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
WAIT_SECONDS = 1.0
REFUSALS = 2
"""So often a message is refused by the database before it is kept for a person."""


class Receiver(Protocol):
    """What an inbox is to a source."""

    def receive_many(self, messages: Sequence[Arguments]) -> list[Receipt]:
        """Store messages; returns when they are committed."""

    def process(self, **message: Unpack[Arguments]) -> Receipt:
        """Handle a message now."""


@dataclass(frozen=True, slots=True)
class Intake:
    """One source of an inbox."""

    source: Source
    envelope: Envelope
    batch: int = 100
    inline: bool = False
    """Handle each message before it is accepted, instead of storing it for a worker."""
    pace: Pace | None = None
    """How many deliveries a second are taken at most, by this process; the broker keeps the others."""

    async def run(self, inbox: Receiver, stopping: asyncio.Event) -> None:
        """Take in until told to stop; trouble with the broker or the database is waited out."""
        pause = FIRST_PAUSE
        while not stopping.is_set():
            try:
                await self.source.open()
                log.info("reading %s", self.source.name)
                pause = FIRST_PAUSE
                while not stopping.is_set():
                    await self._turn(inbox, stopping)
            except BrokerUnavailable as error:
                log.warning("%s cannot be read, trying again in %.1f s: %s", self.source.name, pause, error)
                await wait(stopping, pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            finally:
                await self.source.close()

    async def _turn(self, inbox: Receiver, stopping: asyncio.Event) -> None:
        limit = self.batch if self.pace is None else self.pace.take(self.batch)
        if self.pace is not None and not limit:
            await wait(stopping, self.pace.seconds_left)
            return
        arrivals = await self.source.next(limit, WAIT_SECONDS)
        if self.pace is not None:
            self.pace.give_back(limit - len(arrivals))
        if not arrivals:
            return
        # In a thread, and not given up when we are cancelled: what is being committed must be known to be.
        storing = asyncio.ensure_future(self._stored(inbox, arrivals, stopping))
        try:
            stored = await asyncio.shield(storing)
        except asyncio.CancelledError:
            await asyncio.wait([storing])
            raise
        if stored:
            await self.source.accept(arrivals[:stored])
        if stored < len(arrivals):
            await self.source.release(arrivals[stored:])

    async def _stored(self, inbox: Receiver, arrivals: Sequence[Arrival], stopping: asyncio.Event) -> int:
        """How many of them, from the first on, are committed: all, unless a stop comes while the store is away."""
        messages = [self.envelope.message(arrival) for arrival in arrivals]
        done, refusals, alone, pause = 0, 0, self.inline, FIRST_PAUSE
        while done < len(messages):
            part = messages[done : done + 1] if alone else messages
            try:
                await asyncio.to_thread(self._store, inbox, arrivals[done], part, refusals)
            except StoreError as error:
                if stopping.is_set():
                    return done
                if not isinstance(error, StoreUnavailable | StoreConflict):
                    refusals += alone
                    if not alone:  # it may be the fault of one of them
                        alone = True
                        continue
                log.warning("%s waits for the database, %.1f s: %s", self.source.name, pause, error)
                await wait(stopping, pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                done, refusals, pause = done + len(part), 0, FIRST_PAUSE
        return done

    def _store(self, inbox: Receiver, arrival: Arrival, messages: Sequence[Arguments], refusals: int) -> None:
        """Commit messages; one that was refused too often is stored without its handler, or else without its names.

        Where even that is refused, it is the database that is at fault, and the message waits for it.
        """
        if refusals < REFUSALS and self.inline:
            inbox.process(**messages[0])
            return
        try:
            inbox.receive_many(messages)
        except (StoreUnavailable, StoreConflict):
            raise
        except StoreError as error:
            if refusals < REFUSALS:
                raise
            inbox.receive_many([self.envelope.refused(arrival, str(error))])
            what = "the database refuses message %r of %s, which is kept as unhandled under its position: %s"
            log.error(what, messages[0]["id"], self.source.name, error)  # noqa: TRY400 - the traceback says nothing


Reading = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Takes in until the event is set."""


class Attendance:
    """Reads several sources in a thread with an event loop of its own."""

    def __init__(self, readings: Sequence[Reading], stop: Callable[[], None]) -> None:
        self._readings, self._stop = readings, stop
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="onceward-sources", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def end(self, patience: timedelta) -> None:
        """Finish what is in hand, then end; a problem that nobody foresaw is raised here."""
        with suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(patience.total_seconds())
        if self._thread.is_alive():
            log.error("a source did not stop in time; what it has in hand is delivered again")
        elif self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._read())
        except BaseException as error:
            log.exception("a source stopped unexpectedly; the worker stops")
            self._problem = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
            self._stop()

    async def _read(self) -> None:
        async with asyncio.TaskGroup() as group:
            for reading in self._readings:
                group.create_task(reading(self._stopping))


async def wait(stopping: asyncio.Event, seconds: float) -> None:
    """Rest for so long, or until told to stop."""
    try:
        await asyncio.wait_for(stopping.wait(), seconds)
    except TimeoutError:
        return
