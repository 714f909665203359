"""What a handler does, written once for `def` and `async def`.

A behaviour is a generator over a message: it yields the steps it takes on its transaction and gets their answers
(or their errors) back, so a test says what happens to the transaction and not how it is awaited. Returning and
raising are the behaviour's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any

from onceward import Message
from tests.waiting import wait_until, wait_until_async


@dataclass(frozen=True, slots=True)
class Sql:
    """Run a statement through the handler's transaction; the answer is its rows. `%s` marks a value on every store."""

    text: str
    params: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Do:
    """Do something with the transaction object itself."""

    action: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Inside:
    """Take steps inside a `with` (or `async with`) block."""

    scope: Callable[[Any], Any]
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Until:
    """Wait for a condition, without touching the transaction."""

    condition: Callable[[], Any]


Step = Sql | Do | Inside | Until
Steps = Generator[Step, Any, Any]
Behaviour = Callable[[Message], Steps]


def wrote(message: Message, note: str = "") -> Sql:
    """The step that writes a message's effect."""
    return Sql("INSERT INTO effects (message_id, note) VALUES (%s, %s)", (message.id, note or message.consumer))


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


def taking(*steps: Step, then: BaseException | None = None) -> Behaviour:
    """These steps, then one effect; at last an error, if one is given."""

    def behaviour(message: Message) -> Steps:
        for step in steps:  # noqa: UP028 - a tuple takes no answers
            yield step
        yield wrote(message)
        if then:
            raise then

    return behaviour


def drive(steps: Steps, perform: Callable[[Step], Any]) -> Any:
    """Take the steps with blocking calls."""
    try:
        step = next(steps)
        while True:
            try:
                answer = perform(step)
            except Exception as error:  # noqa: BLE001 - the behaviour decides what becomes of it
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        return stop.value


async def drive_async(steps: Steps, perform: Callable[[Step], Awaitable[Any]]) -> Any:
    """Take the steps with awaited calls."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await perform(step)
            except Exception as error:  # noqa: BLE001 - the behaviour decides what becomes of it
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        return stop.value


def perform(tx: Any, step: Step, mark: str) -> Any:
    """Take one step on a sync transaction."""
    match step:
        case Sql(text, params):
            cursor = tx.execute(*statement(text, params, mark))
            return cursor.fetchall() if cursor.description else []
        case Do(action):
            return action(tx)
        case Until(condition):
            return wait_until(condition)
        case Inside(scope, steps):
            with scope(tx):
                return [perform(tx, inner, mark) for inner in steps]


async def perform_async(tx: Any, step: Step, mark: str) -> Any:
    """Take one step on an async transaction."""
    match step:
        case Sql(text, params):
            cursor = await tx.execute(*statement(text, params, mark))
            return await cursor.fetchall() if cursor.description else []
        case Do(action):
            answer = action(tx)
            return await answer if inspect.isawaitable(answer) else answer
        case Until(condition):

            async def holds() -> Any:
                return condition()

            return await wait_until_async(holds)
        case Inside(scope, steps):
            async with scope(tx):
                return [await perform_async(tx, inner, mark) for inner in steps]


def statement(text: str, params: tuple[Any, ...], mark: str) -> tuple[Any, ...]:
    """A statement as the driver takes it. Without values none are passed: drivers treat an empty list differently."""
    return (text.replace("%s", mark), params) if params else (text,)
