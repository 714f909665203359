"""A step meets at each `yield` what its session answered or raised, in both worlds alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from onceward.flow import COMMIT, ROLLBACK, Begin, Flow, Outcome, Query, run_async, run_sync

T = TypeVar("T")
Run = Callable[[Flow[Any], Callable[[Any], Any]], Any]

ONE, TWO = Query("one"), Query("two")


def in_a_loop(flow: Flow[T], perform: Callable[[Any], Any]) -> T:
    """`run_async` with a performer that lets others run first."""

    async def awaited(request: Any) -> Any:
        await asyncio.sleep(0)
        return perform(request)

    return asyncio.run(run_async(flow, awaited))


@pytest.fixture(params=[run_sync, in_a_loop], ids=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """Each way to run a step."""
    way: Run = request.param
    return way


class Boom(Exception):
    """Something a session raises."""


def test_answers_arrive_at_the_yield_that_asked(run: Run) -> None:
    """Requests reach the session in order, and each answer comes back to its own."""
    asked = []

    def step() -> Flow[list[Any]]:
        first = yield ONE
        second = yield TWO
        return [first, second]

    def perform(request: Any) -> Any:
        asked.append(request)
        return [(request.name,)]

    assert run(step(), perform) == [[("one",)], [("two",)]]
    assert asked == [ONE, TWO]


def test_a_tuple_travels_together(run: Run) -> None:
    """Several requests are handed over as one, and the answer is theirs together."""
    begin = Begin(1, 1, 1)

    def step() -> Flow[Any]:
        answer = yield (begin, ONE, COMMIT)
        return answer

    assert run(step(), lambda request: tuple(map(type, request))) == (Begin, Query, type(COMMIT))


def test_an_exception_is_raised_at_the_yield_that_asked(run: Run) -> None:
    """A step can catch what its request caused, and go on."""
    asked = []

    def step() -> Flow[str]:
        try:
            yield ONE
        except Boom as error:
            yield ROLLBACK
            return f"undone after {error}"
        return "never"

    def perform(request: Any) -> None:
        asked.append(request)
        if request is ONE:
            raise Boom("a bang")

    assert run(step(), perform) == "undone after a bang"
    assert asked == [ONE, ROLLBACK]


def test_a_step_may_end_instead_of_asking_again(run: Run) -> None:
    """The value of a step that returns from its `except` is returned."""

    def step() -> Flow[int]:
        try:
            yield ONE
        except Boom:
            return 7
        return 0

    def perform(_: Any) -> None:
        raise Boom

    assert run(step(), perform) == 7


@pytest.mark.parametrize("error", [Boom("x"), KeyboardInterrupt(), SystemExit(2), asyncio.CancelledError()])
def test_what_a_step_does_not_catch_comes_out(run: Run, error: BaseException) -> None:
    """The very same exception leaves the runner, whatever kind it is, and `finally` has run."""
    cleaned = []

    def step() -> Flow[None]:
        try:
            yield ONE
        finally:
            cleaned.append(True)

    def perform(_: Any) -> None:
        raise error

    if run is not run_sync and isinstance(error, KeyboardInterrupt | SystemExit):
        # asyncio lets these two out of the loop past the awaiting code; drive the coroutine by hand instead.
        async def awaited(request: Any) -> None:
            perform(request)

        with pytest.raises(type(error)) as caught:
            run_async(step(), awaited).send(None)
    else:
        with pytest.raises(type(error)) as caught:
            run(step(), perform)
    assert caught.value is error or isinstance(error, asyncio.CancelledError)
    assert cleaned == [True]


def test_a_step_may_raise_something_else(run: Run) -> None:
    """What a step raises itself comes out, with the first error as its cause."""

    def step() -> Flow[None]:
        try:
            yield ONE
        except Boom as error:
            raise LookupError("translated") from error

    def perform(_: Any) -> None:
        raise Boom

    with pytest.raises(LookupError, match="translated") as caught:
        run(step(), perform)
    assert isinstance(caught.value.__cause__, Boom)


def test_a_session_cannot_end_a_step_by_stopiteration(run: Run) -> None:
    """A `StopIteration` from a session is an error, never taken for the end of the step."""

    def step() -> Flow[str]:
        yield ONE
        return "the end"

    def perform(_: Any) -> None:
        raise StopIteration("not the end")

    with pytest.raises(RuntimeError):
        run(step(), perform)


def test_a_step_without_requests_just_returns(run: Run) -> None:
    """Nothing to ask, nothing performed."""

    def step() -> Flow[int]:
        yield from ()
        return 3

    def perform(_: Any) -> None:
        raise AssertionError("nothing was asked")

    assert run(step(), perform) == 3


def test_a_step_that_fails_at_once_fails(run: Run) -> None:
    """An error before the first request comes out as it is."""

    def step() -> Flow[int]:
        number = int("not a number")
        yield ONE
        return number

    with pytest.raises(ValueError, match="not a number"):
        run(step(), lambda _: None)


def test_steps_compose(run: Run) -> None:
    """`yield from` passes requests, answers and exceptions through."""

    def inner() -> Flow[Any]:
        try:
            answer = yield ONE
        except Boom:
            answer = yield TWO
        return answer

    def outer() -> Flow[Any]:
        first = yield from inner()
        second = yield from inner()
        return first, second

    answers: list[Any] = ["a", Boom(), "b"]

    def perform(_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert run(outer(), perform) == ("a", "b")


async def test_a_cancellation_is_raised_inside_the_step() -> None:
    """A step may roll back when its task is cancelled; the cancellation then goes on."""
    asked = []

    def step() -> Flow[None]:
        try:
            yield ONE
        except asyncio.CancelledError:
            yield ROLLBACK
            raise

    async def perform(request: Any) -> None:
        asked.append(request)
        if request is ONE:
            await asyncio.sleep(60)

    task = asyncio.create_task(run_async(step(), perform))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asked == [ONE, ROLLBACK]


def test_an_outcome_by_default_is_a_success() -> None:
    """Nothing returned, nothing raised, nobody at fault."""
    one = Outcome()
    assert (one.value, one.error, one.infrastructure) == (None, None, False)
