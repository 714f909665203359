"""A handler whose effects are not in its transaction is noticed once, and only where it may not know."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from onceward.flow import Outcome
from onceward.registry import APART, Handler
from onceward.steps.use import record_use
from tests.unit.builders import context, handler, lane, message, relay

APART_FROM_TX = Outcome(touched=False)


def said(
    caplog: pytest.LogCaptureFixture, by: Handler, outcome: Outcome, *, sent: bool = False, called_once: bool = False
) -> list[str]:
    """What is logged while it finishes so many messages that it can be told, and some more."""
    here = lane(context(by))
    here.called_once = called_once
    caplog.clear()
    for seq in range(APART + 3):
        record_use(here, by, outcome, [message(seq=seq)], sent=sent)
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("guarantee", [None, "exactly-once"])
def test_it_is_said_once_when_enough_messages_are_finished(caplog: pytest.LogCaptureFixture, guarantee: Any) -> None:
    by = handler(guarantee=guarantee)
    (line,) = said(caplog, by, APART_FROM_TX)
    assert f"{APART} messages of {by.type}" in line
    assert by.use.is_apart is True


def test_one_that_declares_it_knows(caplog: pytest.LogCaptureFixture) -> None:
    by = handler(guarantee="at-least-once")
    assert said(caplog, by, APART_FROM_TX) == []
    assert by.use.is_apart is True


@pytest.mark.parametrize(
    ("outcome", "more"),
    [(Outcome(touched=True), {}), (APART_FROM_TX, {"sent": True}), (APART_FROM_TX, {"called_once": True})],
)
def test_a_statement_a_send_or_a_call_is_enough(
    caplog: pytest.LogCaptureFixture, outcome: Outcome, more: dict[str, bool]
) -> None:
    by = handler()
    assert said(caplog, by, outcome, **more) == []
    assert by.use.is_apart is False
    assert said(caplog, by, APART_FROM_TX) == []
    assert by.use.is_apart is False


@pytest.mark.parametrize("outcome", [Outcome(error=ValueError()), Outcome(error=ValueError(), touched=True)])
def test_what_failed_tells_nothing(caplog: pytest.LogCaptureFixture, outcome: Outcome) -> None:
    by = handler()
    assert said(caplog, by, outcome) == []
    assert by.use.is_apart is None


def test_the_relay_has_its_effects_elsewhere_by_nature(caplog: pytest.LogCaptureFixture) -> None:
    by = relay()
    assert said(caplog, by, APART_FROM_TX) == []
    assert by.use.is_apart is None
