"""What happens after a failure: a pure decision, made from the error, the budget and the age of the message.

The handler's two signals are here too: `raise Retry(after=...)` and `raise Reject("why")`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from onceward.domain import checks
from onceward.domain.text import span
from onceward.errors import (
    BodyLost,
    ContractViolation,
    HandlerNotFound,
    InvalidMessage,
    OutcomeUnknown,
    TransactionAborted,
    VersionUnknown,
)

LONGEST = timedelta(days=3650)
"""No delay is longer: every due time stays a date that can be stored and shown."""


class Retry(Exception):
    """Raised by a handler: not now, try again, `after` this time if one is given. Counts as an attempt."""

    def __init__(self, reason: str = "", *, after: timedelta | float | None = None) -> None:
        super().__init__(reason or "the handler asked for a retry")
        self.after = None if after is None else min(_delay(after), LONGEST)


def _delay(after: timedelta | float) -> timedelta:
    if isinstance(after, timedelta) and after >= timedelta(0):
        return after
    if isinstance(after, int | float) and not isinstance(after, bool) and after >= 0:
        return timedelta(seconds=min(after, LONGEST.total_seconds()))
    return checks.refuse("Retry", "after", after, "a timedelta, or a number of seconds from 0")


class Reject(Exception):
    """Raised by a handler: this message can never succeed. It is dead at once, with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class VersionGap(Exception):  # a decision about a message, made by its sequence number
    """The message before this one did not come in time."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and when a failing message is tried again. By default for about two days.

    >>> RetryPolicy(attempts=5, first=timedelta(seconds=2), jitter=0).delay(3)
    datetime.timedelta(seconds=8)
    """

    attempts: int = 20
    """How many attempts in all; the message is dead after the last one."""
    first: timedelta = timedelta(seconds=10)
    factor: float = 2.0
    cap: timedelta = timedelta(hours=6)
    """No delay is longer, but for its jitter."""
    max_age: timedelta | None = None
    """A message that fails when it came longer ago than this is dead, whatever its budget; None: attempts alone count.

    A message also ages while no worker runs and while it waits behind others of its key.
    """
    jitter: float = 0.2
    """By which part a delay may be shorter or longer, so that what failed together does not come back together."""

    def __post_init__(self) -> None:
        where, nothing = "RetryPolicy", timedelta(0)
        checks.whole(where, "attempts", self.attempts)
        checks.duration(where, "first", self.first, least=nothing)
        checks.duration(where, "cap", self.cap, least=nothing)
        checks.number(where, "factor", self.factor, least=1)
        checks.number(where, "jitter", self.jitter, least=0, most=1)
        if self.max_age is not None:
            checks.duration(where, "max_age", self.max_age, least=nothing)

    @classmethod
    def classic(cls) -> RetryPolicy:
        """The schedule many textbooks give: after 30 s, 2 min, 8 min, never longer than 1 h; then dead."""
        return cls(attempts=4, first=timedelta(seconds=30), factor=4.0, cap=timedelta(hours=1), jitter=0.1)

    def delay(self, attempt: int, *, chance: Callable[[], float] = random.random) -> timedelta:
        """How long to wait after the given failed attempt (1 is the first)."""
        try:
            full = self.first.total_seconds() * self.factor ** (attempt - 1)
        except OverflowError:
            full = math.inf if self.first else 0.0
        longest = min(self.cap, LONGEST).total_seconds()
        spread = 1 + self.jitter * (2 * chance() - 1)
        return min(timedelta(seconds=min(full, longest) * spread), LONGEST)


POLICY = "a RetryPolicy, for example RetryPolicy(attempts=5)"
"""What `retry=` must be."""


class Again(NamedTuple):
    """Try again after this delay."""

    delay: timedelta


class Dead(NamedTuple):
    """Not tried again by itself; an operator decides."""

    reason: str


_PERMANENT = (Reject, BodyLost, InvalidMessage, HandlerNotFound, ContractViolation, OutcomeUnknown, VersionGap)


def text_of(error: BaseException) -> str:
    """What an error says; also one whose own `__str__` fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken error is still an error
        return "(its text cannot be printed)"


def decide(
    policy: RetryPolicy,
    error: BaseException,
    *,
    attempt: int,
    age: timedelta,
    chance: Callable[[], float] = random.random,
) -> Again | Dead:
    """Decide about a message whose attempt number `attempt` has just failed with `error`."""
    newer = isinstance(error, VersionUnknown) and error.newer  # of a program that is perhaps about to start
    if isinstance(error, _PERMANENT) and not isinstance(error, TransactionAborted) and not newer:
        return Dead(text_of(error) or type(error).__name__)
    if attempt >= policy.attempts:
        return Dead(f"failed {attempt} times, which is its budget")
    if policy.max_age is not None and age >= policy.max_age:
        old, limit = span(age.total_seconds()), span(policy.max_age.total_seconds())
        return Dead(f"still failing at the age of {old}, beyond its maximum age of {limit}")
    if isinstance(error, Retry) and error.after is not None:
        return Again(error.after)
    return Again(policy.delay(attempt, chance=chance))
