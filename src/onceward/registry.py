"""Who handles what: the handlers of this process, and how a type's ordering key is found.

Invariant: at most one handler per (consumer, type, version), and one way to find the key per (consumer, type).
The consumer is a chosen name, never derived from the function, so renaming a function changes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

from onceward.domain import checks, identity
from onceward.domain.breaker import CIRCUIT, Breaker, Circuit
from onceward.domain.data_types import Model, model_of_handler, upcaster_of
from onceward.domain.hooks import NO_HOOKS, HandlerHook, HookedCall
from onceward.domain.middleware import Layers, Middleware, acalled, called, check_kind
from onceward.domain.parameters import CONNECTION, Parameter, Providers
from onceward.domain.selection import EVERYTHING, Selection
from onceward.errors import ConfigurationError, HandlerNotFound, VersionUnknown
from onceward.message import Message
from onceward.retry import POLICY, RetryPolicy

OUTBOX = "onceward.outbox"
"""The consumer of every outgoing message: the relay. The outbox is the inbox of the relay."""

ANY_TYPE = "*"

HandlerFunction = Callable[..., Any]
Upcaster = Callable[[Any], Any]
Promise = Literal["exactly-once", "at-least-once", "weaker"]
KeySpec = str | Callable[[Message], Any] | None
PATH = "a field, a dotted path, header:NAME"
"""What `key=` and `sequence=` may be."""

APART = 3
"""After so many messages without a use of their transaction a handler is taken to have its effects elsewhere."""


@dataclass(slots=True)
class Use:
    """Whether a handler has its effects where they are applied exactly once, as far as this process has seen."""

    through_tx: bool = False
    """It has used its transaction at least once; or sent, or called through `message.once`."""
    apart: set[int] = field(default_factory=set)
    """The first messages that it has finished without that."""
    saved: bool | None = None
    """What of it is in the database."""

    def add(self, messages: Sequence[Message]) -> bool:
        """It has finished messages without that; returns whether these were enough to tell."""
        self.apart.update(message.seq for message in messages)  # a group that fails runs again, and counts once
        return len(self.apart) >= APART

    @property
    def is_apart(self) -> bool | None:
        """Whether its effects are elsewhere; None while that is not known."""
        return False if self.through_tx else (True if len(self.apart) >= APART else None)


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """A function and the rules under which it runs."""

    function: HandlerFunction
    type: str
    consumer: str
    version: int
    key: KeySpec
    retry: RetryPolicy
    timeout: timedelta
    group: int
    raw: bool = False
    keep_body: bool = True
    batch: bool = False
    """It gets a list of messages in one transaction."""
    sequence: str | None = None
    """Where a message says its number within its key; each waits for the one before."""
    gap: timedelta = timedelta(minutes=5)
    """How long a message waits for the number before it."""
    on_dead: Literal["block", "continue"] = "block"
    """Whether a dead message holds up what comes after it in its key."""
    key_required: bool = True
    """Whether a message without its key is dead; else it runs without order."""
    aggregate: str | None = None
    """The namespace of its keys; without one they are the consumer's, shared with its other types."""
    breaker: Breaker | None = None
    external: bool = False
    """Its effects are outside the transaction (the relay): what succeeded before a failure stays finished. Its type is
    the destination it publishes to."""
    guarantee: Promise | None = None
    """What the program relies on; it does not start with less."""
    hooks: Sequence[HandlerHook] = ()
    """What is called when it runs; the registry's own list, so that later ones count too."""
    outlets: Collection[str] = ()
    """Where it may send to, if not anywhere; the registry's own set."""
    forgets_failures: bool = False
    """A failure leaves nothing behind: `process` raises it, and the caller comes again under the same id."""
    data_type: Any = None
    """What its messages' data is to be, where `@inbox.on` was given that."""
    model: Model | None = None
    """What makes the data of its messages that; without one it is as it came."""
    parameter: Parameter = CONNECTION
    """What it gets beside its message."""
    layers: Layers = ()
    """Whose middleware is around it: of its inbox first, then of its routers."""
    outside: Sequence[Middleware] = ()
    """What surrounds an attempt outside of its transaction; then the handler has that to itself."""
    inside: Sequence[Middleware] = ()
    """What surrounds each of its calls."""
    stands_for: Handler | None = None
    """The one that it calls, with what that takes: in a proof, where it watches."""
    use: Use = field(default_factory=Use)
    is_async: bool = field(init=False)
    call: HandlerFunction = field(init=False)
    """Calls it, for a message and a connection, with what it gets; of an `async def` handler it is to be awaited."""

    def __post_init__(self) -> None:
        called = getattr(self.function, "__call__", None)  # noqa: B004 - of an object it may be `async def`
        is_async = inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(called)
        object.__setattr__(self, "is_async", is_async)
        self.surround(self.outside, self.inside)

    def surround(self, outside: Sequence[Middleware], inside: Sequence[Middleware]) -> None:
        """Put middleware around it. How it is called is decided here, and not for each message."""
        call, parameter = self.function, self.parameter
        if parameter is not CONNECTION:
            call = partial(parameter.acall if self.is_async else parameter.call, call)
        if inside:
            call = partial(acalled if self.is_async else called, inside, call)
        for name, value in (("outside", outside), ("inside", inside), ("call", call)):
            object.__setattr__(self, name, value)

    def cause(self, error: BaseException) -> BaseException:
        """The driver's error behind one that it has raised; else the same."""
        return (self.stands_for or self).parameter.cause(error)

    def hooked(self, message: Any) -> AbstractContextManager[Any]:
        """What surrounds a call of it for a message, or for a list of them."""
        if not self.hooks:
            return NO_HOOKS
        return HookedCall(self.hooks, self, message if isinstance(message, list) else [message])

    @property
    def is_paused(self) -> bool:
        """Whether its circuit is open."""
        return self.pause_left > 0

    @property
    def pause_left(self) -> float:
        """For how many seconds its circuit stays open."""
        if self.breaker is None or not self.breaker.was_open:  # the usual case, asked for every message
            return 0.0
        return self.breaker.seconds_left

    @property
    def name(self) -> str:
        """The function's name, for people."""
        return getattr(self.function, "__qualname__", repr(self.function))


