"""Waiting for a condition instead of for a while.

Invariant: a wait ends as soon as its condition holds, and fails with a sentence when it never does. A
deadline is generous on purpose: it bounds a hang on a slow machine, it never decides whether behaviour was
right.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Value = TypeVar("Value")

PAUSE = 0.01
TIMEOUT = 30.0


def wait_until(condition: Callable[[], Value], *, timeout: float = TIMEOUT, message: str = "") -> Value:
    """Call `condition` until it returns something true, and return that.

    An exception from the condition is final: a condition that may raise while it waits must say so itself.
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise _gave_up(condition, timeout, message)
        time.sleep(PAUSE)
    return value


async def wait_until_async(
    condition: Callable[[], Awaitable[Value]],
    *,
    timeout: float = TIMEOUT,  # noqa: ASYNC109 - asyncio.timeout would cancel the condition half-way
    message: str = "",
) -> Value:
    """Like `wait_until`, for a coroutine function; the event loop goes on running between the calls."""
    deadline = time.monotonic() + timeout
    while not (value := await condition()):
        if time.monotonic() > deadline:
            raise _gave_up(condition, timeout, message)
        await asyncio.sleep(PAUSE)
    return value


def _gave_up(condition: object, timeout: float, message: str) -> TimeoutError:
    what = message or getattr(condition, "__qualname__", repr(condition))
    return TimeoutError(f"waited {timeout:g} s in vain: {what}")
