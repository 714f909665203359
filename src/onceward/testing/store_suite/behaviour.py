"""What a handler does, written once for `def` and `async def`.

A behaviour is a generator over a message: it yields the steps it takes on its transaction and gets their answers
(or their errors) back, so a test says what happens to the transaction and not how it is awaited. Returning and
raising are the behaviour's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

from onceward.message import Message
from onceward.testing.store_suite.place import Note, Place
from onceward.testing.waiting import wait_until, wait_until_async


class Step(Protocol):
    """Something that a handler does with its transaction."""

    def take(self, tx: Any, place: Place) -> Any:
        """Do it in a `def` handler."""

    async def take_async(self, tx: Any, place: Place) -> Any:
        """Do it in an `async def` handler."""


Steps = Generator[Step, Any, Any]
Behaviour = Callable[[Message], Steps]


@dataclass(frozen=True, slots=True)
class Write:
    """Have an effect."""

    note: Note

    def take(self, tx: Any, place: Place) -> Any:
        return place.write(tx, self.note)

    async def take_async(self, tx: Any, place: Place) -> Any:
        return await _awaited(place.write(tx, self.note))


@dataclass(frozen=True, slots=True)
class Do:
    """Do something with the transaction object itself."""

    action: Callable[[Any], Any]

    def take(self, tx: Any, _place: Place) -> Any:
        return self.action(tx)

    async def take_async(self, tx: Any, _place: Place) -> Any:
        return await _awaited(self.action(tx))


@dataclass(frozen=True, slots=True)
class Until:
    """Wait for a condition, without touching the transaction."""

    condition: Callable[[], Any]

    def take(self, _tx: Any, _place: Place) -> Any:
        return wait_until(self.condition)

    async def take_async(self, _tx: Any, _place: Place) -> Any:
        async def holds() -> Any:
            return self.condition()

        return await wait_until_async(holds)


def wrote(message: Message, note: str = "") -> Write:
    """The step that writes a message's effect."""
    return Write((message.id, note or message.consumer))


def effect(message: Message) -> Steps:
    """The ordinary behaviour: one effect per message."""
    yield wrote(message)


def returning(value: Any) -> Behaviour:
    """One effect, and a result."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        return value

    return behaviour


def raising(error: Callable[[], BaseException], attempts: int | None = None) -> Behaviour:
    """One effect, then an error: in each of the message's first `attempts`, or always."""

    def behaviour(message: Message) -> Steps:
        yield wrote(message)
        if attempts is None or message.attempt <= attempts:
            raise error()

    return behaviour


def stumbling(error: Callable[[], BaseException], runs: int) -> Behaviour:
    """One effect, then an error on each of the message's first `runs`: for errors that are not charged as attempts."""
    seen: dict[str, int] = {}

    def behaviour(message: Message) -> Steps:
        seen[message.id] = seen.get(message.id, 0) + 1
        yield wrote(message)
        if seen[message.id] <= runs:
            raise error()

    return behaviour


def drive(steps: Steps, take: Callable[[Step], Any]) -> Any:
    """Take the steps with blocking calls."""
    try:
        step = next(steps)
        while True:
            try:
                answer = take(step)
            except Exception as error:  # noqa: BLE001 - the behaviour decides what becomes of it
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        return stop.value


async def drive_async(steps: Steps, take: Callable[[Step], Awaitable[Any]]) -> Any:
    """Take the steps with awaited calls."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await take(step)
            except Exception as error:  # noqa: BLE001 - the behaviour decides what becomes of it
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        return stop.value


async def _awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer
