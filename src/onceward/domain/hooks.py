"""Watchers: told when a handler runs, for spans, metrics and the like.

Invariant: a watcher can neither fail a message nor save one: what it raises is logged, what it returns is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

log = logging.getLogger("onceward")

Watcher = Callable[[Any, Sequence[Any]], AbstractContextManager[Any]]
"""Called with the handler and its messages; what it returns is entered before the handler runs and left after it."""

UNWATCHED: AbstractContextManager[None] = nullcontext()


class Watched:
    """Surrounds one call of a handler with everybody who watches."""

    def __init__(self, watchers: Sequence[Watcher], handler: Any, messages: Sequence[Any]) -> None:
        self._watchers, self._handler, self._messages = watchers, handler, messages
        self._entered: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        for watcher in self._watchers:
            try:
                surrounding = watcher(self._handler, self._messages)
                surrounding.__enter__()
                self._entered.append(surrounding)
            except Exception:
                log.exception("a watcher of handlers failed; the handler runs all the same")

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
                log.exception("a watcher of handlers failed; what the handler did counts all the same")
