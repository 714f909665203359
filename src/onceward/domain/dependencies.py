"""Dependencies: what a program of its own gives to its handlers, by type: `inbox.provide(Client, make_client)`.

Invariant: what a factory makes belongs to one call of a handler. It is made when that begins, and closed when that
ends, in whichever way; what is provided as a value is the program's, and is neither opened nor closed here.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Any, TypeAlias, TypeVar

from onceward.domain import checks
from onceward.domain.annotations import signature_of
from onceward.domain.parameters import HandlerTransaction
from onceward.errors import ConfigurationError, ContractViolation

Wanted = TypeVar("Wanted")
Making: TypeAlias = (
    Wanted
    | AbstractContextManager[Wanted]
    | AbstractAsyncContextManager[Wanted]
    | Iterator[Wanted]
    | AsyncIterator[Wanted]
    | Awaitable[Wanted]
)
Factory: TypeAlias = Callable[[], Making[Wanted]] | Callable[[Any], Making[Wanted]]
"""Makes one: returns it, opens it or yields it; awaited, too."""

NOTHING: Any = object()
"""No value was given; None is one."""


class Dependency:
    """Makes one kind of object for handlers that ask for its type."""

    def __init__(self, wanted: type, factory: Callable[..., Any]) -> None:
        where = f"provide({wanted.__name__})"
        self.type = wanted
        self.is_async = inspect.iscoroutinefunction(factory) or inspect.isasyncgenfunction(factory)
        self._takes_message = _takes_message(where, factory)
        self._make = _making(factory)

    def check(self, where: str, wanted: Any, *, is_async: bool) -> None:  # noqa: ARG002 - as other providers
        """Refuse what a `def` handler would have to await."""
        if self.is_async and not is_async:
            raise ConfigurationError(
                f"{where}: the factory of {self.type.__name__} is async, and this handler is def; make the handler "
                "async def, or provide it with a def factory"
            )

    def opened(self, transaction: HandlerTransaction) -> AbstractContextManager[Any]:
        """For a `def` handler."""
        made = self._made(transaction)
        if isinstance(made, AbstractContextManager):
            return made
        if isinstance(made, AbstractAsyncContextManager):
            raise ContractViolation(
                f"{self.type.__name__} is opened with `async with`, so only async def handlers can have it"
            )
        return nullcontext(made)

    @asynccontextmanager
    async def async_opened(self, transaction: HandlerTransaction) -> Any:
        """For an `async def` handler; of two ways to open it, the awaited one."""
        async with AsyncExitStack() as stack:
            made = self._made(transaction)
            if inspect.isawaitable(made) and not isinstance(made, AbstractAsyncContextManager):
                made = await made
            if isinstance(made, AbstractAsyncContextManager):
                made = await stack.enter_async_context(made)
            elif isinstance(made, AbstractContextManager):
                made = stack.enter_context(made)
            yield made

    def cause(self, error: BaseException) -> BaseException:
        """It wraps no errors of the driver."""
        return error

    def _made(self, transaction: HandlerTransaction) -> Any:
        if not self._takes_message:
            return self._make()
        return self._make(transaction.given)


class Given(Dependency):
    """An object that the program has made, the same for all: neither opened nor closed here."""

    def __init__(self, wanted: type, value: Any) -> None:
        super().__init__(wanted, lambda: None)
        self._value = value

    def opened(self, transaction: HandlerTransaction) -> AbstractContextManager[Any]:  # noqa: ARG002 - the same for all
        """As it is."""
        return nullcontext(self._value)

    @asynccontextmanager
    async def async_opened(self, transaction: HandlerTransaction) -> Any:  # noqa: ARG002 - the same for all
        """As it is."""
        yield self._value


def dependency(wanted: Any, factory: Any, value: Any) -> Dependency:
    """What was given to `provide`, checked."""
    if not isinstance(wanted, type):
        checks.refuse(
            "provide()", "type", wanted, "a class, the type of a handler's parameter: provide(Client, make_client)"
        )
    if (factory is None) == (value is NOTHING):
        raise ConfigurationError(
            f"provide({wanted.__name__}) needs a factory, which makes one for each attempt, or value=, one for all"
        )
    if factory is None:
        if not getattr(wanted, "_is_protocol", False) and not isinstance(value, wanted):
            checks.refuse(f"provide({wanted.__name__})", "value", value, f"a {wanted.__name__}: handlers ask for that")
        return Given(wanted, value)
    if not callable(factory):
        checks.refuse(f"provide({wanted.__name__})", "factory", factory, "a function that makes it; or pass value=")
    return Dependency(wanted, factory)


def _making(factory: Callable[..., Any]) -> Callable[..., Any]:
    """A factory with one `yield` is a context manager: what comes after it closes what it has made."""
    if inspect.isasyncgenfunction(factory):
        return asynccontextmanager(factory)
    return contextmanager(factory) if inspect.isgeneratorfunction(factory) else factory


def _takes_message(where: str, factory: Callable[..., Any]) -> bool:
    """Whether it is called with the message: where it needs an argument."""
    signature = signature_of(factory)
    needed = list(_needed(signature)) if signature is not None else []
    if len(needed) > 1:
        names = ", ".join(one.name for one in needed)
        raise ConfigurationError(f"{where}: the factory needs {names}; it is called with the message, or with nothing")
    return bool(needed)


def _needed(signature: inspect.Signature) -> Iterator[inspect.Parameter]:
    spread = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return (one for one in signature.parameters.values() if one.default is one.empty and one.kind not in spread)
