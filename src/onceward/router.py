"""Routers: handlers of a module of their own, which `inbox.include(router)` adds to an inbox.

Invariant: what includes a router has all of its handlers, whether they were registered before that or after.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

from onceward.domain import checks
from onceward.domain.handlers import HandlerOptions, Handlers, Upcasting
from onceward.domain.middleware import Middleware
from onceward.errors import ConfigurationError


class Registered(NamedTuple):
    """A handler as it was registered, with the whole name of its type."""

    function: Callable[..., Any]
    type: str
    options: dict[str, Any]


class Router(Handlers):
    """Registers handlers as an inbox does, where that is not at hand: `router = Router(prefix="order.")`.

    `prefix` comes before every type that is written as text; a model names its whole type itself. Other arguments are
    those of `on`, for handlers that are not given their own.
    """

    def __init__(self, *, prefix: str = "", **defaults: Unpack[HandlerOptions]) -> None:
        self.prefix = checks.text("Router", "prefix", prefix, empty=True)
        """What the types of its handlers begin with."""
        checks.no_others("Router", defaults, ("prefix", *HandlerOptions.__annotations__))
        self._defaults = defaults
        self._layer: list[Middleware] = []
        self._registered: list[Registered | Upcasting] = []
        self._parents: weakref.WeakSet[Handlers] = weakref.WeakSet()

    def _add(self, function: Callable[..., Any], type: str, options: dict[str, Any]) -> None:  # noqa: A002 - as in `on`
        kind = type if options.get("data_type") else f"{self.prefix}{type}"
        layers = (self._layer, *options.get("layers", ()))
        self._tell(Registered(function, kind, {**self._defaults, **options, "layers": layers}))

    def _surround(self, one: Middleware) -> None:
        self._layer.append(one)
        try:
            self._rearrange()
        except ConfigurationError:
            self._layer.remove(one)
            self._rearrange()
            raise

    def _rearrange(self) -> None:
        for including in self._parents:
            including._rearrange()  # noqa: SLF001 - of the same family

    def _add_upcaster(self, upcasting: Upcasting) -> None:
        kind = upcasting.type if upcasting.of_model else f"{self.prefix}{upcasting.type}"
        self._tell(upcasting._replace(type=kind))

    def _tell(self, registered: Registered | Upcasting) -> None:
        self._registered.append(registered)
        for one in self._parents:
            _register(one, registered)

    def come_to(self, including: Handlers) -> None:
        """Be included, with what is registered so far and what will be."""
        if including is self or (isinstance(including, Router) and self in including.included_in):
            raise ConfigurationError("include(): a router cannot be in itself, directly or by way of another")
        for registered in self._registered:
            _register(including, registered)
        self._parents.add(including)

    @property
    def included_in(self) -> set[Handlers]:
        """All that have its handlers: those that include it, and those that include these."""
        parents = set(self._parents)
        return parents.union(*(one.included_in for one in parents if isinstance(one, Router)))


def _register(where: Handlers, registered: Registered | Upcasting) -> None:
    if isinstance(registered, Upcasting):
        where._add_upcaster(registered)  # noqa: SLF001 - of the same family
    else:
        where._add(*registered)  # noqa: SLF001 - as above
