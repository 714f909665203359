"""Polled APIs: one process at a time asks, and each response is stored together with the cursor after it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from onceward.flow import Flow


class TakePoll(NamedTuple):
    """Take the turn at an API."""

    source: int
    token: str
    patience: float
    """After so many seconds without a response another process may take it."""
    early: bool
    """Take it before it is due, if it is free."""


class PollState(NamedTuple):
    """Where the stored responses of an API end."""

    cursor: str | None
    number: int
    """How many were ever stored."""
    hash: bytes | None
    """Of the last question and its answer."""
    failures: int


class KeepPoll(NamedTuple):
    """Move the cursor, for the process that has the turn."""

    source: int
    token: str
    number: int
    """As the last response was counted,"""
    next: int
    """and as this one is."""
    cursor: str
    hash: bytes
    patience: float


class EndPoll(NamedTuple):
    """Give the turn back."""

    source: int
    token: str
    wait: float
    """In how many seconds the next one is due."""
    failures: int
    error: str | None


class PollMoves(Protocol):
    """What a process does that polls."""

    def take_poll(self, take: TakePoll, /) -> Flow[PollState | float]:
        """Take the turn; returns for how many seconds it is another's, or not due, where it cannot be had."""

    def keep_poll(self, keep: KeepPoll, receive: Flow[Any] | None, /) -> Flow[bool]:
        """Move the cursor and, in the same transaction, receive the response; False where the turn is another's now.

        `receive` is the step that receives it: the moves it makes belong to this transaction.
        """

    def end_poll(self, end: EndPoll, /) -> Flow[None]:
        """Give the turn back."""