def check_options(message_type: Any, timeout: Any, circuit: Any) -> timedelta | None:
    """Refuse what `@inbox.on` cannot be given; returns the time limit."""
    if callable(message_type):
        raise ConfigurationError("@inbox.on needs the type of the messages in parentheses: @inbox.on('order.paid')")
    where = f"@inbox.on({message_type!r})"
    if circuit is not None:
        checks.instance(where, "circuit", circuit, Circuit, CIRCUIT)
    return None if timeout is None else checks.seconds(where, "timeout", timeout)


class Registry:
    """The handlers that this process has."""

    def __init__(self, providers: Providers | None = None) -> None:
        self.providers = providers or Providers()
        """What makes the parameters of the handlers."""
        self._handlers: dict[tuple[str, str, int], Handler] = {}
        self._by_type: dict[tuple[str, str], list[Handler]] = {}
        self._upcasters: dict[tuple[str, int], Upcaster] = {}
        self.hooks: list[HandlerHook] = []
        self.middleware: list[Middleware] = []
        """What surrounds every attempt of its handlers."""
        self.outlets: set[str] = set()
        """The destinations that this process has a sink for."""
        self.sources: dict[str, timedelta] = {}
        """How late each source may redeliver."""
        self.declared = 0
        """How much there is to tell the database: it only grows."""

    def add(self, handler: Handler) -> None:
        """Register a handler; raises with what it collides with."""
        identity.check_name("type", handler.type)
        identity.check_name("consumer", handler.consumer)
        parameter = self._check(handler)
        model = handler.model or model_of_handler(handler)
        for other in self._handlers.values():
            if (other.consumer, other.type) != (handler.consumer, handler.type):
                continue
            if other.version == handler.version and other.function is handler.function:
                raise ConfigurationError(
                    f"{handler.name} handles version {handler.version} of {handler.type!r} for consumer "
                    f"{handler.consumer!r} already; register it, and include its router, once"
                )
            if other.version == handler.version:
                raise ConfigurationError(
                    f"{handler.name} and {other.name} both handle version {handler.version} of "
                    f"{handler.type!r} for consumer {handler.consumer!r}; give one of them its own consumer="
                )
            for name in ("key", "sequence", "on_dead", "aggregate"):
                if getattr(other, name) != getattr(handler, name):
                    raise ConfigurationError(
                        f"{handler.name} and {other.name} handle {handler.type!r} for the same consumer and "
                        f"must therefore have the same {name}="
                    )
            if other.is_async != handler.is_async:
                raise ConfigurationError(
                    f"{handler.name} and {other.name} handle versions of {handler.type!r} for the same "
                    "consumer and must therefore both be def or both be async def"
                )
        object.__setattr__(handler, "hooks", self.hooks)
        object.__setattr__(handler, "outlets", self.outlets)
        object.__setattr__(handler, "parameter", parameter)
        object.__setattr__(handler, "model", model)
        self._surround(handler)
        self._handlers[handler.consumer, handler.type, handler.version] = handler
        self.declared += 1
        self._by_type.setdefault((handler.consumer, handler.type), []).append(handler)

    def arrange(self) -> None:
        """Middleware has come: put it around the handlers that are here, or refuse it."""
        for handler in self._handlers.values():
            if not handler.external:
                self._surround(handler)

    def _surround(self, handler: Handler) -> None:
        all_of_it = [one for layer in (self.middleware, *handler.layers) for one in layer]
        check_kind(all_of_it, handler.name, is_async=handler.is_async)
        outside = tuple(one for one in all_of_it if not one.inside)
        handler.surround(outside, tuple(one for one in all_of_it if one.inside))

    def _check(self, handler: Handler) -> Parameter:
        where = f"@inbox.on({handler.type!r})"
        checks.handler(where, handler.function)
        if callable(handler.key):
            checks.function(where, "key", handler.key)
        elif handler.key is not None and not checks.is_text(handler.key):
            checks.refuse(where, "key", handler.key, f"{PATH}, or a function of the message")
        if handler.sequence is not None and not checks.is_text(handler.sequence):
            checks.refuse(where, "sequence", handler.sequence, PATH)
        checks.whole(where, "version", handler.version, least=0)
        checks.instance(where, "retry", handler.retry, RetryPolicy, POLICY)
        checks.whole(where, "group", handler.group)
        for name in ("raw", "keep_body", "batch"):
            checks.flag(where, name, getattr(handler, name))
        checks.duration(where, "gap", handler.gap, least=timedelta(0))
        checks.one_of(where, "on_dead", handler.on_dead, ("block", "continue"))
        if handler.guarantee is not None:
            checks.one_of(where, "guarantee", handler.guarantee, get_args(Promise))
        if handler.sequence is not None and handler.key is None:
            raise ConfigurationError(f"{where}: sequence= counts within a key, so it needs key=")
        if handler.aggregate is not None:
            identity.check_name("aggregate", handler.aggregate)
            if handler.key is None:
                raise ConfigurationError(f"{where}: aggregate= is a namespace of keys, so it needs key=")
        if handler.type == ANY_TYPE or handler.consumer.startswith(identity.RESERVED):
            reserved = f"the type {ANY_TYPE!r} and consumers that begin with {identity.RESERVED!r}"
            raise ConfigurationError(f"{handler.name}: {reserved} are reserved")
        return self.providers.parameter_of(where, handler.function, is_async=handler.is_async)

    def add_relay(self, handler: Handler) -> None:
        """Register the handler of outgoing messages to one destination."""
        object.__setattr__(handler, "hooks", self.hooks)
        self._handlers[OUTBOX, handler.type, 1] = handler
        self.declared += 1
        self._by_type[OUTBOX, handler.type] = [handler]
        self.outlets.add(handler.type)

    def destinations(self, *, is_async: bool) -> list[str]:
        """The destinations that this process has a sink for, of one kind."""
        return [one.type for one in self._handlers.values() if one.external and one.is_async == is_async]

    def add_upcaster(self, message_type: str, version: int, upcaster: Upcaster) -> None:
        """Register how data of a version becomes data of the next."""
        where = f"@inbox.upcast({identity.check_name('type', message_type)!r})"
        checks.whole(where, "version", version, least=0)
        checks.function(where, "function", upcaster)
        if (message_type, version) in self._upcasters:
            raise ConfigurationError(f"version {version} of {message_type!r} has an upcaster already")
        self._upcasters[message_type, version] = upcaster_of(where, upcaster)

    def upcaster(self, message_type: str, version: int) -> Upcaster | None:
        """What brings data of a version up to the next, if anything does."""
        return self._upcasters.get((message_type, version))

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def __len__(self) -> int:
        return len(self._handlers)

    def of_type(self, consumer: str, message_type: str) -> Handler | None:
        """Any handler of the type, whatever the version: they share key and kind."""
        found = self._by_type.get((consumer, message_type))
        return found[0] if found else None

    def all_paused(self, consumer: str, message_type: str) -> bool:
        """Whether a type has handlers and each of its versions has its circuit open."""
        found = self._by_type.get((consumer, message_type))
        return found is not None and all(handler.is_paused for handler in found)

    def find(self, consumer: str, message_type: str, version: int) -> tuple[Handler, list[Upcaster]]:
        """The handler of a message and what brings its data up to that handler's version.

        The type of an outgoing message is its destination here, and all its versions are alike.
        """
        if consumer == OUTBOX and (consumer, message_type) in self._by_type:
            return self._by_type[OUTBOX, message_type][0], []
        path: list[Upcaster] = []
        step = version
        while (consumer, message_type, step) not in self._handlers:
            if (message_type, step) not in self._upcasters:
                raise self._unknown(consumer, message_type, version)
            path.append(self._upcasters[message_type, step])
            step += 1
        return self._handlers[consumer, message_type, step], path

    @property
    def types(self) -> list[str]:
        """The types of messages that have a handler here."""
        return sorted({one.type for one in self._handlers.values() if not one.external})

    def handles(self, selection: Selection = EVERYTHING) -> str:
        """What is run here, for other processes."""
        return "".join(self.lines(selection))

    def lines(self, selection: Selection = EVERYTHING) -> list[str]:
        """Every (consumer, type, version) that is run here, or leads to one: a line of each."""
        lines = set()
        for handler in self._handlers.values():
            if not handler.external and not selection.takes(handler.type):
                continue
            lines.add(_line(handler.consumer, handler.type, handler.version))
            version = handler.version - 1
            while (handler.type, version) in self._upcasters:
                lines.add(_line(handler.consumer, handler.type, version))
                version -= 1
        return sorted(lines)

    def _unknown(self, consumer: str, message_type: str, version: int) -> HandlerNotFound:
        mine = [h.version for h in self._handlers.values() if (h.consumer, h.type) == (consumer, message_type)]
        upcast = [known for kind, known in self._upcasters if kind == message_type]
        text = (
            f"no handler for version {version} of {message_type!r} for consumer {consumer!r}; "
            f"handled versions: {', '.join(map(str, sorted(mine))) or 'none'}; "
            f"upcasters: {', '.join(map(str, sorted(upcast))) or 'none'}"
        )
        if not mine:
            return HandlerNotFound(text)
        return VersionUnknown(text, _line(consumer, message_type, version), newer=version > max(mine))


def _line(consumer: str, message_type: str, version: int) -> str:
    return f"\n{consumer}\t{message_type}\t{version}\n"  # no name holds a control character


class Subscription(NamedTuple):
    """A (consumer, type) as the database knows it, for processes that have no handlers."""

    id: int
    consumer: str
    consumer_id: int
    type: str
    key_path: str | None
    key_function: bool
    sequence: str | None = None
    on_dead: str = "block"
    aggregate: str | None = None
    retired: bool = False
    """It gets no further messages."""


def key_at(path: str, data: Any, headers: Mapping[str, str]) -> Any:
    """Find a key by its path: a field, a dotted path, or `header:NAME` in any case. None where there is nothing."""
    if path.startswith("header:"):
        name = path.removeprefix("header:")
        if name in headers:
            return headers[name]
        return next((value for known, value in headers.items() if known.lower() == name.lower()), None)
    for part in path.split("."):
        if not isinstance(data, dict) or part not in data:
            return None
        data = data[part]
    return data
