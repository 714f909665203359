"""Alerts: for a log, a URL or a function, when an operator is needed; once and not again and again.

Invariant: whatever a hook does, it runs in a thread of its own: no message waits for it and no lease is lost. Of all
processes that run the inbox only one looks, the one that registered first.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time as clock
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, time, timedelta
from typing import Any, Literal, NamedTuple, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from onceward.admin import messages
from onceward.admin.concerns import HELP, Concern, Kind, Limits, Threshold, Tone, standing
from onceward.domain import checks
from onceward.errors import OncewardError
from onceward.flow import Flow
from onceward.runtime.runner import perform
from onceward.steps.context import Context
from onceward.stores.protocol import Store

log = logging.getLogger("onceward")

Key = tuple[Kind, str]
"""A kind, and a type where it is about one."""
T = TypeVar("T")

STUCK = timedelta(minutes=1)
"""Work that may run, while no worker runs any, for this long."""
RUNBOOKS = "docs/runbooks/"
"""Where the runbooks are, in the source of this package."""


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that needs an operator, or no longer does. It has a number and never an id, key or payload."""

    kind: str
    state: Literal["began", "goes on", "over"]
    service: str
    what: str
    number: int
    at: str
    type: str = ""
    """The type of the messages, where a threshold of its own was passed."""
    tone: Tone = "warn"
    """`bad` where messages do not get through; else `warn`."""
    runbook: str = ""
    """What to do."""


Hook = Callable[[Alert], object]


@dataclass(frozen=True, slots=True)
class QuietHours:
    """A time of every day in which only what is urgent is sent; the rest is sent at its end, if it is still so."""

    begin: time
    end: time
    zone: str = "UTC"
    """The name of a time zone, such as `Europe/Berlin`."""
    urgent: Collection[Kind] = ("stuck", "outbox", "dead")
    """What is sent at any hour."""

    def __post_init__(self) -> None:
        for name in ("begin", "end"):
            checks.instance("QuietHours", name, getattr(self, name), time, "a time, such as time(22)")
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, TypeError):
            checks.refuse("QuietHours", "zone", self.zone, "a time zone, such as 'Europe/Berlin'")
        for kind in self.urgent:
            checks.one_of("QuietHours", "urgent", kind, HELP)

    def covers(self, moment: datetime) -> bool:
        """Whether a moment is in it; the end may be on the next day."""
        clock = moment.astimezone(ZoneInfo(self.zone)).time()
        if self.begin <= self.end:
            return self.begin <= clock < self.end
        return clock >= self.begin or clock < self.end


@dataclass(frozen=True, slots=True)
class Rules:
    """When alerts are sent."""

    every: timedelta = timedelta(seconds=15)
    """How often to look."""
    failures: int = 5
    """A message that has failed this often, and is tried again, is an alert."""
    held: timedelta = timedelta(minutes=10)
    """So is a key in which others have waited behind a failing message for this long."""
    backlog: timedelta = timedelta(minutes=5)
    """A message that may run and has waited for this long is an old backlog."""
    quiet: timedelta = timedelta(minutes=5)
    """At least this long between two alerts of a kind, however it comes and goes."""
    again: timedelta = timedelta(hours=1)
    """An alert that goes on is sent again after this long, or when its number has doubled."""
    types: Mapping[str, Threshold] = field(default_factory=dict)
    """Thresholds of some types of messages."""
    quiet_hours: QuietHours | None = None
    """When only what is urgent is sent."""
    runbooks: str = RUNBOOKS
    """What stands before the name of a runbook in an alert: where yours are."""

    def __post_init__(self) -> None:
        checks.duration("Rules", "every", self.every)
        for name in ("held", "backlog", "quiet", "again"):
            checks.duration("Rules", name, getattr(self, name), least=timedelta(0))
        checks.whole("Rules", "failures", self.failures)
        for threshold in self.types.values():
            checks.instance("Rules", "types", threshold, Threshold, "Threshold(...) for each type")
        if self.quiet_hours is not None:
            checks.instance("Rules", "quiet_hours", self.quiet_hours, QuietHours, "QuietHours(...)")

    @property
    def limits(self) -> Limits:
        """What is too much."""
        return Limits(self.failures, self.held, self.backlog, self.types)


@dataclass(slots=True)
class _Told:
    """What was last sent about a kind."""

    at: float = float("-inf")
    number: int = 0
    firing: bool = False


def log_hook(alert: Alert) -> None:
    """Log the alert; the hook where none is given."""
    level = logging.INFO if alert.state == "over" else logging.ERROR
    log.log(level, "%s: %s (%s)", alert.service, alert.what, alert.state, extra={"onceward": {"alert": asdict(alert)}})


class Tested(NamedTuple):
    """What became of a test of a hook."""

    hook: str
    error: str
    """Why it failed; empty where it did not."""


