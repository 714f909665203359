"""Calling a handler on a session: whatever it raises becomes an `Outcome`; its transaction is its own, not to end."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from functools import lru_cache
from time import thread_time
from typing import Any, TypeVar

from onceward.deferred import asyncio
from onceward.errors import ContractViolation, HandlerTimeout
from onceward.flow import Call, Outcome

T = TypeVar("T")
IsInfrastructure = Callable[[BaseException], bool]
LONG = 1000
"""From how many characters on SQL is long."""

running: ContextVar[tuple[_HandlerCall, ...]] = ContextVar("oncewardrunning", default=())
"""The calls of handlers that this thread or task belongs to, or did when it was begun; a handler may call another
through a second inbox. Each has a connection, so how many they are decides which connections are used further in."""


class _HandlerCall:
    """One call of a handler, and the connection that it has."""

    def __init__(self, connection: Owned) -> None:
        self.connection = connection


def lent() -> list[Owned]:
    """The connections of the running handlers that this thread or task belongs to."""
    return [call.connection for call in running.get() if call.connection.call is call]


class Owned:
    """A connection that belongs, while a handler has it, to that one call.

    That is: to its thread or task, and to those that were given its context. What outlives the call would write into
    the transaction of another message.
    """

    call: _HandlerCall | None = None
    """The call that has it now."""
    overrun: bool = False
    """It was interrupted."""
    inside: float = 0.0
    """How many seconds its statements have taken, where that is measured."""
    statements: int = 0
    """How many it has sent."""
    savepoints: int = 0
    """How many it has made."""
    _before: Token[tuple[_HandlerCall, ...]]

    def lend(self) -> None:
        """A handler gets the connection."""
        call = _HandlerCall(self)
        before = running.set((*running.get(), call))
        # Past the `__setattr__` of a connection that looks at what its handler sets.
        self.__dict__.update(call=call, _before=before, overrun=False, inside=0.0, statements=0, savepoints=0)

    def reclaim(self) -> None:
        """The handler has ended."""
        self.__dict__["call"] = None
        running.reset(self._before)

    def sends(self, sql: str) -> None:
        """The call sends a statement."""
        self.__dict__["statements"] += 1
        if sql[:9].upper() == "SAVEPOINT":
            self.__dict__["savepoints"] += 1

    @property
    def in_handler(self) -> bool:
        """Whether a handler has it."""
        return self.call is not None

    def check_owner(self) -> None:
        """Refuse a thread or task that does not belong to the call that has the connection."""
        if self.call is None:
            raise ContractViolation("tx was used outside of its handler; its transaction is over")
        if self.call not in running.get():
            raise ContractViolation(
                "tx was used by a thread or task that does not belong to the running handler, or that has outlived its "
                "own. Use tx only until the handler returns, in its own thread or task; a helper thread needs the "
                "handler's context: threading.Thread(target=contextvars.copy_context().run, args=(function,))"
            )


def outcome(call: Call, tx: Any, is_infrastructure: IsInfrastructure) -> Outcome:
    """Call a `def` handler."""
    handler, message = call.handler, call.message
    # To ask for it takes a microsecond: only where what the handler is given, such as a Session, computes much itself.
    began = thread_time() if handler.parameter.is_made else 0.0
    try:
        if not handler.hooks:  # the usual case
            found = Outcome(value=handler.call(message, tx))
        else:
            with handler.hooked(message):
                found = Outcome(value=handler.call(message, tx))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        found = Outcome(error=error, infrastructure=is_infrastructure(call.handler.cause(error)))
    if began:
        found.computed = thread_time() - began
    return found


async def awaited_outcome(call: Call, tx: Any, is_infrastructure: IsInfrastructure) -> Outcome:
    """Await an `async def` handler; a cancellation of its own is an outcome, one of ours is passed on."""
    task = asyncio.current_task()
    limit = call.handler.timeout.total_seconds()
    scope = asyncio.timeout(limit)
    try:
        async with scope:
            loop = asyncio.get_running_loop()
            call.interrupt = lambda: loop.call_soon_threadsafe(_end, scope)
            with call.handler.hooked(call.message):
                value = await call.handler.call(call.message, tx)
        # A handler that overran has failed, also when it caught its cancellation and returned.
        return Outcome(error=overrun(limit)) if scope.expired() else Outcome(value=value)
    except TimeoutError as error:
        return Outcome(error=overrun(limit) if scope.expired() else error)
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        return Outcome(error=error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        return Outcome(error=error, infrastructure=is_infrastructure(call.handler.cause(error)))


def _end(scope: asyncio.Timeout) -> None:
    """A handler's time is over now, if it still runs."""
    with suppress(RuntimeError):  # it has ended
        scope.reschedule(0)


def overrun(seconds: float) -> HandlerTimeout:
    """The error of a handler that ran too long."""
    return HandlerTimeout(f"the handler ran longer than its timeout of {seconds:g} s")


_CONTROL = re.compile(
    r"(?:(BEGIN|START\s+TRANSACTION|COMMIT|END|ABORT|PREPARE\s+TRANSACTION"
    r"|SET\s+(?:(?:LOCAL|SESSION)\s+)?TRANSACTION(?:_\w+)?|SET\s+SESSION\s+CHARACTERISTICS)\b"
    r"|(ROLLBACK)\b(?!(?:\s+(?:TRANSACTION|WORK))?\s+TO\b))",
    re.IGNORECASE,
)


def refuse_transaction_control(statement: str) -> None:
    """Refuse a handler's own BEGIN, COMMIT or ROLLBACK at the line where it stands; comments before it are cut off.

    SET TRANSACTION too: in one that only reads, the message could never be finished.
    """
    found = _CONTROL.match(statement)
    if found:
        word = found.group(1) or found.group(2)
        raise ContractViolation(
            f"the handler ran {word.upper()}; the transaction belongs to onceward: returning commits, "
            "raising rolls back. Remove it, or use a savepoint"
        )


def remembered(check: Callable[..., T]) -> Callable[..., T]:
    """A look at a handler's SQL that is taken once for each text: the same few are sent again and again.

    Long ones are looked at each time, for they would be kept.
    """
    known = lru_cache(maxsize=500)(check)
    return lambda sql, *more: known(sql, *more) if len(sql) <= LONG else check(sql, *more)
