"""Whatever a handler raises is its outcome; what is not the handler's own passes through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import thread_time
from typing import Any, cast

import pytest

from onceward.domain.parameters import Parameter
from onceward.errors import HandlerTimeout
from onceward.flow import Call, Outcome
from onceward.message import Message
from onceward.stores.calls import awaited_outcome, outcome
from tests.unit.builders import handler, message

TX = object()


def call(function: Callable[..., Any], *, timeout: float = 60) -> Call:
    return Call(handler(function=function, timeout=timeout), message())


def is_reset(error: BaseException) -> bool:
    return isinstance(error, ConnectionResetError)


def run(function: Callable[..., Any]) -> Outcome:
    return outcome(call(function), TX, is_reset)


async def run_async(function: Callable[..., Any], *, timeout: float = 60) -> Outcome:  # noqa: ASYNC109 - the handler's
    return await awaited_outcome(call(function, timeout=timeout), TX, is_reset)


ERRORS = [ValueError("x"), SystemExit(3), GeneratorExit(), AssertionError(), MemoryError()]


def test_a_handler_gets_its_message_and_its_transaction() -> None:
    """And what it returns is its value."""

    def handle(one: Message, tx: Any) -> Any:
        return one.id, tx

    assert run(handle) == Outcome(value=("e1", TX))


async def test_an_async_handler_gets_them_too() -> None:
    """Awaited."""

    async def handle(one: Message, tx: Any) -> Any:
        await asyncio.sleep(0)
        return one.id, tx

    assert await run_async(handle) == Outcome(value=("e1", TX))


def test_what_is_made_for_a_handler_is_known_to_compute() -> None:
    """Its processor time is measured, which costs some itself: of handlers that get the plain connection it is not."""

    class Provider:
        @contextmanager
        def opened(self, _: Any) -> Iterator[str]:
            until = thread_time() + 0.002
            while thread_time() < until:
                pass
            yield "made"

    def handle(_: Message, made: Any) -> Any:
        return made

    parameter = Parameter(provider=cast("Any", Provider()))
    provided = outcome(Call(replace(handler(function=handle), parameter=parameter), message()), TX, is_reset)
    assert provided.value == "made"
    assert provided.computed >= 0.002
    assert run(handle).computed == 0


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_whatever_it_raises_is_its_outcome(error: BaseException) -> None:
    """Also what is not an `Exception`: a handler that exits must not take the worker with it."""

    def handle(_: Message, __: Any) -> None:
        raise error

    async def handle_async(_: Message, __: Any) -> None:
        raise error

    assert run(handle) == Outcome(error=error)
    assert await run_async(handle_async) == Outcome(error=error)


async def test_a_fault_of_the_database_is_told_apart() -> None:
    """By whoever knows the database."""
    error = ConnectionResetError()

    def handle(_: Message, __: Any) -> None:
        raise error

    async def handle_async(_: Message, __: Any) -> None:
        raise error

    assert run(handle) == Outcome(error=error, infrastructure=True)
    assert await run_async(handle_async) == Outcome(error=error, infrastructure=True)


async def test_an_interrupt_of_the_program_passes_through() -> None:
    """Ctrl-C is not the handler's."""

    def handle(_: Message, __: Any) -> None:
        raise KeyboardInterrupt

    async def handle_async(_: Message, __: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(handle)
    with pytest.raises(KeyboardInterrupt):
        await run_async(handle_async)


async def test_a_handler_that_overruns_is_interrupted() -> None:
    """The error names the limit."""

    async def handle(_: Message, __: Any) -> None:
        await asyncio.sleep(60)

    ended = await run_async(handle, timeout=0.01)
    assert isinstance(ended.error, HandlerTimeout)
    assert "its timeout of 0.01 s" in str(ended.error)


async def test_swallowing_the_interruption_does_not_help() -> None:
    """A handler that overran has failed, also when it catches the cancellation and returns."""

    async def handle(_: Message, __: Any) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "half done"
        return "done"

    assert isinstance((await run_async(handle, timeout=0.01)).error, HandlerTimeout)


async def test_a_timeout_of_its_own_is_an_ordinary_error() -> None:
    """It is not taken for an overrun."""
    error = TimeoutError("the other side")

    async def handle(_: Message, __: Any) -> None:
        raise error

    assert await run_async(handle) == Outcome(error=error)


async def test_a_cancellation_of_its_own_is_an_outcome() -> None:
    """Something inside the handler was cancelled, not the worker."""

    async def handle(_: Message, __: Any) -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        await task

    assert isinstance((await run_async(handle)).error, asyncio.CancelledError)


async def test_a_cancellation_of_the_worker_is_passed_on() -> None:
    """The step must hear of it, to roll back."""

    async def handle(_: Message, __: Any) -> None:
        await asyncio.sleep(60)

    task = asyncio.create_task(run_async(handle))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
