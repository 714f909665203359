"""Discovery: the routers of a package, found by importing its modules; and what a program calls an object.

Invariant: what cannot be imported is an error with the name of its module; no handler is missing in silence.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from onceward.domain import checks
from onceward.errors import ConfigurationError
from onceward.router import Router

ATTRIBUTE = "router"
"""What a module calls the router that is to be found."""


def routers_in(package: str) -> list[Router]:
    """The routers of a module, or of all modules of a package: those that another of them includes come with that."""
    checks.text("discover()", "package", package)
    found = [getattr(module, ATTRIBUTE, None) for module in _modules(package)]
    routers = [one for one in dict.fromkeys(found) if isinstance(one, Router)]
    if not routers:
        raise ConfigurationError(
            f"discover({package!r}) found no handlers: write {ATTRIBUTE} = Router() in a module of it, and register "
            f"handlers with @{ATTRIBUTE}.on(...)"
        )
    return [one for one in routers if one.included_in.isdisjoint(routers)]


def name_of(thing: object) -> str | None:
    """MODULE:ATTR of an object, as far as modules were imported; that of the program itself where no other has it."""
    found = [
        (name, attribute)
        for name, module in list(sys.modules.items())
        for attribute, value in list(getattr(module, "__dict__", {}).items())
        if value is thing
    ]
    name, attribute = min(found, key=lambda one: one[0] == "__main__", default=("", ""))
    if name == "__main__":
        program = sys.modules[name]
        spec, file = getattr(program, "__spec__", None), getattr(program, "__file__", None)
        name = spec.name if spec is not None else Path(file).stem if file else ""
    return f"{name}:{attribute}" if name else None


def _modules(package: str) -> Iterator[ModuleType]:
    """A module, and those below it; a package's `__main__` is a program."""
    module = _imported(package)
    yield module
    below = {one.name for one in pkgutil.iter_modules(getattr(module, "__path__", ()))} - {"__main__"}
    for name in sorted(below):
        yield from _modules(f"{package}.{name}")


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(f"discover(): there is no module {name!r}") from None
        line = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({line.filename}, line {line.lineno})"
        raise ConfigurationError(f"discover(): importing {name} failed: {what}") from error
