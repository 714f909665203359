"""Alerts: tells a log, a URL or a function when something needs a person, once and not again and again.

Invariant: whatever a hook does, it runs in a thread of its own: no message waits for it and no lease is lost. Of all
processes that run the inbox only one looks, the one that registered first.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

from onceward.admin import messages, overview
from onceward.domain import checks, identity
from onceward.domain.text import count, span
from onceward.errors import OncewardError
from onceward.flow import Flow, Query
from onceward.message import NO_HEADERS, Message
from onceward.runtime.runner import perform
from onceward.steps.context import Context, look
from onceward.stores.protocol import Store

log = logging.getLogger("onceward")

Kind = Literal[
    "dead", "failing", "held", "mismatch", "unhandled", "stuck", "blocked", "backlog", "outbox", "retention", "effect"
]
T = TypeVar("T")

MOST = 200
"""So many blocked keys and unknown outcomes are counted; it is the same alert for more."""
STUCK = timedelta(minutes=1)
"""Work that may run, while nobody runs anything, for this long."""


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that needs a person, or does not any more. Says how many, never which: no id, key or payload."""

    kind: Kind
    state: Literal["began", "goes on", "over"]
    service: str
    what: str
    number: int
    at: str


Hook = Callable[[Alert], object]


@dataclass(frozen=True, slots=True)
class Rules:
    """When to tell."""

    every: timedelta = timedelta(seconds=15)
    """How often to look."""
    failures: int = 5
    """A message that has failed this often, and is tried again, is told."""
    held: timedelta = timedelta(minutes=10)
    """So is a key in which others have waited behind a failing message for this long."""
    backlog: timedelta = timedelta(minutes=5)
    """A message that may run and has waited for this long is an old backlog."""
    quiet: timedelta = timedelta(minutes=5)
    """At least this long between two alerts of a kind, however it comes and goes."""
    again: timedelta = timedelta(hours=1)
    """An alert that goes on is told again after this long, or when its number has doubled."""

    def __post_init__(self) -> None:
        checks.duration("Rules", "every", self.every)
        for name in ("held", "backlog", "quiet", "again"):
            checks.duration("Rules", name, getattr(self, name), least=timedelta(0))
        checks.whole("Rules", "failures", self.failures)


@dataclass(slots=True)
class _Told:
    """What was last said about a kind."""

    at: float = float("-inf")
    number: int = 0
    firing: bool = False


def log_hook(alert: Alert) -> None:
    """Tell the log; the hook where none is given."""
    level = logging.INFO if alert.state == "over" else logging.ERROR
    log.log(level, "%s: %s (%s)", alert.service, alert.what, alert.state, extra={"onceward": {"alert": asdict(alert)}})


def http_hook(url: str, *, secrets: Sequence[str], allow_private: bool = False) -> Hook:
    """Tell a URL: POSTs the alert as JSON, signed after Standard Webhooks, to a checked address."""
    from onceward.sinks.http import HttpSink  # noqa: PLC0415 - its package is an extra

    sink = HttpSink(url, secrets=secrets, allow_private=allow_private)

    def tell(alert: Alert) -> None:
        sink.publish(
            Message(
                id=f"alert_{identity.new_id()}",
                source="onceward",
                type=f"onceward.alert.{alert.kind}",
                version=1,
                data=None,
                body=json.dumps(asdict(alert)).encode(),
                headers=NO_HEADERS,
                key=None,
                seq=0,
                attempt=1,
                received_at=datetime.now(UTC),
                consumer="",
            )
        )

    return tell


