"""What simulated handlers ask of the scheduler, beside the requests that steps yield."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from onceward.message import Message

Script = Generator[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """Let time pass inside a handler."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Write:
    """Write an effect through the handler's transaction."""

    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Open:
    """A caller begins a transaction of its own, with a statement of its own."""

    isolation: str


@dataclass(frozen=True, slots=True)
class Close:
    """A caller ends its transaction."""

    commits: bool


@dataclass(frozen=True, slots=True)
class Beside:
    """What a call (`Do`) may ask for: a step on a connection of its own, as `transact.perform` runs it."""

    step: Callable[[], Generator[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Die:
    """Kill the process, as a segmentation fault would."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What `message.once` returns inside the simulation: an external call under the record of its intent."""

    message: Message
    name: str
    call: Callable[[], Any]
    idempotent: bool


class Blocked(Exception):
    """The request must wait for a lock; ask again when a transaction has ended."""
