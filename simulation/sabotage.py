"""Tools for mutants: change SQL text, replace functions wherever they were imported, rewrite requests on their way.

Invariant: a change that no longer finds its place in the code is an error, never a mutant that changes nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from onceward.flow import Flow
from onceward.stores.statements import load
from simulation.lite import PREFIX

Statements = dict[str, tuple[str, ...]]


class Stale(AssertionError):
    """The code a mutant wants to change is not there any more."""


def edited(edits: dict[str, tuple[str, str]], dialect: str) -> Statements:
    """The statements with some text replaced; white space in a pattern matches any white space."""
    statements = dict(load(dialect, PREFIX))
    for name, (old, new) in edits.items():
        pattern = r"\s+".join(re.escape(word) for word in old.split())
        changed = tuple(re.sub(pattern, new.replace("\\", r"\\"), text) for text in statements[name])
        if changed == statements[name]:
            raise Stale(f"{name} has no {old!r}")
        statements[name] = tuple(part for text in changed for part in text.split(";;"))
    return statements


@contextmanager
def replaced(*changes: tuple[Callable[..., Any], Callable[..., Any]]) -> Iterator[None]:
    """Replace functions in every module that has imported them."""
    undo: list[tuple[Any, str, Any]] = []
    for original, replacement in changes:
        for name, module in list(sys.modules.items()):
            if name.startswith(("onceward", "simulation.")) and not name.endswith((".sabotage", "variants")):
                for attribute, value in list(vars(module).items()):
                    if value is original:
                        undo.append((module, attribute, original))
                        setattr(module, attribute, replacement)
    try:
        yield
    finally:
        for module, attribute, original in undo:
            setattr(module, attribute, original)


def rewritten(
    original: Callable[..., Flow[Any]], change: Callable[[Any], Any]
) -> Callable[..., Generator[Any, Any, Any]]:
    """The same step, with each of its requests changed; None drops one and answers nothing."""

    def step(*arguments: Any, **options: Any) -> Generator[Any, Any, Any]:
        flow = original(*arguments, **options)
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                request = flow.send(answer) if error is None else flow.throw(error)
            except StopIteration as stop:
                return stop.value
            parts = request if isinstance(request, tuple) else (request,)
            kept = [change(part) for part in parts]
            left = tuple(part for part in kept if part is not None)
            answer, error = None, None
            try:
                got = (yield left) if left else ()
            except Exception as problem:  # noqa: BLE001 - belongs to the step
                error = problem
            else:
                rest = iter(got)
                answers = tuple([] if part is None else next(rest) for part in kept)
                answer = answers if isinstance(request, tuple) else answers[0]

    return step


def without(*names: str) -> Callable[[Any], Any]:
    """Drops the named statements."""
    return lambda part: None if getattr(part, "name", "") in names else part


def nothing(*_arguments: Any, **_options: Any) -> Generator[Any, Any, None]:
    """A step that does nothing."""
    yield from ()


@contextmanager
def method(owner: type, name: str, wrong: Callable[..., Any]) -> Iterator[None]:
    """Another method in place of one."""
    right = getattr(owner, name)
    setattr(owner, name, wrong)
    try:
        yield
    finally:
        setattr(owner, name, right)
