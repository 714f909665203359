"""Awaited forms of methods that block: `astats = awaited(stats)`.

Invariant: there is one implementation, and an event loop never runs it. It runs in one of a few threads that are kept
for this, not in those of the loop: while the database is away, calls that hang here hold up nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from onceward.deferred import asyncio, futures

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")

THREADS = "onceward-awaited"
AT_ONCE = 8
"""So many run at the same time in a process; the others wait for a thread."""


def awaited(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the awaited form of a method. When it is cancelled, what has begun is completed all the same."""

    @wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        run = partial(copy_context().run, method, self, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(_threads(os.getpid()), run)

    call.__name__ = f"a{method.__name__}"
    call.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{call.__name__}"
    call.__doc__ = f"As `{method.__name__}`, awaited."
    return call


@cache
def _threads(process: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a child of a fork has none of its parent's threads
    executor: ThreadPoolExecutor = futures.ThreadPoolExecutor(AT_ONCE, thread_name_prefix=THREADS)
    return executor
