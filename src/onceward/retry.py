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

from onceward.errors import (
    BodyLost,
    ConfigurationError,
    ContractViolation,
    HandlerNotFound,
    InvalidMessage,
    OutcomeUnknown,
    TransactionAborted,
)
from onceward.wording import span

LONGEST = timedelta(days=3650)
"""No delay is longer: every due time stays a date that can be stored and shown."""


class Retry(Exception):
    """Raised by a handler: not now, try again, `after` a given time if one is given. Counts as an attempt."""

    def __init__(self, reason: str = "", *, after: timedelta | float | None = None) -> None:
        super().__init__(reason or "the handler asked for a retry")
        if after is not None and not isinstance(after, timedelta):
            after = timedelta(seconds=after)
        if after is not None and after < timedelta(0):
            raise ConfigurationError(f"Retry(after={after!r}): a delay cannot be negative")
        self.after = None if after is None else min(after, LONGEST)


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
        if self.attempts < 1:
            raise ConfigurationError(f"RetryPolicy(attempts={self.attempts}): at least 1 attempt is needed")
        if self.first < timedelta(0) or self.cap < timedelta(0):
            raise ConfigurationError("RetryPolicy: first and cap cannot be negative")
        if not 1 <= self.factor < math.inf:
            raise ConfigurationError(f"RetryPolicy(factor={self.factor}): must be a number from 1")
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"RetryPolicy(jitter={self.jitter}): must be between 0 and 1")

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


class Again(NamedTuple):
    """Try again after this delay."""

    delay: timedelta


class Dead(NamedTuple):
    """Never try again by itself; a person decides."""

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
    if isinstance(error, _PERMANENT) and not isinstance(error, TransactionAborted):
        return Dead(text_of(error) or type(error).__name__)
    if attempt >= policy.attempts:
        return Dead(f"failed {attempt} times, which is its budget")
    if policy.max_age is not None and age >= policy.max_age:
        old, limit = span(age.total_seconds()), span(policy.max_age.total_seconds())
        return Dead(f"still failing at the age of {old}, beyond its maximum age of {limit}")
    if isinstance(error, Retry) and error.after is not None:
        return Again(error.after)
    return Again(policy.delay(attempt, chance=chance))
