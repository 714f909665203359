"""A rate limit never lets more go than its rate allows, and everything in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import ConfigurationError
from onceward.domain.rate_limit import RateLimit


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


steps = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50), st.integers(0, 50)), max_size=30)


@given(rate=st.floats(1 / 60, 100), steps=steps)
def test_no_more_go_than_a_saved_up_second_and_the_time_since(rate: float, steps: list[tuple[float, int, int]]) -> None:
    clock = Clock()
    rate_limit, gone = RateLimit(rate, clock=clock), 0
    for rest, wanted, unused in steps:
        clock.now += rest
        granted = rate_limit.take(wanted)
        assert granted <= wanted
        back = min(unused, granted)
        rate_limit.give_back(back)
        gone += granted - back
        assert gone <= max(1, rate) + rate * clock.now + 1e-6


@given(rate=st.floats(1 / 60, 100))
def test_whoever_waits_as_long_as_it_says_may_go(rate: float) -> None:
    clock = Clock()
    rate_limit = RateLimit(rate, clock=clock)
    while rate_limit.take():
        pass
    assert rate_limit.take() == 0
    clock.now += rate_limit.seconds_left + 1e-6
    assert rate_limit.take() == 1


@pytest.mark.parametrize("rate", [0, -1, 0.001, float("nan")])
def test_a_rate_that_is_none(rate: float) -> None:
    with pytest.raises(ConfigurationError, match="one a minute at least"):
        RateLimit(rate)
