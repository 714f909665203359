"""What happens after a failure is a pure decision: exact budget, bounded delays, no overflow, jitter either way."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from onceward.errors import (
    ClaimLost,
    ConfigurationError,
    ContractViolation,
    HandlerNotFound,
    HandlerTimeout,
    InvalidMessage,
    OutcomeUnknown,
    StoreConflict,
    StoreUnavailable,
    TransactionAborted,
)
from onceward.retry import Again, Dead, Reject, Retry, RetryPolicy, VersionGap, decide

ATTEMPTS = st.integers(1, 100) | st.sampled_from([64, 65, 66, 1_000, 10**6, 10**9])
CHANCES = st.floats(0, 1, exclude_max=True)
SPANS = st.timedeltas(timedelta(0), timedelta(days=365))
POLICIES = st.builds(
    RetryPolicy,
    attempts=st.integers(1, 20),
    first=SPANS,
    factor=st.floats(1, 10) | st.sampled_from([1.0, 1.01, 2.0, 4.0, 1e3, 1e6, 1e300]),
    cap=SPANS,
    max_age=SPANS | st.none(),
    jitter=st.floats(0, 1),
)
MICROSECOND = timedelta(microseconds=1)


@given(POLICIES, ATTEMPTS, CHANCES)
@example(RetryPolicy(factor=1e6), 1000, 0.5)
@example(RetryPolicy(factor=1e300), 3, 0.5)
@example(RetryPolicy(first=timedelta(0), factor=1e300), 10**9, 0.5)
def test_a_delay_is_between_nothing_and_the_cap(policy: RetryPolicy, attempt: int, chance: float) -> None:
    """Whatever the policy and however late the attempt: never negative, above the cap by its jitter, no overflow."""
    delay = policy.delay(attempt, chance=lambda: chance)
    assert timedelta(0) <= delay <= policy.cap * (1 + policy.jitter) + MICROSECOND


@given(POLICIES, ATTEMPTS, ATTEMPTS)
def test_the_longest_delay_only_grows(policy: RetryPolicy, one: int, other: int) -> None:
    """The upper end of the delays never shrinks from one attempt to a later one."""
    early, late = sorted((one, other))
    assert policy.delay(early, chance=lambda: 1.0) <= policy.delay(late, chance=lambda: 1.0)


@given(st.floats(1, 3), st.integers(1, 300))
@example(1.1, 100)
@example(1.05, 150)
def test_the_longest_delay_is_what_the_policy_says(factor: float, attempt: int) -> None:
    """`first` times `factor` for each attempt, up to the cap, for slow factors too."""
    policy = RetryPolicy(first=timedelta(seconds=1), factor=factor, cap=timedelta(hours=1), jitter=0)
    expected = min(factor ** (attempt - 1), 3600.0)
    assert policy.delay(attempt, chance=lambda: 1.0).total_seconds() == pytest.approx(expected, abs=1e-5)


@given(POLICIES, ATTEMPTS, CHANCES)
def test_jitter_takes_only_its_part(policy: RetryPolicy, attempt: int, chance: float) -> None:
    """A delay is shorter or longer by at most the jittered part of it."""
    middle = policy.delay(attempt, chance=lambda: 0.5).total_seconds()
    delay = policy.delay(attempt, chance=lambda: chance).total_seconds()
    assert middle * (1 - policy.jitter) - 1e-5 <= delay <= middle * (1 + policy.jitter) + 1e-5


def test_jitter_spreads_a_delay_either_way() -> None:
    """By default 20 % shorter or longer, evenly: what failed together does not come back together, and not at once."""
    policy, chance = RetryPolicy(), random.Random(7).random
    delays = [policy.delay(5, chance=chance) / timedelta(seconds=160) for _ in range(4000)]
    for tenth in range(10):
        low = 0.8 + tenth * 0.04
        share = sum(low <= delay < low + 0.04 for delay in delays) / len(delays)
        assert 0.07 < share < 0.13
    assert 0.8 <= min(delays) < max(delays) <= 1.2
    assert RetryPolicy(jitter=0).delay(5, chance=chance) == timedelta(seconds=160)
    assert policy.delay(5) != policy.delay(5)


def test_delays_by_example() -> None:
    """Ten seconds, doubled each time, never more than six hours; and the textbook schedule."""
    policy = RetryPolicy(jitter=0)
    seconds = [policy.delay(attempt).total_seconds() for attempt in (1, 2, 3, 12, 13, 10**9)]
    assert seconds == [10, 20, 40, 20_480, 21_600, 21_600]
    classic = replace(RetryPolicy.classic(), jitter=0)
    assert [classic.delay(attempt).total_seconds() for attempt in (1, 2, 3, 9)] == [30, 120, 480, 3600]
    assert classic.attempts == 4


@pytest.mark.parametrize("chance", [0.0, 0.999])
def test_the_default_lasts_about_two_days(chance: float) -> None:
    """D46: whatever the jitter, an error that lasts for a night or a day off is survived, and no age cuts it short."""
    policy, age, attempt = RetryPolicy(), timedelta(0), 1
    while isinstance(decision := decide(policy, ValueError(), attempt=attempt, age=age, chance=lambda: chance), Again):
        age, attempt = age + decision.delay, attempt + 1
    assert attempt == 20
    assert timedelta(hours=40) < age < timedelta(hours=66)


@pytest.mark.parametrize(
    "changes",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"first": timedelta(seconds=-1)},
        {"cap": timedelta(seconds=-1)},
        {"factor": 0.99},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": float("nan")},
        {"factor": float("nan")},
        {"factor": float("inf")},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    """Nonsense is refused where it is written, not at the first failure."""
    with pytest.raises(ConfigurationError, match="RetryPolicy"):
        RetryPolicy(**changes)


@given(st.timedeltas(timedelta(0)))
@example(timedelta.max)
def test_a_due_time_is_a_date(after: timedelta) -> None:
    """However long a handler or a policy wants to wait, the due time can be stored and shown."""
    try:
        policy = RetryPolicy(first=after, cap=after, max_age=timedelta.max, jitter=0)
        error = Retry(after=after)
    except ConfigurationError:
        return
    for cause in (error, ValueError()):
        decision = decide(policy, cause, attempt=1, age=timedelta(0))
        assert isinstance(decision, Again)
        assert datetime.now(UTC) + decision.delay > datetime(2020, 1, 1, tzinfo=UTC)


PERMANENT = [
    Reject("never"),
    InvalidMessage("bad"),
    HandlerNotFound("nobody"),
    ContractViolation("committed"),
    OutcomeUnknown("charge"),
    VersionGap("number 3 did not come"),
]
TEMPORARY = [
    ValueError("x"),
    Retry(),
    TransactionAborted("swallowed"),
    HandlerTimeout("slow"),
    StoreUnavailable("away"),
    StoreConflict("deadlock"),
    ClaimLost("gone"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
]


@given(st.integers(1, 50), st.integers(1, 60), st.sampled_from(TEMPORARY))
def test_the_budget_is_exact(budget: int, attempt: int, error: BaseException) -> None:
    """The attempt before the last is retried, the last one is not."""
    decision = decide(RetryPolicy(attempts=budget), error, attempt=attempt, age=timedelta(0))
    assert isinstance(decision, Dead) == (attempt >= budget)
    if isinstance(decision, Dead):
        assert decision.reason == f"failed {attempt} times, which is its budget"


@pytest.mark.parametrize("error", PERMANENT, ids=lambda error: type(error).__name__)
def test_a_permanent_error_is_dead_at_once(error: Exception) -> None:
    """What can never succeed is not tried again; the reason is the error's own text."""
    assert decide(RetryPolicy(attempts=99), error, attempt=1, age=timedelta(0)) == Dead(str(error))


