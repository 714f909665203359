"""External calls (`message.once`): the intent is recorded before the call, the result after it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from onceward.flow import Flow


class Intend(NamedTuple):
    """A call is about to be made, for the first time as far as its caller knows."""

    key: str
    """The idempotency key of the call: the same for every attempt at it."""
    seq: int
    name: str
    worker: int


class Earlier(NamedTuple):
    """What an earlier attempt at a call has left."""

    done: bool
    """Its result is recorded; else its outcome is unknown."""
    result: str | None
    age: float
    """Seconds since its intent was recorded."""


class EffectMoves(Protocol):
    """The record of external calls. Each move is a transaction of its own, beside the handler's."""

    def intend(self, intent: Intend, /) -> Flow[Earlier | None]:
        """Record the intent; returns what an earlier attempt has left instead, if there is something."""

    def record_effect(self, key: str, result: str, /) -> Flow[None]:
        """The call was made: record its result."""

    def forget_intent(self, key: str, /) -> Flow[None]:
        """The call was not made: the intent is removed."""
