"""Times onceward's own statements in the process that runs it: how long each claim and each receive took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onceward.flow import Each, Query
from onceward.stores.postgres.session import PostgresSession

Laps = list[tuple[str, float, float]]
"""What was asked ("claim", "receive"), when it was answered, and after how many seconds."""


@contextmanager
def watched(*names: str) -> Iterator[Laps]:
    """Note every request in which one of these statements found or wrote something, while the block runs."""
    laps: Laps = []
    perform = PostgresSession.perform

    def timed(self: PostgresSession, request: Any) -> Any:
        started = time.perf_counter()
        answer = perform(self, request)
        ended = time.perf_counter()
        parts, answers = (request, answer) if isinstance(request, tuple) else ((request,), (answer,))
        for part, rows in zip(parts, answers, strict=True):
            if isinstance(part, Query | Each) and part.name in names and rows:
                laps.append((part.name, ended, ended - started))
        return answer

    PostgresSession.perform = timed  # type: ignore[method-assign] # put back below
    try:
        yield laps
    finally:
        PostgresSession.perform = perform  # type: ignore[method-assign]
