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
