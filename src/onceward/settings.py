"""The numbers that steer onceward, with the reason for each default."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from onceward.errors import ConfigurationError
from onceward.retry import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Timings and sizes; the defaults suit a service on one database."""

    lease: timedelta = timedelta(seconds=15)
    """How long a silent worker keeps its messages. Renewed every third of it."""
    poll: timedelta = timedelta(seconds=1)
    """How often an idle worker looks by itself; notifications make it look at once."""
    lock_wait: timedelta = timedelta(seconds=2)
    """How long receiving waits for another copy of the same message that is being stored right now."""
    statement_limit: timedelta = timedelta(seconds=10)
    """The longest any of onceward's own statements may take."""
    handler_timeout: timedelta = timedelta(seconds=60)
    """How long a handler may run, unless its `timeout=` says otherwise."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How a failing message is tried again, unless its handler's `retry=` says otherwise: for about two days."""
    group: int = 100
    """How many messages share a transaction under backlog. 100 is the knee: 1000 was no faster."""
    group_time: timedelta = timedelta(milliseconds=20)
    """After this much handler time a group is committed, so that transactions stay short."""
    crash_limit: int = 3
    """After how many crashes alone a message is dead."""
    careful: timedelta = timedelta(minutes=10)
    """How long inline processing stores first after a process died while working inline."""
    pool: int = 16
    """How many connections to PostgreSQL the calls of a process share: `receive`, `process`, `send`, reports. What more
    calls than that do at once waits for one."""
    stop_timeout: timedelta = timedelta(seconds=30)
    """How long a graceful stop waits for running handlers."""

    body_retention: timedelta = timedelta(days=7)
    """How long bodies of finished messages are kept: for looking back and for replay."""
    dedupe_retention: timedelta = timedelta(days=30)
    """How long a message is remembered after it was finished: in this time a copy of it never takes effect again."""
    upkeep: timedelta | None = timedelta(minutes=1)
    """How often one of the running workers looks for what is old enough to go; None leaves it to `onceward prune`."""

    archive_first: bool = False
    """Bodies go only through `inbox.archive(folder)`, and messages only after their bodies."""

    def __post_init__(self) -> None:
        if self.lease < timedelta(seconds=1):
            raise ConfigurationError(f"lease={self.lease}: below one second a busy machine loses its own messages")
        if self.group < 1 or self.crash_limit < 1:
            raise ConfigurationError("group and crash_limit must be at least 1")
        if self.pool < 1:
            raise ConfigurationError(f"pool={self.pool}: calls need at least 1 connection")
        if self.body_retention > self.dedupe_retention:
            raise ConfigurationError(
                f"body_retention={self.body_retention} is longer than dedupe_retention={self.dedupe_retention}: a body "
                "cannot be kept longer than the message is remembered; raise dedupe_retention"
            )
        if self.body_retention < timedelta(0) or (self.upkeep is not None and self.upkeep < timedelta(seconds=1)):
            raise ConfigurationError("body_retention cannot be negative, and upkeep is at least one second, or None")
