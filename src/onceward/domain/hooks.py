"""Hooks: called when a handler runs, for spans, metrics and the like.

Invariant: a hook can neither fail a message nor save one: what it raises is logged, what it returns is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

log = logging.getLogger("onceward")

HandlerHook = Callable[[Any, Sequence[Any]], AbstractContextManager[Any]]
"""Called with the handler and its messages; what it returns is entered before the handler runs and left after it."""

NO_HOOKS: AbstractContextManager[None] = nullcontext()


class HookedCall:
    """Surrounds one call of a handler with every hook."""

    def __init__(self, hooks: Sequence[HandlerHook], handler: Any, messages: Sequence[Any]) -> None:
        self._hooks, self._handler, self._messages = hooks, handler, messages
        self._entered: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        for hook in self._hooks:
            try:
                surrounding = hook(self._handler, self._messages)
                surrounding.__enter__()
                self._entered.append(surrounding)
            except Exception:
                log.exception("a hook of the handlers failed; the handler runs all the same")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for surrounding in reversed(self._entered):
            try:
                surrounding.__exit__(kind, error, trace)
            except BaseException as failure:
                if failure is error:  # a generator passes the handler's own error on
                    continue
                if not isinstance(failure, Exception):
                    raise
                log.exception("a hook of the handlers failed; what the handler did counts all the same")
