"""Middleware: a generator of a program's own with one `yield`, around every attempt to handle a message.

Invariant: middleware can fail an attempt, and never saves one: an error that it swallows counts all the same. Outside
of the transaction it sees how the attempt ended, when that is decided; inside it is a part of the handler's call.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, NamedTuple

from onceward.domain import checks
from onceward.domain.annotations import signature_of
from onceward.errors import ConfigurationError

log = logging.getLogger("onceward")

EXAMPLE = "a generator function with one `yield`: def around(message): ...; yield; ..."
SWALLOWED = "a middleware has swallowed this error; it counts all the same"


class Middleware(NamedTuple):
    """One of them."""

    opened: Callable[..., Any]
    """Makes the context manager that surrounds an attempt."""
    name: str
    inside: bool
    is_async: bool
    takes_tx: bool

    def around(self, message: Any, tx: Any) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:
        """What surrounds an attempt with this message, or these."""
        opened: Any = self.opened(message, tx) if self.takes_tx else self.opened(message)
        return opened  # type: ignore[no-any-return] # one of the two


Layers = tuple[list[Middleware], ...]
"""Those of an inbox, of its routers and of the routers in these, from the outside to the inside."""


def middleware(where: str, function: Any, *, inside: bool) -> Middleware:
    """A function as middleware, or why it is none."""
    checks.flag(where, "inside", inside)
    is_async = inspect.isasyncgenfunction(function)
    if not is_async and not inspect.isgeneratorfunction(function):
        checks.refuse(where, "function", function, EXAMPLE)
    signature = signature_of(function)
    takes = 0 if signature is None else len(signature.parameters)
    if not 1 <= takes <= 1 + inside:
        allowed = "(message) or (message, tx)" if inside else "(message); tx is for those with inside=True"
        raise ConfigurationError(
            f"{where}: {function.__qualname__} has the parameters {signature}; middleware has {allowed}"
        )
    opened: Any = asynccontextmanager(function) if is_async else contextmanager(function)
    return Middleware(opened, function.__qualname__, inside, is_async, takes > 1)


def check_kind(layers: Sequence[Middleware], name: str, *, is_async: bool) -> None:
    """Refuse async middleware around a `def` handler, which cannot await it."""
    wrong = next((one for one in layers if one.is_async), None)
    if wrong is not None and not is_async:
        raise ConfigurationError(
            f"middleware {wrong.name} is async, and {name} is a def handler, which cannot await it. Write the "
            "middleware with def, which surrounds both kinds, or give it to a router of async def handlers alone"
        )


def called(layers: Sequence[Middleware], call: Callable[[Any, Any], Any], message: Any, tx: Any) -> Any:
    """Call a `def` handler inside of these."""
    stack: ExitStack[bool] = ExitStack()
    with stack:
        try:
            for one in layers:
                stack.enter_context(one.around(message, tx))  # type: ignore[arg-type] # none of them is async
            return call(message, tx)
        except BaseException as error:
            counts = error
            raise
    counts.add_note(SWALLOWED)
    raise counts


async def acalled(layers: Sequence[Middleware], call: Callable[[Any, Any], Any], message: Any, tx: Any) -> Any:
    """As `called`, for an `async def` handler."""
    stack: AsyncExitStack[bool] = AsyncExitStack()
    async with stack:
        try:
            for one in layers:
                await _enter(stack, one, message, tx)
            return await call(message, tx)
        except BaseException as error:
            counts = error
            raise
    counts.add_note(SWALLOWED)
    raise counts


async def _enter(stack: AsyncExitStack, one: Middleware, message: Any, tx: Any) -> None:
    opened: Any = one.around(message, tx)
    if one.is_async:
        await stack.enter_async_context(opened)
    else:
        stack.enter_context(opened)


class Surrounding:
    """What is outside of the transaction of one attempt: entered before that begins, left when it is over."""

    def __init__(self, layers: Sequence[Middleware], message: Any, *, is_async: bool) -> None:
        self._layers, self._message, self._is_async = layers, message, is_async
        self._stack: Any = AsyncExitStack() if is_async else ExitStack()

    def enter(self) -> Any:
        """Enter them; what one raises fails the attempt, when those before it are left again."""
        return self._enter_async() if self._is_async else self._enter()

    def leave(self, error: BaseException | None) -> Any:
        """The attempt is over: committed, or failed with this. What they raise now changes nothing.

        `GeneratorExit`, which ends them early: there was no attempt, or nothing of it counts.
        """
        return self._leave_async(error) if self._is_async else self._leave(error)

    def _enter(self) -> None:
        try:
            for one in self._layers:
                self._stack.enter_context(one.around(self._message, None))
        except BaseException as error:
            self._leave(error)
            raise

    async def _enter_async(self) -> None:
        try:
            for one in self._layers:
                await _enter(self._stack, one, self._message, None)
        except BaseException as error:
            await self._leave_async(error)
            raise

    def _leave(self, error: BaseException | None) -> None:
        try:
            self._stack.__exit__(*_told(error))
        except Exception as raised:  # noqa: BLE001 - it is said, and changes nothing
            _say(raised, error)

    async def _leave_async(self, error: BaseException | None) -> None:
        try:
            await self._stack.__aexit__(*_told(error))
        except Exception as raised:  # noqa: BLE001 - as above
            _say(raised, error)


def _told(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def _say(raised: Exception, error: BaseException | None) -> None:
    if raised is not error:  # a generator passes the attempt's own error on
        log.error("middleware raised after the attempt had ended; what became of the message stays", exc_info=raised)
