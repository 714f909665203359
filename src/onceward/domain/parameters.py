"""Parameters: what a handler gets beside its message. The annotations of its parameters name it.

Without one the second is the connection of the store's driver. A provider makes anything else, out of that connection
(a Session) or not (what the program provides); packages name theirs by the class they are for, as entries of the group
`onceward.parameters`.

Invariant: what a provider makes belongs to one call of a handler, and all it writes is in that call's transaction and
has reached the database when the provider closes it: what fails then is the handler's failure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
)
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from onceward.domain import checks
from onceward.domain.annotations import alternatives, signature_of
from onceward.errors import ConfigurationError

GROUP = "onceward.parameters"
"""The entry points of providers, each by the full name of a class: a function of an inbox's `Providers`."""


class HandlerTransaction(NamedTuple):
    """What a provider makes a parameter of."""

    tx: Any
    """The driver's connection, with the handler's transaction."""
    messages: Sequence[Any]
    """What the handler is called for: one message, or those of a batch."""
    wanted: Any
    """What the annotation names; None for a provider that is around every call."""

    @property
    def given(self) -> Any:
        """What the handler is called with: a message, or a list of them."""
        return self.messages if isinstance(self.messages, list) else self.messages[0]


class Provider(Protocol):
    """Makes what handlers ask for."""

    def check(self, where: str, wanted: Any, *, is_async: bool) -> None:
        """Raise `ConfigurationError` where handlers of this kind cannot have it."""

    def opened(self, transaction: HandlerTransaction) -> AbstractContextManager[Any]:
        """Entered before a `def` handler is called, with what that gets; left after it, with its error if it raised.

        What is left without an error writes whatever it still holds, and may raise: then the handler has failed.
        """

    def async_opened(self, transaction: HandlerTransaction) -> AbstractAsyncContextManager[Any]:
        """As `opened`, for an `async def` handler."""

    def cause(self, error: BaseException) -> BaseException:
        """The driver's error behind one that a handler sees; else the same error."""


class Further(NamedTuple):
    """Another parameter of a handler, beyond the second."""

    name: str
    by_name: bool
    """It is passed by its name alone."""
    provider: Provider | None
    """What makes it; without one it is the driver's connection."""
    wanted: Any


@dataclass(frozen=True, slots=True)
class Parameter:
    """What one handler takes beside its message."""

    passes: bool = True
    """It takes something; else the message alone."""
    provider: Provider | None = None
    """What makes it; without one it is the driver's connection."""
    wanted: Any = None
    around: Provider | None = None
    """What is around every call of the inbox's handlers."""
    further: tuple[Further, ...] = ()
    """What it takes beyond that."""
    is_made: bool = field(init=False)
    """Something is made for each call, such as a Session."""

    def __post_init__(self) -> None:
        is_made = self.provider is not None or self.around is not None or bool(self.further)
        object.__setattr__(self, "is_made", is_made)

    @property
    def is_drivers(self) -> bool:
        """Whether the handler gets the driver's connection, or something is made of that around it."""
        plain = (self.passes and self.provider is None) or any(one.provider is None for one in self.further)
        return plain or self.around is not None

    def call(self, function: Callable[..., Any], message: Any, tx: Any) -> Any:
        """Call a `def` handler."""
        with ExitStack() as stack:
            arguments = [stack.enter_context(each.opened(given)) for each, given in self._providers(message, tx)]
            passed, named = self._passed(arguments, tx)
            return function(message, *passed, **named)

    async def acall(self, function: Callable[..., Any], message: Any, tx: Any) -> Any:
        """Call an `async def` handler."""
        async with AsyncExitStack() as stack:
            providers = self._providers(message, tx)
            arguments = [await stack.enter_async_context(each.async_opened(given)) for each, given in providers]
            passed, named = self._passed(arguments, tx)
            return await function(message, *passed, **named)

    def _providers(self, message: Any, tx: Any) -> Iterator[tuple[Provider, HandlerTransaction]]:
        messages = message if isinstance(message, list) else (message,)
        if self.around is not None:
            yield self.around, HandlerTransaction(tx, messages, None)
        if self.provider is not None:
            yield self.provider, HandlerTransaction(tx, messages, self.wanted)
        for one in self.further:
            if one.provider is not None:
                yield one.provider, HandlerTransaction(tx, messages, one.wanted)

    def _passed(self, arguments: list[Any], tx: Any) -> tuple[list[Any], dict[str, Any]]:
        """What the handler gets, of what the providers have made, in their order."""
        made = iter(arguments)
        if self.around is not None:
            next(made)
        passed = [] if not self.passes else [tx if self.provider is None else next(made)]
        named: dict[str, Any] = {}
        for one in self.further:
            value = tx if one.provider is None else next(made)
            if one.by_name:
                named[one.name] = value
            else:
                passed.append(value)
        return passed, named

    def cause(self, error: BaseException) -> BaseException:
        """The driver's error behind one that the handler raised."""
        for provider in (*(one.provider for one in self.further), self.provider, self.around):
            if provider is not None:
                error = provider.cause(error)
        return error


