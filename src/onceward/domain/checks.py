"""Checks at the door: what can be known to be wrong when it is written is refused there, in one sentence.

The sentence names the argument, what was given and what is allowed. `where` is what the caller wrote, such as
`RetryPolicy` or `@inbox.on('order.paid')`; every check returns the value it has accepted.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar

from onceward.errors import ConfigurationError, InvalidMessage

T = TypeVar("T")

_LARGEST = 2**63
"""What a database can count to."""
HANDLER = "def f(message, tx) or async def f(message, tx); tx may be left out"
"""What `@inbox.on` registers."""


def refuse(where: str, argument: str, given: Any, allowed: str) -> NoReturn:
    """Raise an error that names the argument, its value and what is allowed."""
    raise ConfigurationError(f"{where}: {argument}={shown(given)} must be {allowed}")


def shown(given: Any) -> str:
    """A value as its caller would write it, if that is short."""
    try:
        text = repr(given)
    except Exception:  # noqa: BLE001 - a value that cannot be printed is still a wrong one
        text = f"<{type(given).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - a line


def whole(where: str, argument: str, given: Any, *, least: int = 1) -> int:
    """A whole number; True is none."""
    if not isinstance(given, int) or isinstance(given, bool) or not least <= given < _LARGEST:
        refuse(where, argument, given, f"a whole number, at least {least}")
    return given


def number(where: str, argument: str, given: Any, *, least: float, most: float = math.inf) -> float:
    """A number, finite."""
    if not isinstance(given, int | float) or isinstance(given, bool) or not least <= given <= most or given == math.inf:
        limits = f"from {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        refuse(where, argument, given, f"a number {limits}")
    return given


def duration(where: str, argument: str, given: Any, *, least: timedelta | None = None) -> timedelta:
    """A `timedelta`: above zero, or at least so long."""
    fits = isinstance(given, timedelta) and (given > timedelta(0) if least is None else given >= least)
    if not fits:
        limit = "above zero" if least is None else f"of at least {least.total_seconds():g} s"
        refuse(where, argument, given, f"a timedelta {limit}, for example timedelta(seconds=30)")
    return given  # type: ignore[no-any-return] # it is one


def seconds(where: str, argument: str, given: Any) -> timedelta:
    """A `timedelta`, or a number of seconds."""
    if isinstance(given, timedelta):
        return duration(where, argument, given)
    if not isinstance(given, int | float) or isinstance(given, bool) or not 0 < given <= timedelta.max.total_seconds():
        refuse(where, argument, given, "a timedelta above zero, or a number of seconds above 0")
    return timedelta(seconds=given)


def moment(where: str, argument: str, given: Any) -> datetime:
    """A point in time."""
    if not isinstance(given, datetime):
        refuse(where, argument, given, "a datetime")
    return given


def is_text(given: Any) -> bool:
    """Whether it is text that is not empty."""
    return isinstance(given, str) and bool(given)


def text(where: str, argument: str, given: Any, *, empty: bool = False) -> str:
    """Text, not empty unless that is allowed."""
    if not isinstance(given, str) or not (given or empty):
        refuse(where, argument, given, "text" if empty else "text that is not empty")
    return given


def flag(where: str, argument: str, given: Any) -> bool:
    """True or False themselves: "no" is true."""
    if not isinstance(given, bool):
        refuse(where, argument, given, "True or False")
    return given


def one_of(where: str, argument: str, given: T, allowed: Collection[Any]) -> T:
    """One of a few words."""
    if not isinstance(given, str) or given not in allowed:
        refuse(where, argument, given, f"one of {', '.join(map(repr, allowed))}")
    return given


def instance(where: str, argument: str, given: Any, kind: type[T], example: str) -> T:
    """An object of a class."""
    if not isinstance(given, kind):
        refuse(where, argument, given, example)
    return given


def path(where: str, argument: str, given: Any) -> str | os.PathLike[str]:
    """A path of a file or folder."""
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        refuse(where, argument, given, "a path")
    return given


def function(where: str, argument: str, given: Any, *, takes: int = 1) -> Callable[..., Any]:
    """A function that can be called with so many arguments."""
    if not callable(given):
        refuse(where, argument, given, "a function")
    if (wanted := _wanted(given, takes)) is not None:
        refuse(where, argument, given, f"a function of {takes} argument{'s' if takes > 1 else ''}, not of {wanted}")
    return given  # type: ignore[no-any-return] # it is one


def handler(where: str, given: Any) -> None:
    """Something that can be a handler; what it takes is checked with its parameters."""
    name = getattr(given, "__qualname__", shown(given))
    if inspect.isclass(given):
        raise ConfigurationError(f"{where}: {name} is a class; a handler is {HANDLER}")
    if not callable(given):
        raise ConfigurationError(f"{where}: {shown(given)} cannot be called; a handler is {HANDLER}")
    if inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise ConfigurationError(f"{where}: {name} is a generator, which would never run; a handler is {HANDLER}")


def _wanted(given: Callable[..., Any], count: int) -> str | None:
    """The parameters of a function that cannot be called with so many arguments; None where they cannot be seen."""
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # built in, without a signature
        return None
    try:
        signature.bind(*[None] * count)
    except TypeError:
        names = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
        bare = signature.replace(parameters=names, return_annotation=inspect.Signature.empty)
        return str(bare) if names else "no arguments"
    return None


def no_others(where: str, given: Iterable[str], allowed: Collection[str]) -> None:
    """Names of arguments that are known."""
    for name in given:
        if name not in allowed:
            raise ConfigurationError(f"{where} has no argument {name}=; its arguments are {', '.join(allowed)}")


def message(where: str, given: Mapping[str, Any], needed: Mapping[str, str], allowed: Collection[str]) -> None:
    """The arguments of a message: each that is needed, and none that is unknown."""
    for name, meaning in needed.items():
        if name not in given:
            raise InvalidMessage(f"{where} needs {name}=: {meaning}")
    for name in given:
        if name == "tx" and name not in allowed:
            raise ConfigurationError(
                f"{where} has no argument tx=, and nothing was stored: it commits by itself, so that its result is "
                "final. In a transaction of your own call receive(..., tx=...), and let a worker handle the message"
            )
        if name not in allowed:
            raise InvalidMessage(f"{where} has no argument {name}=; its arguments are {', '.join(allowed)}")