class Alerts:
    """Looks at an inbox now and then, and tells."""

    def __init__(self, context: Context, store: Store, hooks: Sequence[Hook], rules: Rules) -> None:
        self._context, self._store = context, store
        self._hooks, self._rules = hooks or (log_hook,), rules
        self._told: dict[Kind, _Told] = {}
        self._unserved_since: float | None = None
        self._stopping = threading.Event()

    @contextmanager
    def during(self) -> Iterator[None]:
        """Look, in a thread, while the block runs; a hook that is telling at its end is not waited for long."""
        self._stopping.clear()
        thread = threading.Thread(target=self._run, name="onceward-alerts", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join(5)

    def _run(self) -> None:
        while not self._stopping.wait(self._rules.every.total_seconds()):
            try:
                if self._leads():
                    self.look()
            except OncewardError as error:
                log.warning("alerts could not look at the inbox: %s", error)
            except Exception:
                log.exception("looking for alerts failed; it will be tried again")

    def _read(self, step: Callable[..., Flow[T]], *requests: Query, **options: Any) -> T:
        return perform(self._store, lambda: step(self._context, *requests, **options))

    def _leads(self) -> bool:
        alive = [worker for worker in self._read(messages.workers) if worker.lease_seconds > 0]
        return not alive or (alive[0].pid, alive[0].host) == (os.getpid(), socket.gethostname())

    def look(self, now: float | None = None) -> list[Alert]:
        """Look once, and tell what is to be told; answers it."""
        now = time.monotonic() if now is None else now
        found = {kind: (number, what) for kind, number, what in self._conditions(now) if number}
        alerts = []
        for kind in {**dict.fromkeys(found), **dict.fromkeys(self._told)}:
            number, what = found.get(kind, (0, ""))
            alert = self._decided(kind, number, what, now)
            if alert is not None:
                alerts.append(alert)
                self._tell(alert)
        return alerts

    def _decided(self, kind: Kind, number: int, what: str, now: float) -> Alert | None:
        told = self._told.setdefault(kind, _Told())
        since = now - told.at
        state: Literal["began", "goes on", "over"]
        if number and not told.firing and since >= self._rules.quiet.total_seconds():
            state = "began"
        elif number and told.firing and self._is_worth_repeating(told, number, since):
            state = "goes on"
        elif not number and told.firing:
            state, what = "over", f"{kind}: over"
        else:
            return None
        # The end of one is told at once and does not count: what begins anew soon after is kept quiet for a while.
        self._told[kind] = _Told(told.at if state == "over" else now, number, firing=state != "over")
        return Alert(kind, state, self._context.service, what, number, datetime.now(UTC).isoformat())

    def _is_worth_repeating(self, told: _Told, number: int, since: float) -> bool:
        doubled = number >= 2 * told.number and since >= self._rules.quiet.total_seconds()
        return doubled or since >= self._rules.again.total_seconds()

    def _tell(self, alert: Alert) -> None:
        for hook in self._hooks:
            try:
                hook(alert)
            except Exception:
                log.exception("an alert hook failed; the alert was %s (%s)", alert.kind, alert.state)

    def _conditions(self, now: float) -> Iterator[tuple[Kind, int, str]]:
        stats = self._read(messages.stats)
        dead = stats.dead + stats.outbox_dead
        yield "dead", dead, f"{dead} dead messages need a person: onceward list --status dead"
        rules = self._rules
        failing = self._read(overview.failing, times=rules.failures, held_for=rules.held)
        often = f"{rules.failures} times or more and tried again: onceward list --status retrying"
        yield "failing", failing.messages, f"{count(failing.messages, 'message')} failed {often}"
        behind = f"{span(rules.held.total_seconds())} or longer: messages wait behind a failing one"
        yield "held", failing.held_keys, f"{count(failing.held_keys, 'key')} held for {behind}"
        yield (
            "mismatch",
            stats.quarantined,
            f"{stats.quarantined} ids came again with other bytes or another type: onceward quarantine",
        )
        yield "unhandled", stats.unhandled, f"{stats.unhandled} messages are of a type that nobody handles"
        unserved = stats.due + stats.retrying if not stats.workers else 0
        self._unserved_since = (self._unserved_since or now) if unserved else None
        stuck = unserved if unserved and now - (self._unserved_since or now) >= STUCK.total_seconds() else 0
        yield "stuck", stuck, f"{stuck} messages wait, and no worker is running"
        blocked = sum(1 for key in self._read(overview.blocked_keys, limit=MOST) if key.behind)
        yield (
            "blocked",
            blocked,
            f"{blocked} keys are blocked: messages wait behind a dead or unhandled one",
        )
        old = stats.due if stats.oldest_due_seconds >= rules.backlog.total_seconds() else 0
        yield "backlog", old, f"{old} messages are due, the oldest for {stats.oldest_due_seconds:.0f} s"
        unsent, where = self._unsent()
        yield "outbox", unsent, f"{unsent} messages to {where} wait: no relay with that sink runs, or it cannot publish"
        trouble = list(self._retention())
        yield "retention", len(trouble), "; ".join(trouble)
        begun_before = datetime.now(UTC) - self._context.settings.handler_timeout
        unknown = sum(1 for effect in self._read(messages.effects, limit=MOST) if effect.started_at < begun_before)
        yield "effect", unknown, f"{unknown} external calls have an unknown outcome: onceward effects list"

    def _unsent(self) -> tuple[int, str]:
        """How many messages wait for a destination to which nothing old was published for too long, and for which."""
        (rows,) = self._read(look, Query("unserved"))
        patience = self._rules.backlog.total_seconds()
        late = {row[2]: row[3] for row in rows if row[2] is not None and row[4] >= patience}
        return sum(late.values()), ", ".join(sorted(late))

    def _retention(self) -> Iterator[str]:
        """What would let a late copy take effect again, or the tables grow without end."""
        settings = self._context.settings
        (rows,) = self._read(look, Query("latest_source"))
        for source, seconds in rows:
            if timedelta(seconds=seconds) > settings.dedupe_retention:
                yield f"source {source} redelivers for longer than ids are remembered"
        due = self._read(overview.storage).upkeep_due_at
        every = settings.upkeep
        if every and due and datetime.now(UTC) - due > max(timedelta(hours=1), every * 10):
            yield f"nothing was pruned since {due:%Y-%m-%d %H:%M} UTC"
