"""Registering handlers: what an inbox and a router have in common."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from onceward.domain import checks, identity
from onceward.domain.breaker import CONNECTIONS, Breaker, Circuit
from onceward.domain.data_types import is_model, named
from onceward.domain.middleware import Middleware, middleware
from onceward.errors import ConfigurationError
from onceward.message import Message
from onceward.registry import Handler, KeySpec, Promise, check_options
from onceward.retry import RetryPolicy
from onceward.settings import Settings

if TYPE_CHECKING:
    from onceward.router import Router

F = TypeVar("F", bound=Callable[..., Any])
Function = TypeVar(
    "Function",
    bound=Callable[Concatenate[Message[Any], ...], Any] | Callable[Concatenate[list[Message[Any]], ...], Any],
)
Data = TypeVar("Data")
Around = TypeVar("Around", bound=Callable[..., Iterator[None] | AsyncIterator[None]])
Rest = ParamSpec("Rest")
Result = TypeVar("Result")


class HandlerOptions(TypedDict, total=False):
    """What `@inbox.on` takes beside the type."""

    consumer: str | None
    key: KeySpec
    key_required: bool
    aggregate: str | None
    version: int | None
    retry: RetryPolicy | None
    timeout: timedelta | float | None
    group: int | None
    raw: bool
    keep_body: bool
    sequence: str | None
    gap: timedelta
    on_dead: Literal["block", "continue"]
    circuit: Circuit | None
    guarantee: Promise | None


OPTIONS = (*HandlerOptions.__annotations__, "batch")


class TakesMessage(Protocol[Data]):
    """Decorates a handler of messages with this data."""

    def __call__(
        self, function: Callable[Concatenate[Message[Data], Rest], Result], /
    ) -> Callable[Concatenate[Message[Data], Rest], Result]:
        """Register it; it stays what it is."""


class TakesMessages(Protocol[Data]):
    """Decorates a handler of batches of messages with this data."""

    def __call__(
        self, function: Callable[Concatenate[list[Message[Data]], Rest], Result], /
    ) -> Callable[Concatenate[list[Message[Data]], Rest], Result]:
        """Register it; it stays what it is."""


class Upcasting(NamedTuple):
    """An upcaster and what it is for."""

    type: str
    version: int
    function: Callable[[Any], Any]
    of_model: bool
    """A model has said the type."""


class Handlers:
    """What handlers are registered with."""

    def _add(self, function: Callable[..., Any], type: str, options: dict[str, Any]) -> None:  # noqa: A002 - as in `on`
        raise NotImplementedError

    def _add_upcaster(self, upcasting: Upcasting) -> None:
        raise NotImplementedError

    @overload
    def on(
        self, type: str, *, batch: bool = False, **options: Unpack[HandlerOptions]
    ) -> Callable[[Function], Function]: ...
    @overload
    def on(
        self, type: builtins.type[Data], *, batch: Literal[False] = False, **options: Unpack[HandlerOptions]
    ) -> TakesMessage[Data]: ...
    @overload
    def on(
        self, type: builtins.type[Data], *, batch: Literal[True], **options: Unpack[HandlerOptions]
    ) -> TakesMessages[Data]: ...
    def on(self, type: Any, *, batch: bool = False, **options: Unpack[HandlerOptions]) -> Callable[[F], F]:  # noqa: A002 - the word every sender uses
        """Register `def f(message, tx)` or `async def f(message, tx)` for a type of message.

        The type is text, or a class that names it (`__message_type__`, `__message_version__`) and that `message.data`
        becomes; `Message[OrderPaid]` as the annotation of the message does the latter, too.

        `consumer` is the dedupe scope: handlers with different consumers each process a message once. `key` (a
        field, a dotted path, `header:NAME` or a function of the message) makes messages with the same key run in
        arrival order; one without its key is dead, or runs without order with `key_required=False`. `aggregate` gives
        a type's keys a namespace of their own. `group=1` gives every message its own transaction. `raw=True` leaves
        the body unread, `keep_body=False` keeps only the hash of messages that succeeded, `batch=True` gives the
        handler a list. `sequence` (a path like `key`) is the message's number within its key: each waits for the one
        before it, up to `gap`; late comers are skipped. `on_dead="continue"` lets a key go on without a dead message.
        `circuit` pauses the handler after failures in a row; by default only connection errors count, None switches
        it off. `guarantee="exactly-once"` makes `run` refuse to start where less is in force.
        """
        given: dict[str, Any] = {"batch": batch, **options}
        if is_model(type):
            name, version = named("@inbox.on", type)
            given = {"version": version, "data_type": type, **given}
        else:
            name = type
            check_options(name, given.get("timeout"), given.get("circuit"))
        checks.no_others(f"@inbox.on({name!r})", options, OPTIONS)

        def register(function: F) -> F:
            self._add(function, name, given)
            return function

        return register

    def upcast(self, type: str | builtins.type[Any], version: int | None = None) -> Callable[[F], F]:  # noqa: A002 - as in `on`
        """Register how the data of a version becomes the data of the next: `@inbox.upcast("order.paid", 1)`.

        A parameter that is annotated as a model gets that; a class that names its type and version may stand for both.
        """
        where = "@inbox.upcast"
        of_model = is_model(type)
        if of_model:
            name, usual = named(where, type)
            version = usual if version is None else version
        else:
            name = identity.check_name("type", type)
        if version is None:
            raise ConfigurationError(
                f"{where}({name!r}) needs the version that becomes the next one: {where}({name!r}, 1)"
            )
        older: int = version

        def register(function: F) -> F:
            self._add_upcaster(Upcasting(name, older, function, of_model=of_model))
            return function

        return register

    @overload
    def middleware(self, function: Around, /, *, inside: Literal[False] = False) -> Around: ...
    @overload
    def middleware(self, /, *, inside: bool = False) -> Callable[[Around], Around]: ...
    def middleware(self, function: Any = None, /, *, inside: bool = False) -> Any:
        """Surround every attempt to handle a message: `@inbox.middleware` on a generator function with one `yield`.

        `def around(message)` runs outside of the transaction: before it begins, and when it is committed or rolled
        back; a handler with such has its transaction to itself. With `inside=True`, `def around(message, tx)` runs in
        the handler's call. What it raises before, and inside also after it, fails the attempt; an error that it
        swallows counts all the same. The inbox's come first, then those of routers, each in the order of registration.
        """

        def register(function: F) -> F:
            self._surround(middleware("middleware()", function, inside=inside))
            return function

        return register if function is None else register(function)

    def _surround(self, one: Middleware) -> None:
        raise NotImplementedError

    def _rearrange(self) -> None:
        raise NotImplementedError

    def include(self, router: Router) -> None:
        """Take over the handlers of a router, those that it has and those that it will have."""
        from onceward.router import Router  # noqa: PLC0415 - it is made of this

        example = 'a Router, as in router = Router(prefix="order.")'
        checks.instance("include()", "router", router, Router, example).come_to(self)


def handler_of(
    function: Callable[..., Any],
    type: str,  # noqa: A002 - as in `on`
    given: dict[str, Any],
    service: str,
    settings: Settings,
) -> Handler:
    """A handler with what it was given, and the settings of its service for the rest."""
    options = {name: value for name, value in given.items() if value is not None or name == "circuit"}
    circuit = options.pop("circuit", CONNECTIONS)
    limit = check_options(type, options.pop("timeout", None), circuit) or settings.handler_timeout
    usual = {"consumer": service, "version": 1, "key": None, "retry": settings.retry, "group": settings.group}
    breaker = Breaker(circuit) if circuit else None
    return Handler(function=function, type=type, timeout=limit, breaker=breaker, **{**usual, **options})