class Alerts:
    """Looks at an inbox now and then, and sends alerts."""

    def __init__(self, context: Context, store: Store, hooks: Sequence[Hook], rules: Rules) -> None:
        self._context, self._store = context, store
        self._hooks, self.rules = hooks or (log_hook,), rules
        self._told: dict[Key, _Told] = {}
        self._unserved_since: float | None = None
        self._stopping = threading.Event()

    @contextmanager
    def during(self) -> Iterator[None]:
        """Look, in a thread, while the block runs; a hook that is still running at its end is not waited for long."""
        self._stopping.clear()
        thread = threading.Thread(target=self._run, name="onceward-alerts", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join(5)

    def _run(self) -> None:
        while not self._stopping.wait(self.rules.every.total_seconds()):
            try:
                if self._leads():
                    self.look()
            except OncewardError as error:
                log.warning("the inbox could not be looked at for alerts, trying again: %s", error)
            except Exception:
                log.exception("looking for alerts failed with an unexpected error; it is tried again")

    def _read(self, step: Callable[..., Flow[T]], **options: Any) -> T:
        return perform(self._store, lambda: step(self._context, **options))

    def _leads(self) -> bool:
        alive = [worker for worker in self._read(messages.workers) if worker.lease_seconds > 0]
        return not alive or (alive[0].pid, alive[0].host) == (os.getpid(), socket.gethostname())

    def look(self, now: float | None = None, at: datetime | None = None) -> list[Alert]:
        """Look once, send the alerts that are due, and return them."""
        now = clock.monotonic() if now is None else now
        at = at or datetime.now(UTC)
        now_here = self._read(standing, limits=self.rules.limits)
        found = {(one.kind, one.type): one for one in now_here.concerns}
        if not self._is_stuck(("stuck", "") in found, now):
            found.pop(("stuck", ""), None)
        alerts = []
        for key in {**dict.fromkeys(found), **dict.fromkeys(self._told)}:
            alert = None if self._is_quiet(key[0], at) else self._decided(key, found.get(key), now, at)
            if alert is not None:
                alerts.append(alert)
                self._tell(alert)
        return alerts

    def test(self) -> list[Tested]:
        """Send an alert that says it is a test to each hook; returns which of them failed, and why."""
        what = "This is a test: no message is concerned"
        alert = Alert("test", "began", self._context.service, what, 0, datetime.now(UTC).isoformat())
        tested = []
        for hook in self._hooks:
            name, error = getattr(hook, "__name__", type(hook).__name__), ""
            try:
                hook(alert)
            except Exception as failure:  # noqa: BLE001 - it is returned
                error = f"{type(failure).__name__}: {failure}"
            tested.append(Tested(name, error))
        return tested

    def _is_stuck(self, unserved: bool, now: float) -> bool:  # noqa: FBT001 - one fact
        """Whether work has waited without a worker for too long."""
        self._unserved_since = (self._unserved_since or now) if unserved else None
        return unserved and now - (self._unserved_since or now) >= STUCK.total_seconds()

    def _is_quiet(self, kind: Kind, at: datetime) -> bool:
        hours = self.rules.quiet_hours
        return hours is not None and kind not in hours.urgent and hours.covers(at)

    def _decided(self, key: Key, concern: Concern | None, now: float, at: datetime) -> Alert | None:
        told = self._told.setdefault(key, _Told())
        (kind, of_type), since = key, now - told.at
        number, what = (
            (concern.number, f"{concern.what}: {HELP[kind].command(self._context)}")
            if concern
            else (0, f"{kind}: over")
        )
        state: Literal["began", "goes on", "over"]
        if number and not told.firing and since >= self.rules.quiet.total_seconds():
            state = "began"
        elif number and told.firing and self._is_worth_repeating(told, number, since):
            state = "goes on"
        elif not number and told.firing:
            state = "over"
        else:
            return None
        # The end of one is told at once and does not count: what begins anew soon after is kept quiet for a while.
        self._told[key] = _Told(told.at if state == "over" else now, number, firing=state != "over")
        runbook = f"{self.rules.runbooks}{HELP[kind].runbook}.md"
        return Alert(
            kind, state, self._context.service, what, number, at.isoformat(), of_type, HELP[kind].tone, runbook
        )

    def _is_worth_repeating(self, told: _Told, number: int, since: float) -> bool:
        doubled = number >= 2 * told.number and since >= self.rules.quiet.total_seconds()
        return doubled or since >= self.rules.again.total_seconds()

    def _tell(self, alert: Alert) -> None:
        for hook in self._hooks:
            try:
                hook(alert)
            except Exception:
                log.exception("a hook of inbox.admin.alert() failed; the alert was %s (%s)", alert.kind, alert.state)