CONNECTION = Parameter()
"""The driver's connection, and nothing around: the usual case."""


@dataclass(slots=True, eq=False)
class Providers:
    """What the handlers of one inbox may ask for."""

    store: Any = None
    connections: tuple[str, str] | None = None
    """The full names of the classes of `tx`, for `def` and for `async def` handlers; None where any will do."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the inbox was given for them, such as `sessions`."""
    around: Provider | None = None
    """What is around every call of a handler."""
    _known: dict[Any, Provider] = field(default_factory=dict)
    """Those made so far, by class and by the function that has made them."""

    def add(self, wanted: type, provider: Provider) -> None:
        """Handlers that ask for this class get it from this provider."""
        self._known[wanted] = provider

    def parameter_of(self, where: str, function: Any, *, is_async: bool) -> Parameter:
        """What a handler takes beside its message; raises where it cannot have that."""
        signature = signature_of(function)
        whole = None if signature is None else list(signature.parameters.values())
        further = () if whole is None else self._further(where, function, whole, is_async=is_async)
        if signature is not None and further:
            taken = {one.name for one in further}
            kept = [one for one in signature.parameters.values() if one.name not in taken]
            signature = signature.replace(parameters=kept)
        passes = signature is None or _takes(signature, 2)
        if signature is not None and not passes and not _takes(signature, 1):
            raise ConfigurationError(
                f"{where}: {_name(function)} has {_shown(signature)}; a handler is {checks.HANDLER}"
            )
        if self.around is not None:
            self.around.check(where, None, is_async=is_async)
        plain = Parameter(passes, around=self.around, further=further)
        plain = CONNECTION if plain == CONNECTION else plain  # which is recognised by being the same object
        if signature is None or not passes:
            return plain
        second = [one for one in signature.parameters.values() if one.kind != one.KEYWORD_ONLY][1:2]
        annotation = second[0].annotation if second and second[0].kind != inspect.Parameter.VAR_POSITIONAL else Any
        wanted = [one for one in alternatives(annotation, function) if one is not type(None)]
        if any(one in (Any, object, inspect.Parameter.empty) or _is_protocol(one) for one in wanted):
            return plain
        for one in wanted:
            if self._is_connection(one, is_async=is_async):
                return plain
            provider = self.provider_of(one)
            if provider is not None:
                provider.check(where, one, is_async=is_async)
                return Parameter(provider=provider, wanted=one, around=self.around, further=further)
        return self._refuse(where, second[0], wanted, is_async=is_async)

    def _further(
        self, where: str, function: Any, parameters: list[inspect.Parameter], *, is_async: bool
    ) -> tuple[Further, ...]:
        """What it takes beyond its second parameter, by type; what has a default keeps it unless it is provided."""
        found = []
        by_place = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        by_name = [one for one in parameters if one.kind == one.KEYWORD_ONLY]
        skipped = False
        for one in (*by_place[2:], *by_name):
            wanted = [each for each in alternatives(one.annotation, function) if each is not type(None)]
            known = next((each for each in wanted if isinstance(each, type) and self._explicit(each)), None)
            if known is None and one.default is not one.empty:
                skipped = skipped or one.kind != one.KEYWORD_ONLY
                continue
            named = skipped or one.kind == one.KEYWORD_ONLY
            found.append(self._one_more(where, one, wanted, by_name=named, is_async=is_async))
        return tuple(found)

    def _one_more(
        self, where: str, one: inspect.Parameter, wanted: list[Any], *, by_name: bool, is_async: bool
    ) -> Further:
        if any(each in (Any, object, one.empty) for each in wanted):
            raise ConfigurationError(
                f"{where}: {one.name} has no type; parameters beyond message and tx are filled by their types: "
                f"{one.name}: Client, and before that inbox.provide(Client, make_client)"
            )
        for each in wanted:
            if not isinstance(each, str) and self.connections and self.connections[is_async] in _names(each):
                return Further(one.name, by_name, None, each)
            provider = self.provider_of(each)
            if provider is not None:
                provider.check(where, each, is_async=is_async)
                return Further(one.name, by_name, provider, each)
        self._refuse(where, one, wanted, is_async=is_async)
        raise AssertionError("it is refused")

    def _explicit(self, wanted: type) -> bool:
        """Whether the program provides it, or a class that it is of."""
        return any(one in self._known for one in wanted.__mro__)

    def _is_connection(self, wanted: Any, *, is_async: bool) -> bool:
        return self.connections is None or self.connections[is_async] in _names(wanted)

    def provider_of(self, wanted: Any) -> Provider | None:
        """What makes a class; None where nothing does."""
        if isinstance(wanted, str):
            return None
        for one in getattr(wanted, "__mro__", ()):
            if one in self._known:
                return self._known[one]
        from importlib.metadata import entry_points  # noqa: PLC0415 - takes longer than all of this module

        names = _names(wanted)
        for found in entry_points(group=GROUP):
            if found.name in names:
                make = found.load()
                if make not in self._known:
                    self._known[make] = make(self)
                return self._known[make]
        return None

    def _refuse(self, where: str, second: inspect.Parameter, wanted: list[Any], *, is_async: bool) -> Parameter:
        shown = " | ".join(one if isinstance(one, str) else _names(one)[0] for one in wanted)
        unknown = [one for one in wanted if isinstance(one, str)]
        if unknown:
            raise ConfigurationError(
                f"{where}: what {second.name}: {shown} is cannot be seen at run time. Import {unknown[0]!r} at the top "
                "of the module, not under `if TYPE_CHECKING:`"
            )
        usual = (self.connections or ("", ""))[is_async]
        kind = "async def" if is_async else "def"
        other = "AsyncSession or AsyncConnection" if is_async else "Session or Connection"
        raise ConfigurationError(
            f"{where}: {second.name}: {shown} is nothing that this inbox can give to its {kind} handlers. Annotate it "
            f"as {usual}, as SQLAlchemy's {other}, or not at all; or provide it before the handler is registered: "
            f"inbox.provide({shown.rpartition('.')[2]}, make_it)"
        )


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _shown(signature: inspect.Signature) -> str:
    names = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    bare = signature.replace(parameters=names, return_annotation=inspect.Signature.empty)
    return f"the parameters {bare}" if names else "no parameters"


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", checks.shown(function))


def _names(wanted: Any) -> list[str]:
    """The full names of a class and of those that it is made of; a text is the name that it is."""
    if isinstance(wanted, str):
        return [wanted]
    classes = getattr(wanted, "__mro__", None)
    if classes is None:
        return [checks.shown(wanted)]
    return [f"{one.__module__}.{one.__qualname__}" for one in classes]


def _is_protocol(wanted: Any) -> bool:
    return bool(getattr(wanted, "_is_protocol", False))
