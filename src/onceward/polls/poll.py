"""Polled APIs: a function asks, one process at a time; its raw responses are stored before they are read (R40).

Invariant: the function is resumed after a `yield` only when that response and its cursor are committed. One whose
turn was taken over meanwhile is closed instead, and nothing more of it is stored.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from onceward.brokers.consumer import FIRST_PAUSE, LONGEST_PAUSE, PAUSED_SECONDS, REFUSALS, IsPaused, never_paused, wait
from onceward.domain import checks, identity, payload
from onceward.domain.text import long
from onceward.errors import (
    ConfigurationError,
    ContractViolation,
    PollFailed,
    StoreConflict,
    StoreError,
    StoreUnavailable,
)
from onceward.flow import Flow
from onceward.retry import POLICY, RetryPolicy, text_of
from onceward.runtime.runner import perform
from onceward.steps.context import Context
from onceward.steps.introduce import introduce
from onceward.steps.poll import Answer, Turn, end, keep, take
from onceward.stores.protocol import Store

log = logging.getLogger("onceward")

_END = object()


@dataclass(frozen=True, slots=True)
class Response:
    """The response of an API, as it came, and where to go on after it."""

    body: bytes = field(repr=False)
    cursor: Any = None
    """JSON-able; the function gets the last one stored."""
    id: str | None = None
    """Where the API itself names its responses; else each has a number, and one like the one before is no news."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        checks.instance("Response", "body", self.body, bytes, "bytes, as the API sent them")
        payload.encode(self.cursor)  # says so where it is made, not where it is stored


class Polling(Protocol):
    """What an inbox is to a poll."""

    @property
    def context(self) -> Context:
        """What its steps know."""

    @property
    def store(self) -> Store:
        """The database behind it."""


