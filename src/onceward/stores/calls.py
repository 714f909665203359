"""Calling a handler on a session: whatever it raises becomes an `Outcome`, and it may not end its transaction."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from onceward.deferred import asyncio
from onceward.errors import ContractViolation, HandlerTimeout
from onceward.flow import Call, Outcome

Judge = Callable[[BaseException], bool]
LONG = 1000
"""From how many characters on SQL is long."""


def outcome(call: Call, tx: Any, is_infrastructure: Judge) -> Outcome:
    """Call a `def` handler."""
    try:
        with call.handler.watched(call.message):
            return Outcome(value=call.handler.function(call.message, tx))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        return Outcome(error=error, infrastructure=is_infrastructure(error))


async def awaited_outcome(call: Call, tx: Any, is_infrastructure: Judge) -> Outcome:
    """Await an `async def` handler; a cancellation of its own is an outcome, one of ours is passed on."""
    task = asyncio.current_task()
    limit = call.handler.timeout.total_seconds()
    scope = asyncio.timeout(limit)
    try:
        async with scope:
            with call.handler.watched(call.message):
                value = await call.handler.function(call.message, tx)
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
        return Outcome(error=error, infrastructure=is_infrastructure(error))


def overrun(seconds: float) -> HandlerTimeout:
    """The error of a handler that ran too long."""
    return HandlerTimeout(f"the handler ran longer than its timeout of {seconds:g} s")


_CONTROL = re.compile(
    r"(?:(BEGIN|START\s+TRANSACTION|COMMIT|END|ABORT|PREPARE\s+TRANSACTION)\b"
    r"|(ROLLBACK)\b(?!(?:\s+(?:TRANSACTION|WORK))?\s+TO\b))",
    re.IGNORECASE,
)


def refuse_transaction_control(statement: str) -> None:
    """Refuse a handler's own BEGIN, COMMIT or ROLLBACK at the line where it stands; comments before it are cut off."""
    found = _CONTROL.match(statement)
    if found:
        word = found.group(1) or found.group(2)
        raise ContractViolation(
            f"the handler ran {word.upper()}; the transaction belongs to onceward: returning commits, "
            "raising rolls back. Remove it, or use a savepoint"
        )


def remembered(check: Callable[[str], None]) -> Callable[[str], None]:
    """A check of a handler's SQL that is made once for each text: the same few are sent again and again.

    Long ones are looked at each time, for they would be kept.
    """
    known = lru_cache(maxsize=500)(check)
    return lambda sql: known(sql) if len(sql) <= LONG else check(sql)
