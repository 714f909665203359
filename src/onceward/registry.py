"""Who handles what: the handlers of this process, and how a type's ordering key is found.

Invariant: at most one handler per (consumer, type, version), and one way to find the key per (consumer, type).
The consumer is a chosen name, never derived from the function, so renaming a function changes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from onceward import identity
from onceward.errors import ConfigurationError, HandlerNotFound
from onceward.message import Message
from onceward.retry import RetryPolicy

HandlerFunction = Callable[[Message, Any], Any]
KeySpec = str | Callable[[Message], Any] | None


@dataclass(frozen=True, slots=True)
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
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.function))

    @property
    def name(self) -> str:
        """The function's name, for people."""
        return getattr(self.function, "__qualname__", repr(self.function))


class Registry:
    """The handlers that this process has."""

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str, int], Handler] = {}

    def add(self, handler: Handler) -> None:
        """Register a handler, or say what it collides with."""
        identity.check_name("type", handler.type)
        identity.check_name("consumer", handler.consumer)
        if handler.group < 1:
            raise ConfigurationError(f"{handler.name}: group={handler.group} must be at least 1")
        for other in self._handlers.values():
            if (other.consumer, other.type) != (handler.consumer, handler.type):
                continue
            if other.version == handler.version:
                raise ConfigurationError(
                    f"{handler.name} and {other.name} both handle version {handler.version} of "
                    f"{handler.type!r} for consumer {handler.consumer!r}; give one of them its own consumer="
                )
            if other.key != handler.key:
                raise ConfigurationError(
                    f"{handler.name} and {other.name} handle {handler.type!r} for the same consumer and "
                    "must therefore have the same key="
                )
            if other.is_async != handler.is_async:
                raise ConfigurationError(
                    f"{handler.name} and {other.name} handle versions of {handler.type!r} for the same "
                    "consumer and must therefore both be def or both be async def"
                )
        self._handlers[handler.consumer, handler.type, handler.version] = handler

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def __len__(self) -> int:
        return len(self._handlers)

    def of_type(self, consumer: str, message_type: str) -> Handler | None:
        """Any handler of the type, whatever the version: they share key and kind."""
        return next((h for h in self._handlers.values() if (h.consumer, h.type) == (consumer, message_type)), None)

    def find(self, consumer: str, message_type: str, version: int) -> Handler:
        """The handler of a message, or an error that says which versions there are."""
        handler = self._handlers.get((consumer, message_type, version))
        if handler is not None:
            return handler
        versions = sorted(
            h.version for h in self._handlers.values() if (h.consumer, h.type) == (consumer, message_type)
        )
        raise HandlerNotFound(
            f"nobody handles version {version} of {message_type!r} for consumer {consumer!r}; "
            f"handled versions: {', '.join(map(str, versions)) or 'none'}"
        )


@dataclass(frozen=True, slots=True)
class Subscription:
    """A (consumer, type) as the database knows it, for processes that have no handlers."""

    id: int
    consumer: str
    consumer_id: int
    type: str
    key_path: str | None
    key_function: bool


def key_at(path: str, data: Any, headers: Mapping[str, str]) -> Any:
    """Find a key by its path: a field, a dotted path, or `header:NAME`. None where there is nothing."""
    if path.startswith("header:"):
        return headers.get(path.removeprefix("header:"))
    for part in path.split("."):
        if not isinstance(data, dict) or part not in data:
            return None
        data = data[part]
    return data
