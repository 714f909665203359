"""The transactions of moves: how each begins, and how long its statements may take."""

from __future__ import annotations

from typing import Any

from onceward.flow import COMMIT, Begin, Flow, Request
from onceward.stores.protocol import TimeLimits


class Transactions:
    """Begins the transactions of one inbox."""

    def __init__(self, limits: TimeLimits) -> None:
        self.limits = limits
        self.usual = self.short()
        """The beginning of a transaction of onceward's own statements that find their rows by indexes."""
        self.not_durable = self.short(durable=False)
        """As `usual`, where nothing that outlives a crash of the database relies on it."""

    def short(self, *, durable: bool = True, by_index: bool = True, reads: bool = False) -> Begin:
        """The beginning of a transaction of onceward's own statements only.

        It need not be durable where nothing that outlives a crash of the database relies on it; `by_index` is not for
        reports, which are planned as the database likes.
        """
        statement, lock = self.limits
        return Begin(statement, lock, statement * 2, durable=durable, by_index=by_index, reads=reads)

    def long(self, seconds: float, fence: str, *, savepoint: bool = False) -> Begin:
        """The beginning of a transaction in which a handler runs for up to so many seconds."""
        # The watch over the handler is the first to notice; the server's own limits are for a process that is stuck.
        return Begin(seconds + 5, seconds + 5, seconds + 15, fence, savepoint=savepoint)

    def direct(self, seconds: float, fence: str, *, returns_soon: bool) -> Begin:
        """As `long`, where the handler runs behind a receive: a copy waits for the first one's for `lock_wait`."""
        lock = self.limits.lock
        return Begin(seconds + 5, lock, seconds + 15, fence, writer_limit=lock if returns_soon else None)

    def run(self, *requests: Request, durable: bool = True) -> Flow[tuple[list[Any], ...]]:
        """Send statements in a short transaction of their own; they travel together. Returns the rows of each."""
        answers = yield (self.short(durable=durable), *requests, COMMIT)
        return tuple(answers[1:-1])

    def read(self, *requests: Request, by_index: bool = False) -> Flow[tuple[list[Any], ...]]:
        """As `run`, for what writes nothing; reports are planned as the database likes."""
        answers = yield (self.short(by_index=by_index, reads=True), *requests, COMMIT)
        return tuple(answers[1:-1])
