"""The loop around a source: from a broker into the inbox, a batch at a time, committed before it is acknowledged.

Invariant: every delivery ends in exactly one of acknowledged (after its commit), given back (`nack`), or left with a
connection that is closed. While the database is away nothing more is read: the batch in hand waits for it. A message
that the database refuses holds up the others for a moment only, and is kept under another name.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

from onceward.brokers.envelope import Envelope
from onceward.brokers.positions import Positions
from onceward.brokers.protocol import Arrival, BrokerUnavailable, Positioned, Source
from onceward.domain.marks import Read, marks_of
from onceward.domain.rate_limit import RateLimit
from onceward.errors import StoreConflict, StoreError, StoreUnavailable
from onceward.message import Arguments, Receipt

log = logging.getLogger("onceward")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
WAIT_SECONDS = 1.0
REFUSALS = 2
"""So often a message is refused by the database before it is kept for an operator."""


Mode = Literal["store-first", "direct"]
MODES: tuple[Mode, ...] = ("store-first", "direct")


Ask = Callable[[str], Mapping[str, str]]
"""How far the parts of a source were read, as the database has it."""
IsPaused = Callable[[str], Awaitable[bool]]
"""Whether an operator has paused a source."""
PAUSED_SECONDS = 0.5
"""How often a reader that is paused looks whether it may go on."""


async def never_paused(source: str) -> bool:  # noqa: ARG001 - as `IsPaused`
    """Where there are no operators."""
    return False


class Receiver(Protocol):
    """What an inbox is to a source."""

    def receive_many(self, messages: Sequence[Arguments]) -> list[Receipt]:
        """Store messages; returns when they are committed."""

    async def aprocess_many(self, messages: Sequence[Arguments]) -> list[Receipt]:
        """Handle messages now, in one transaction."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """Reads one source of an inbox."""

    source: Source
    envelope: Envelope
    batch: int = 100
    mode: Mode = "store-first"
    """`direct`: handle each batch in the transaction that receives it, instead of storing it for workers."""
    rate_limit: RateLimit | None = None
    """How many deliveries a second are taken at most, by this process; the broker keeps the others."""

    async def run(
        self,
        inbox: Receiver,
        stopping: asyncio.Event,
        ask: Ask | None = None,
        is_paused: IsPaused = never_paused,
    ) -> None:
        """Read until told to stop; errors of the broker or the database are waited out.

        `ask` returns how far the database knows a source to be read. While the source is paused it is closed, so that a
        broker keeps nothing ready for it.
        """
        pause, name, clock = FIRST_PAUSE, self.envelope.source, asyncio.get_running_loop().time
        positions = None
        if ask is not None and isinstance(self.source, Positioned):
            positions = Positions(self.envelope.source, ask)
            self.source.follow(positions.asked)
        while not stopping.is_set():
            if await is_paused(name):
                await wait(stopping, PAUSED_SECONDS)
                continue
            try:
                await self.source.open()
                log.info("reading %s", self.source.name)
                began = clock()
                while not stopping.is_set() and not await is_paused(name):
                    # Only now it is read: what a source does at its beginning may fail in the first turns.
                    if await self._turn(inbox, stopping, positions) or clock() - began > LONGEST_PAUSE:
                        pause = FIRST_PAUSE
                    if positions is not None:
                        await positions.look(self.source)
            except BrokerUnavailable as error:
                log.warning("%s cannot be read, trying again in %.1f s: %s", self.source.name, pause, error)
                await wait(stopping, pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            finally:
                await self.source.close()

    async def _turn(self, inbox: Receiver, stopping: asyncio.Event, positions: Positions | None) -> bool:
        """Read a batch and keep it; returns whether there was one."""
        limit = self.batch if self.rate_limit is None else self.rate_limit.take(self.batch)
        if self.rate_limit is not None and not limit:
            await wait(stopping, self.rate_limit.seconds_left)
            return False
        arrivals = await self.source.next(limit, WAIT_SECONDS)
        if self.rate_limit is not None:
            self.rate_limit.give_back(limit - len(arrivals))
        if not arrivals:
            return False
        # In a thread, and not given up when we are cancelled: what is being committed must be known to be.
        storing = asyncio.ensure_future(self._stored(inbox, arrivals, stopping, positions))
        try:
            stored = await asyncio.shield(storing)
        except asyncio.CancelledError:
            await asyncio.wait([storing])
            raise
        if stored:
            await self.source.ack(arrivals[:stored])
        if stored < len(arrivals):
            await self.source.nack(arrivals[stored:])
        return True

    async def _stored(
        self, inbox: Receiver, arrivals: Sequence[Arrival], stopping: asyncio.Event, positions: Positions | None
    ) -> int:
        """How many of them, from the first on, are committed: all, unless a stop comes while the store is away."""
        messages = [self.envelope.message(arrival) for arrival in arrivals]
        done, refusals, alone, pause = 0, 0, False, FIRST_PAUSE
        while done < len(messages):
            end = done + 1 if alone else len(messages)
            marks = positions.marks(arrivals[done:end]) if positions is not None else []
            part = Read(messages[done:end], marks) if marks else messages[done:end]
            try:
                if refusals < REFUSALS and self.mode == "direct":
                    await inbox.aprocess_many(part)
                else:
                    await asyncio.to_thread(self._store, inbox, arrivals[done], part, refusals)
            except StoreError as error:
                if stopping.is_set():
                    return done
                if not isinstance(error, StoreUnavailable | StoreConflict):
                    refusals += alone
                    if not alone:  # it may be the fault of one of them
                        alone = True
                        continue
                log.warning("%s waits for the database, retrying in %.1f s: %s", self.source.name, pause, error)
                await wait(stopping, pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                done, refusals, pause = end, 0, FIRST_PAUSE
                if positions is not None:
                    positions.kept(marks)
        return done

    def _store(self, inbox: Receiver, arrival: Arrival, messages: Sequence[Arguments], refusals: int) -> None:
        """Commit messages; one that was refused too often is stored without its handler, or else without its names.

        Where even that is refused, it is the database that is at fault, and the message waits for it.
        """
        try:
            inbox.receive_many(messages)
        except (StoreUnavailable, StoreConflict):
            raise
        except StoreError as error:
            if refusals < REFUSALS:
                raise
            inbox.receive_many(Read([self.envelope.refused(arrival, str(error))], marks_of(messages)))
            what = "the database refuses message %r of %s, which is kept as unhandled under its position: %s"
            log.error(what, messages[0]["id"], self.source.name, error)  # noqa: TRY400 - the traceback says nothing


Reading = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Reads until the event is set."""


class ReaderThread:
    """Reads several sources and polls in a thread with an event loop of its own."""

    def __init__(
        self, readings: Sequence[Reading], stop: Callable[[], None], close: Callable[[], Awaitable[None]]
    ) -> None:
        self._readings, self._stop, self._close = readings, stop, close
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="onceward-sources", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def end(self, patience: timedelta) -> None:
        """Finish what is in hand, then end; an unexpected error is raised here."""
        with suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(patience.total_seconds())
        if self._thread.is_alive():
            log.error("a source did not stop in time; what it had received is delivered again")
        elif self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._read())
        except BaseException as error:
            log.exception("reading a source failed with an unexpected error; the worker stops")
            self._problem = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
            self._stop()

    async def _read(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for reading in self._readings:
                    group.create_task(reading(self._stopping))
        finally:
            await self._close()  # what `async def` handlers had on this loop


async def wait(stopping: asyncio.Event, seconds: float) -> None:
    """Rest for so long, or until told to stop."""
    try:
        await asyncio.wait_for(stopping.wait(), seconds)
    except TimeoutError:
        return
