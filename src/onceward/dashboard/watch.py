"""What every page shows: how an inbox is, and its history; read once for all pages that are open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from onceward.admin.concerns import Standing, standing
from onceward.admin.history import RANGES, Period, together_by
from onceward.errors import OncewardError
from onceward.inbox import Inbox
from onceward.runtime.runner import perform

T = TypeVar("T")

STANDING_FOR = 2.0
"""For so many seconds what was asked for is shown to all."""
HISTORY_FOR = {"hour": 5.0, "day": 30.0, "week": 60.0, "quarter": 60.0}
"""The longer a range, the less of it changes; processes write their counts every 10 seconds."""


class Watch:
    """What is known of one inbox; asked for when a page is opened, so nothing runs without one."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._kept: dict[str, _Known] = {}
        self._locks = {what: threading.Lock() for what in ("standing", "sources", *RANGES)}

    def standing(self, *, fresh: bool = False) -> Standing:
        """The numbers, and what needs an operator."""
        ask = lambda: perform(self.inbox.store, lambda: standing(self.inbox.context))  # noqa: E731 - short
        return self._asked("standing", 0.0 if fresh else STANDING_FOR, ask)

    def history(self, reach: str) -> Sequence[Period]:
        """The history of a range, by type."""
        if "history" not in self.inbox.store.capabilities:
            return []
        since, by = RANGES[reach]
        return self._asked(reach, HISTORY_FOR[reach], lambda: self.inbox.admin.history(since=since, by=by, per="type"))

    def by_source(self) -> Mapping[str, Period]:
        """What happened in a quarter, source by source."""
        if "history" not in self.inbox.store.capabilities:
            return {}
        since, by = RANGES["quarter"]

        def ask() -> Mapping[str, Period]:
            return together_by(self.inbox.admin.history(since=since, by=by, per="source"), lambda one: one.source)

        return self._asked("sources", HISTORY_FOR["quarter"], ask)

    def forget(self) -> None:
        """Something was changed: what is known may be old."""
        with self._locks["standing"]:
            self._kept.pop("standing", None)

    def _asked(self, what: str, seconds: float, ask: Callable[[], T]) -> T:
        """What is known, if it is new enough or was asked for while this one waited; a failure is kept, too."""
        came = time.monotonic()
        with self._locks[what]:
            known, now = self._kept.get(what), time.monotonic()
            for_seconds = STANDING_FOR if known and known.error else seconds
            if known is None or (known.at < came and now - known.at >= for_seconds):
                known = self._kept[what] = _known(now, ask)
        found: T = known.read()
        return found


class _Known(NamedTuple):
    """What was asked for, and when."""

    at: float
    found: Any
    error: OncewardError | None

    def read(self) -> Any:
        """What was found, or the error."""
        if self.error is not None:
            raise self.error
        return self.found


def _known(began: float, ask: Callable[[], Any]) -> _Known:
    try:
        return _Known(began, ask(), None)
    except OncewardError as error:
        return _Known(began, None, error)
