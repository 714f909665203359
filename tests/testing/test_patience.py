"""A proof waits for a busy server that has not noticed yet that a connection was cut, and keeps its locks."""

from __future__ import annotations

import pytest

from onceward.testing import harness
from onceward.testing.harness import Harness


class Process:
    """Finishes so many messages with each turn."""

    def __init__(self, turns: list[int]) -> None:
        self.turns = iter(turns)

    def work(self) -> int:
        return next(self.turns)


@pytest.fixture
def proof(monkeypatch: pytest.MonkeyPatch) -> Harness:
    """One whose database is not asked."""
    monkeypatch.setattr(Harness, "hurry", lambda _: None)
    return Harness.__new__(Harness)


def left(monkeypatch: pytest.MonkeyPatch, *turns: int) -> Process:
    """What its processes finish."""
    process = Process([*turns])
    monkeypatch.setattr(Harness, "process", lambda _: process)
    return process


def test_what_is_due_and_cannot_be_claimed_is_tried_again(proof: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    process = left(monkeypatch, 0, 0, 1, 9)
    proof.work(lambda: True)
    assert next(process.turns) == 9, "it went on until a message was finished, and no further"


def test_what_is_not_due_is_not_waited_for(proof: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    process = left(monkeypatch, 0, 9)
    proof.work(lambda: False)
    assert next(process.turns) == 9


def test_it_does_not_wait_for_ever(proof: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "_PATIENCE", 0.0)
    process = left(monkeypatch, 0, 9)
    proof.work(lambda: True)
    assert next(process.turns) == 9
