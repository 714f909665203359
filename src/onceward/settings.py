"""The numbers that steer onceward, with the reason for each default."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from onceward.domain import checks
from onceward.domain.text import long
from onceward.errors import ConfigurationError
from onceward.retry import POLICY, RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Timings and sizes; the defaults suit a service on one database."""

    lease: timedelta = timedelta(seconds=15)
    """How long a silent worker keeps its messages. Renewed every third of it."""
    poll: timedelta = timedelta(seconds=1)
    """How often an idle worker looks for messages; notifications make it look at once. What becomes due by time alone
    (a repetition, a message with a time, an open circuit, a number that is waited for) is found by looking, so it may
    be late by as much; so may what other processes do, on stores that have no notifications for it."""
    lock_wait: timedelta = timedelta(seconds=2)
    """How long a message waits for another copy of it that is being stored or processed right now."""
    statement_limit: timedelta = timedelta(seconds=10)
    """The longest any of onceward's own statements may take."""
    handler_timeout: timedelta = timedelta(seconds=60)
    """How long a handler may run, unless its `timeout=` is set."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How a failing message is tried again, unless its handler's `retry=` is set: for about two days."""
    group: int = 100
    """How many messages share a transaction under backlog. 100 is the knee: 1000 was no faster."""
    group_time: timedelta = timedelta(milliseconds=20)
    """After this much handler time a group is committed, so that transactions stay short."""
    direct_time: timedelta = timedelta(milliseconds=200)
    """After this much time the rest of a direct batch is queued; on SQLite, which has one writer, after a quarter of
    it."""
    claim_time: timedelta = timedelta(milliseconds=200)
    """How much handler time, as measured, a worker's lane claims at a time, so that no other idles meanwhile."""
    crash_limit: int = 3
    """After how many crashes alone a message is dead."""
    store_first_for: timedelta = timedelta(minutes=10)
    """How long inline processing stores first after a process died while working inline."""
    pool: int = 16
    """How many connections to PostgreSQL the calls of a process share: `receive`, `process`, `send`, reports. What more
    calls than that do at once waits for one; `process` has one for as long as its handler runs. What handlers call
    themselves has half as many of its own."""
    pipelining: bool = True
    """Whether onceward's own statements travel to PostgreSQL together, in one packet. False sends them one by one
    through psycopg's cursors, for a proxy that knows no pipelines: more round trips and processor time."""
    stop_timeout: timedelta = timedelta(seconds=30)
    """How long a graceful stop waits for running handlers."""

    body_retention: timedelta = timedelta(days=7)
    """How long bodies of finished messages are kept: for looking back and for replay."""
    dedupe_retention: timedelta = timedelta(days=30)
    """How long a message is remembered after it was finished: in this time a copy of it never takes effect again."""
    maintenance: timedelta | None = timedelta(minutes=1)
    """How often one of the running workers looks for what is old enough to go; None leaves it to `onceward prune`."""

    history: bool = True
    """Whether what happens is counted, by minute, hour and day: for `onceward history`, the dashboard and metrics."""

    archive_first: bool = False
    """Bodies go only through `inbox.retention.archive(folder)`, and messages only after their bodies."""

    def __post_init__(self) -> None:
        where, second = "Settings", timedelta(seconds=1)
        checks.duration(where, "lease", self.lease, least=second)  # below it a busy machine loses its own messages
        for name in ("poll", "lock_wait", "claim_time", "statement_limit", "handler_timeout", "stop_timeout"):
            checks.duration(where, name, getattr(self, name))
        for name in ("group_time", "direct_time", "store_first_for", "body_retention", "dedupe_retention"):
            checks.duration(where, name, getattr(self, name), least=timedelta(0))
        for name in ("group", "crash_limit", "pool"):
            checks.whole(where, name, getattr(self, name))
        checks.instance(where, "retry", self.retry, RetryPolicy, POLICY)
        for name in ("history", "archive_first", "pipelining"):
            checks.flag(where, name, getattr(self, name))
        if self.maintenance is not None:
            checks.duration(where, "maintenance", self.maintenance, least=second)
        body, remembered = self.body_retention, self.dedupe_retention
        if body > remembered:
            raise ConfigurationError(
                f"Settings: body_retention={long(body)} is longer than dedupe_retention={long(remembered)}. A body "
                "cannot be kept longer than its message is remembered: raise dedupe_retention"
            )


def check_parts(settings: Any, code_version: Any, *, blobs: Any, blob_above: Any, **folders: Any) -> None:
    """Refuse what an `Inbox` cannot be made of."""
    if settings is not None:
        checks.instance("Inbox", "settings", settings, Settings, "Settings(...)")
    if code_version is not None:
        checks.text("Inbox", "code_version", code_version, empty=True)
    if blobs is not None:
        checks.text("Inbox", "blobs", blobs)
    checks.whole("Inbox", "blob_above", blob_above, least=0)
    for name, folder in folders.items():
        if folder is not None:
            checks.path("Inbox", name, folder)
