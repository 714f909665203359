"""Keys that another worker holds are left out for longer each time, and for no moment longer than said."""

from __future__ import annotations

import pytest

from onceward.steps.lot import HeldKeys


def held(*times: float) -> HeldKeys:
    """A key that was found held at these times."""
    keys = HeldKeys()
    for now in times:
        keys.add([7], now)
    return keys


def test_a_key_is_left_out_until_its_pause_ends() -> None:
    keys = held(100.0)
    assert keys.at(100.0) == [7]
    assert keys.wait(100.0) == pytest.approx(0.02)
    assert keys.at(100.0 + 0.019) == [7]
    until = 100.0 + keys.wait(100.0)
    assert keys.at(until) == []
    assert keys.wait(until) == float("inf")


def test_the_pause_is_twice_as_long_each_time_up_to_a_second() -> None:
    waits = [held(*[100.0] * times).wait(100.0) for times in range(1, 9)]
    assert waits == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0])


def test_a_key_that_is_looked_at_for_as_long_as_it_was_left_out_begins_anew() -> None:
    """As long: its pause is over, and it was not found held again in one more."""
    keys = HeldKeys()
    for now in (0.0, 0.0, 0.0, 0.0, 0.0, 0.0):
        keys.add([7], now)
    keys.add([7], 0.0)  # a pause of one second, which ends at 1
    keys.at(1.5)
    keys.add([7], 1.5)
    assert keys.wait(1.5) == 1.0
    keys.at(3.5)  # at this very moment it is forgotten
    keys.add([7], 3.5)
    assert keys.wait(3.5) == pytest.approx(0.02)


def test_all_are_forgotten_at_once() -> None:
    keys = held(100.0)
    keys.forget()
    assert keys.at(100.0) == []
    assert keys.wait(100.0) == float("inf")
