"""The process that is killed: it plays a scenario and dies at one of the requests that it makes to the server.

The server has carried that request out, and the process does not know. To die before a request is to die after the one
before it: the server cannot tell the two apart.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

from onceward.stores.dynamodb.sessions import AsyncSession, SyncSession
from onceward.stores.redis.sessions import AsyncRedisSession, RedisSession
from tests.nursery import Job
from tests.recorded.service import SCENARIOS, Place, built

_numbers = itertools.count(1)


def _die_at(number: int) -> None:
    """Count what sessions send, and die when so many were answered."""

    def reach() -> None:
        if next(_numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    _after(SyncSession, "_ask", reach)
    _after(RedisSession, "_send", reach)
    _after_awaited(AsyncSession, "_ask", reach)
    _after_awaited(AsyncRedisSession, "_send", reach)


def _after(cls: type, name: str, reach: Callable[[], None]) -> None:
    plain = getattr(cls, name)

    def counted(self: Any, *words: Any) -> Any:
        try:
            return plain(self, *words)
        finally:
            reach()

    setattr(cls, name, counted)


def _after_awaited(cls: type, name: str, reach: Callable[[], None]) -> None:
    plain = getattr(cls, name)

    async def counted(self: Any, *words: Any) -> Any:
        try:
            return await plain(self, *words)
        finally:
            reach()

    setattr(cls, name, counted)


def play(job: Job) -> None:
    """Play it; where it is to die at no request, say how many there were."""
    given = job.arguments
    os.environ.update(given["environment"])
    _die_at(given["number"])
    with built(Place(*given["place"]), given["kind"]) as inbox:
        SCENARIOS[given["scenario"]](inbox, given["kind"])
    job.say("requests", count=next(_numbers) - 1)
