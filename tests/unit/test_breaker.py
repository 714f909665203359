"""A circuit pauses a handler after failures in a row, and lets it try again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onceward.breaker import Breaker, Circuit
from onceward.errors import ConfigurationError
from tests.unit.builders import Clock


def pausing(one: Breaker) -> bool:
    """As `is_open`, asked anew each time."""
    return one.is_open


@pytest.mark.parametrize("changes", [{"failures": 0}, {"pause": timedelta(0)}, {"pause": timedelta(seconds=-1)}])
def test_a_circuit_that_makes_no_sense_is_refused(changes: dict[str, int]) -> None:
    """At least one failure, and some pause."""
    with pytest.raises(ConfigurationError, match="Circuit"):
        Circuit(**changes)  # type: ignore[arg-type] # each kind in turn


def test_it_opens_after_failures_in_a_row() -> None:
    """Not before, and a success starts the count anew."""
    time = Clock()
    one = Breaker(Circuit(3, timedelta(seconds=10)), clock=time)
    for _ in range(2):
        one.failed()
    one.succeeded()
    for _ in range(2):
        one.failed()
        assert not pausing(one)
    one.failed()
    assert pausing(one)


def test_it_closes_after_its_pause_and_opens_again_at_the_next_failure() -> None:
    """One try is enough to know that the other side is still broken; one success, that it is not."""
    time = Clock()
    one = Breaker(Circuit(2, timedelta(seconds=10)), clock=time)
    one.failed()
    one.failed()
    time.now += 9.9
    assert pausing(one)
    time.now += 0.1
    assert not pausing(one)
    one.failed()
    assert pausing(one)
    time.now += 10
    one.succeeded()
    one.failed()
    assert not pausing(one)