@pytest.mark.parametrize("error", TEMPORARY, ids=lambda error: type(error).__name__)
def test_any_other_error_is_tried_again(error: BaseException) -> None:
    """Everything else may pass: also a swallowed database error, whose transaction could only be rolled back."""
    assert isinstance(decide(RetryPolicy(), error, attempt=1, age=timedelta(0)), Again)


def test_a_silent_error_is_named() -> None:
    """A death without a text gives the kind of the error as its reason."""
    assert decide(RetryPolicy(), InvalidMessage(), attempt=1, age=timedelta(0)) == Dead("InvalidMessage")
    assert decide(RetryPolicy(), Reject(""), attempt=1, age=timedelta(0)) == Dead("Reject")


@given(st.floats(0, 1e6), st.integers(1, 9))
def test_a_handler_may_choose_the_delay(after: float, attempt: int) -> None:
    """`Retry(after=...)` is taken as it is: no jitter, no cap, but it counts."""
    wanted = timedelta(seconds=after)
    for error in (Retry(after=after), Retry("busy", after=wanted)):
        assert decide(RetryPolicy(), error, attempt=attempt, age=timedelta(0)) == Again(wanted)
        assert isinstance(decide(RetryPolicy(attempts=attempt), error, attempt=attempt, age=timedelta(0)), Dead)


def test_retry_says_what_it_is() -> None:
    """A `Retry` without a reason still reads well, and a negative delay is refused."""
    assert str(Retry()) == "the handler asked for a retry"
    assert str(Retry("rate limit", after=2.5)) == "rate limit"
    assert Retry("rate limit", after=2.5).after == timedelta(seconds=2.5)
    assert Retry().after is None
    for after in (-1, timedelta(seconds=-1)):
        with pytest.raises(ConfigurationError, match="a number of seconds from 0"):
            Retry(after=after)


def test_a_retry_without_a_delay_follows_the_policy() -> None:
    """`Retry()` waits as long as any failure does."""
    policy = RetryPolicy(first=timedelta(seconds=3), jitter=0)
    assert decide(policy, Retry(), attempt=1, age=timedelta(0), chance=lambda: 1.0) == Again(timedelta(seconds=3))
    assert decide(policy, OSError(), attempt=1, age=timedelta(0), chance=lambda: 1.0) == Again(timedelta(seconds=3))


@given(SPANS, SPANS, st.sampled_from(TEMPORARY))
def test_too_old_is_dead(age: timedelta, limit: timedelta, error: BaseException) -> None:
    """A message that fails at or beyond its maximum age is dead, whatever its budget."""
    assume(limit > timedelta(0))
    decision = decide(RetryPolicy(max_age=limit), error, attempt=1, age=age)
    assert isinstance(decision, Dead) == (age >= limit)
    if isinstance(decision, Dead):
        assert "maximum age" in decision.reason
