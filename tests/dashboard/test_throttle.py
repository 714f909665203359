"""The throttle by a clock that a test sets: how many wrong secrets are free, how long a lock is, what is remembered."""

from __future__ import annotations

import pytest

from onceward.dashboard import throttle
from onceward.dashboard.throttle import Throttle

HERE, THERE = "192.0.2.1", "192.0.2.2"


class Clock:
    """Seconds that only a test counts."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(throttle, "time", clock)
    return clock


def fail(guarded: Throttle, times: int, address: str = HERE, name: str = "ann") -> None:
    for _ in range(times):
        guarded.failed(address, name)


def test_five_wrong_secrets_are_free_and_the_sixth_locks_for_two_seconds(clock: Clock) -> None:
    guarded = Throttle()
    fail(guarded, 5)
    assert guarded.may_try(HERE, "ann")
    fail(guarded, 1)
    assert not guarded.may_try(HERE, "ann")
    assert guarded.may_try(HERE, "ben")
    assert guarded.may_try(THERE, "ann")
    clock.now += 1.999
    assert not guarded.may_try(HERE, "ann")
    clock.now += 0.001
    assert guarded.may_try(HERE, "ann")


@pytest.mark.parametrize(("failures", "seconds"), [(7, 4.0), (8, 8.0), (13, 256.0), (14, 300.0), (2000, 300.0)])
def test_each_further_one_doubles_the_lock_up_to_five_minutes(clock: Clock, failures: int, seconds: float) -> None:
    guarded = Throttle()
    fail(guarded, failures)
    clock.now += seconds - 0.001
    assert not guarded.may_try(HERE, "ann")
    clock.now += 0.001
    assert guarded.may_try(HERE, "ann")


@pytest.mark.usefixtures("clock")
def test_a_right_secret_makes_all_five_free_again() -> None:
    guarded = Throttle()
    fail(guarded, 6)
    guarded.succeeded(HERE, "ann")
    fail(guarded, 5)
    assert guarded.may_try(HERE, "ann")


def test_sixty_failures_in_a_minute_leave_only_addresses_that_were_right_before(clock: Clock) -> None:
    guarded = Throttle()
    guarded.succeeded(HERE, "ann")
    for number in range(60):
        assert guarded.may_try(f"198.51.100.{number}", "ann")
        fail(guarded, 1, f"198.51.100.{number}")
    assert not guarded.may_try(THERE, "ann")
    assert not guarded.may_try(HERE, "ben")
    assert guarded.may_try(HERE, "ann")
    clock.now += 59.999
    assert not guarded.may_try(THERE, "ann")
    clock.now += 0.001
    assert guarded.may_try(THERE, "ann")


@pytest.mark.usefixtures("clock")
def test_ten_thousand_are_remembered_and_the_oldest_is_forgotten() -> None:
    guarded = Throttle()
    for number in range(10_000):
        fail(guarded, 1, name=f"{number}")
    assert (HERE, "0") in guarded._failures
    fail(guarded, 1, name="one more")
    assert (HERE, "0") not in guarded._failures
    assert (HERE, "1") in guarded._failures


@pytest.mark.usefixtures("clock")
def test_the_address_that_was_right_last_is_forgotten_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "REMEMBERED", 2)
    guarded = Throttle()
    for name in ("ann", "ben", "ann", "cleo"):
        guarded.succeeded(HERE, name)
    fail(guarded, 60, THERE, "dora")
    assert [name for name in ("ann", "ben", "cleo") if guarded.may_try(HERE, name)] == ["ann", "cleo"]
