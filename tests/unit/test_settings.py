"""The defaults fit together, and settings that would lose messages are refused."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from onceward.errors import ConfigurationError
from onceward.settings import Settings


def test_the_defaults_fit_together() -> None:
    """A short wait for a lock ends before its statement, and a group is committed long before a handler overruns."""
    one = Settings()
    assert one.lock_wait < one.statement_limit < one.lease
    assert one.group_time < one.claim_time < one.poll < one.handler_timeout
    assert one.crash_limit == 3
    assert one.lease == timedelta(seconds=15)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lease": timedelta(milliseconds=999)}, "lease"),
        ({"lease": timedelta(0)}, "lease"),
        ({"group": 0}, "group"),
        ({"crash_limit": 0}, "crash_limit"),
        ({"group": -5}, "group"),
    ],
)
def test_settings_that_lose_messages_are_refused(changes: dict[str, Any], reason: str) -> None:
    """The error names the setting."""
    with pytest.raises(ConfigurationError, match=reason):
        Settings(**changes)


def test_the_smallest_settings_are_accepted() -> None:
    """The limits themselves are fine."""
    one = Settings(lease=timedelta(seconds=1), group=1, crash_limit=1)
    assert (one.lease, one.group, one.crash_limit) == (timedelta(seconds=1), 1, 1)


def test_settings_are_frozen_and_named() -> None:
    """They cannot change while lanes run, and each is passed by name."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().group = 1  # type: ignore[misc] # that is the point
    with pytest.raises(TypeError):
        Settings(timedelta(seconds=20))  # type: ignore[call-arg] # that is the point
