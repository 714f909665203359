"""Behaviours of the shipped suite, and what only a store with SQL lets a handler do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onceward import Message
from onceward.testing.store_suite.behaviour import (
    Behaviour,
    Do,
    Step,
    Steps,
    Until,
    Write,
    drive,
    drive_async,
    effect,
    raising,
    returning,
    stumbling,
    wrote,
)

__all__ = [
    "Behaviour",
    "Do",
    "Inside",
    "Sql",
    "Step",
    "Steps",
    "Until",
    "Write",
    "drive",
    "drive_async",
    "effect",
    "raising",
    "returning",
    "statement",
    "stumbling",
    "taking",
    "wrote",
]


@dataclass(frozen=True, slots=True)
class Sql:
    """Run a statement through the handler's transaction; the answer is its rows. `%s` marks a value on every store."""

    text: str
    params: tuple[Any, ...] = ()

    def take(self, tx: Any, place: Any) -> Any:
        """In a `def` handler."""
        cursor = tx.execute(*statement(self.text, self.params, place.mark))
        return cursor.fetchall() if cursor.description else []

    async def take_async(self, tx: Any, place: Any) -> Any:
        """In an `async def` handler."""
        cursor = await tx.execute(*statement(self.text, self.params, place.mark))
        return await cursor.fetchall() if cursor.description else []


@dataclass(frozen=True, slots=True)
class Inside:
    """Take steps inside a `with` (or `async with`) block."""

    scope: Callable[[Any], Any]
    steps: tuple[Step, ...] = ()

    def take(self, tx: Any, place: Any) -> Any:
        """In a `def` handler."""
        with self.scope(tx):
            return [inner.take(tx, place) for inner in self.steps]

    async def take_async(self, tx: Any, place: Any) -> Any:
        """In an `async def` handler."""
        async with self.scope(tx):
            return [await inner.take_async(tx, place) for inner in self.steps]


def taking(*steps: Step, then: BaseException | None = None) -> Behaviour:
    """These steps, then one effect; at last an error, if one is given."""

    def behaviour(message: Message) -> Steps:
        for step in steps:  # noqa: UP028 - a tuple takes no answers
            yield step
        yield wrote(message)
        if then:
            raise then

    return behaviour


def statement(text: str, params: tuple[Any, ...], mark: str) -> tuple[Any, ...]:
    """A statement as the driver takes it. Without values none are passed: drivers treat an empty list differently."""
    return (text.replace("%s", mark), params) if params else (text,)