@dataclass(frozen=True, slots=True)
class Poll:
    """One polled API of an inbox."""

    function: Callable[[Any], Any]
    source: str
    type: str
    every: timedelta
    timeout: timedelta
    """How long the function may take for a response; after that another process may begin where it stands."""
    retry: RetryPolicy

    def __post_init__(self) -> None:
        identity.check_name("source", self.source)
        identity.check_name("type", self.type)
        where = f"@inbox.add_poll(source={self.source!r})"
        checks.duration(where, "every", self.every)
        checks.duration(where, "timeout", self.timeout)
        checks.instance(where, "retry", self.retry, RetryPolicy, POLICY)
        if not inspect.isgeneratorfunction(self.function) and not inspect.isasyncgenfunction(self.function):
            raise ConfigurationError(
                f"poll of {self.source!r}: the function must yield its responses: yield Response(body, cursor=...)"
            )

    async def run(self, inbox: Polling, stopping: asyncio.Event, is_paused: IsPaused = never_paused) -> None:
        """Take turns until told to stop; trouble with the API or the database is waited out, and so is a pause."""
        pause = FIRST_PAUSE
        while not stopping.is_set():
            if await is_paused(self.source):
                await wait(stopping, PAUSED_SECONDS)
                continue
            try:
                left = await self.turn(inbox, stopping, is_paused=is_paused)
                pause = FIRST_PAUSE
            except StoreError as error:
                log.warning("the poll of %s waits for the database, retrying in %.1f s: %s", self.source, pause, error)
                left, pause = pause, min(pause * 2, LONGEST_PAUSE)
            except PollFailed as failed:
                log.warning("the poll of %s failed, trying again in %.1f s: %s", self.source, failed.left, failed)
                left = failed.left
            # Whoever has the turn now may end it earlier than its patience says.
            await wait(stopping, min(max(left, FIRST_PAUSE), self.every.total_seconds()))

    async def turn(
        self,
        inbox: Polling,
        stopping: asyncio.Event,
        *,
        early: bool = False,
        is_paused: IsPaused = never_paused,
    ) -> float:
        """Poll if it is our turn; returns in how many seconds the next one is due."""
        token = identity.new_id()
        await asyncio.to_thread(perform, inbox.store, partial(introduce, inbox.context))
        taken: Turn | float = await _performed(
            inbox, lambda: take(inbox.context, self.source, token, self.timeout, early=early)
        )
        if not isinstance(taken, Turn):
            return taken
        turn: Turn | None = taken
        try:
            async with aclosing(self._responses(taken.cursor)) as responses:
                async for response in responses:
                    turn = await self._kept(inbox, turn, response, stopping)
                    if turn is None or stopping.is_set() or await is_paused(self.source):
                        break
        except (StoreUnavailable, StoreConflict):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the poll's trouble, and the next turn's chance
            return await self._failed(inbox, taken, error, stopping)
        if turn is None:
            log.warning(
                "the poll of %s was taken over: it took longer than %s for a response", self.source, long(self.timeout)
            )
            return 0.0
        rest = timedelta(0) if stopping.is_set() else self.every
        await self._ended(inbox, lambda: end(inbox.context, turn, rest), stopping)
        return rest.total_seconds()

    async def _failed(self, inbox: Polling, turn: Turn, error: Exception, stopping: asyncio.Event) -> float:
        delay = self.retry.delay(turn.failures + 1)
        text = f"{type(error).__name__}: {text_of(error)}"[:2000]
        await self._ended(inbox, lambda: end(inbox.context, turn, delay, text), stopping)
        raise PollFailed(text, delay.total_seconds()) from error

    async def _ended(self, inbox: Polling, ending: Callable[[], Flow[None]], stopping: asyncio.Event) -> None:
        """Give the turn back, however long the database is away: else no process polls until its patience is over."""
        pause = FIRST_PAUSE
        while True:
            try:
                await _performed(inbox, ending)
            except (StoreUnavailable, StoreConflict) as error:
                if stopping.is_set():
                    raise
                log.warning("the poll of %s waits for the database, %.1f s: %s", self.source, pause, error)
                await wait(stopping, pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                return

    async def _kept(self, inbox: Polling, turn: Turn | None, response: Any, stopping: asyncio.Event) -> Turn | None:
        """The turn after the response is committed; while the database is away, that is waited for.

        One that the database refuses is kept without its names; where even that is refused, the turn has failed.
        """
        if not isinstance(response, Response):
            raise ContractViolation(f"the poll of {self.source!r} yielded {type(response).__name__}, not a Response")
        assert turn is not None  # noqa: S101 - the caller stops when it is lost
        answer = Answer(self.type, response.body, response.cursor, response.id, dict(response.headers))
        pause, refusals = FIRST_PAUSE, 0
        while True:
            try:
                kept: Turn | None = await _performed(inbox, partial(keep, inbox.context, turn, answer, self.timeout))
            except StoreError as error:
                refusals += not isinstance(error, StoreUnavailable | StoreConflict)
                if stopping.is_set() or refusals > REFUSALS:
                    raise
                if refusals == REFUSALS:
                    answer = answer.without_names(str(error))
                    what = "the database refuses a response of the poll of %s, which is kept as unhandled: %s"
                    log.error(what, self.source, error)  # noqa: TRY400 - the traceback says nothing
                    continue
                log.warning("the poll of %s waits for the database, retrying in %.1f s: %s", self.source, pause, error)
                await wait(stopping, pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                inbox.store.notify()
                return kept

    async def _responses(self, cursor: Any) -> AsyncGenerator[Any]:
        """The function's responses, whichever kind it is; a `def` runs in threads."""
        made = self.function(cursor)
        if inspect.isasyncgen(made):
            async with aclosing(made):
                async for response in made:
                    yield response
            return
        try:
            while (response := await asyncio.to_thread(next, made, _END)) is not _END:
                yield response
        finally:
            await asyncio.to_thread(made.close)


async def _performed(inbox: Polling, step: Callable[[], Flow[Any]]) -> Any:
    """Run a step in a thread, and see it through when we are cancelled: what is being committed must be known to be."""
    performing = asyncio.ensure_future(asyncio.to_thread(perform, inbox.store, step))
    try:
        return await asyncio.shield(performing)
    except asyncio.CancelledError:
        await asyncio.wait([performing])
        raise
