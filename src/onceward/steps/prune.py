"""Prune: bodies go after days, the memory of messages after weeks, in small transactions beside live traffic.

Invariant: what is unfinished, dead, in an open mismatch or under an effect of unknown outcome is never
touched, however old; and the memory of a message counts from when it was finished. That is a condition of the deleting
statement itself, which sees everything that was committed before its rows were locked; and a move that adds a case to a
message locks its ledger row first. So a copy that comes at the same moment is either a duplicate (the row was there)
or a new message (the row is gone), never neither.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from onceward.domain import identity
from onceward.domain.text import long
from onceward.errors import ConfigurationError, RightsMissing, StoreConflict, StoreUnavailable
from onceward.flow import ROLLBACK, Flow, Wait
from onceward.steps.context import Cache, Context, know_names
from onceward.stores.moves.retention import PruneBatch, What

log = logging.getLogger("onceward")

BATCH = 500
PARTITION_TIME = timedelta(days=1)
SHORTEST_PARTITION = timedelta(minutes=15)
TURN_SECONDS = 0.5
"""How long one turn of maintenance works: the thread that does it takes over dead processes, too."""
PARTITION_LOCK_SECONDS = 0.1
"""So long others may have to queue behind the removal of a partition that is in use; then it is tried another time."""
LONGEST_REST = 0.1
_TOLD: set[str] = set()
"""About which tables it was said, in this process, that rights are missing."""


@dataclass(slots=True)
class Pruned:
    """What was removed so far."""

    messages: int = 0
    """Messages that are no longer remembered: a copy of one is a new message from now on."""
    bodies: int = 0
    """Bodies that went one by one."""
    partitions: int = 0
    """Partitions of bodies that went as a whole (PostgreSQL)."""
    runs: int = 0
    blobs: int = 0
    """Blobs that no row referred to (any more)."""


Told = Callable[[Pruned], None]


@dataclass(slots=True)
class PruneProgress:
    """Where the walk through the tables is, so that a turn goes on where the last one stopped."""

    told: Told = field(default=lambda _: None)
    pruned: Pruned = field(default_factory=Pruned)
    walk: int = 0
    """Which table it is in: bodies, messages, runs."""
    after: int = 0
    """Up to which number it has looked."""


def declare_sources(context: Context, cache: Cache) -> Flow[None]:
    """Write down how late sources may redeliver; refuse to go on when ids would be forgotten before that (R31)."""
    sources = context.registry.sources
    yield from know_names(context, cache, sources)
    windows = {name: window.total_seconds() for name, window in sorted(sources.items())}
    latest = yield from context.moves.catalog.declare_sources(windows)
    for name, seconds in latest.items():
        check_window(context, name, timedelta(seconds=seconds))


def declare(context: Context, source: str, window: timedelta) -> None:
    """Remember how late a source may redeliver, to be written down when it is first used; the longest that was said."""
    identity.check_name("source", source)
    if window < timedelta(0):
        raise ConfigurationError(f"source {source!r}: redelivers_for={window} cannot be negative")
    check_window(context, source, window)
    declared = context.registry.sources
    context.registry.declared += source not in declared
    declared[source] = max(window, declared.get(source, window))


def check_window(context: Context, source: str, window: timedelta) -> None:
    """Raise when messages are forgotten before their source has stopped to redeliver them."""
    if context.settings.dedupe_retention < window:
        raise ConfigurationError(
            f"source {source!r} may redeliver for up to {long(window)}, and messages are forgotten after "
            f"{long(context.settings.dedupe_retention)}: a late copy would take effect twice. "
            f"Set Settings(dedupe_retention=...) to {long(window)} or more in every program that uses these tables"
        )


def maintain(context: Context, progress: PruneProgress) -> Flow[int]:
    """Take a turn at maintenance if it is due; one process at a time has it, and it is short."""
    yield from save_uses(context)
    every = context.settings.maintenance
    if every is None:
        return 0
    turn = yield from context.moves.retention.take_turn("prune", every.total_seconds())
    try:
        if turn and not (yield from prune(context, progress, seconds=TURN_SECONDS)):
            yield from context.moves.retention.give_turn("prune")
    except ConfigurationError as error:  # another program has declared a later source since this one started
        log.error("nothing is pruned: %s", error)  # noqa: TRY400 - the traceback says nothing
    return 0  # nothing that a lane should wake up for


def save_uses(context: Context) -> Flow[None]:
    """Write down, once for each handler, whether it has its effects elsewhere: for a doctor in another process."""
    for handler in context.registry:
        is_apart = handler.use.is_apart
        if is_apart is not None and is_apart != handler.use.saved:
            yield from context.moves.catalog.record_use(handler.consumer, handler.type, apart=is_apart)
            handler.use.saved = is_apart


def prune(context: Context, progress: PruneProgress, *, seconds: float | None = None) -> Flow[bool]:
    """Remove what is old, for so many seconds at most; returns whether that was all.

    Without a limit it rests as long as it works, so that live traffic always has its turn.
    """
    latest = yield from context.moves.retention.latest_sources()
    for name, window in latest.items():
        check_window(context, name, timedelta(seconds=window))
    limit = None if seconds is None else context.clock() + seconds
    bodies, ids = (context.settings.body_retention.total_seconds(), context.settings.dedupe_retention.total_seconds())
    try:
        yield from context.moves.retention.rotate_partition(partition_time(context).total_seconds())
        yield from _drop_partitions(context, progress, bodies)
    except RightsMissing as error:  # then bodies go one by one
        yield ROLLBACK
        _say_once(context.prefix, error)
    archive_first = context.settings.archive_first
    walks: tuple[tuple[What, float], ...] = (("bodies", bodies), ("messages", ids), ("runs", ids))
    if archive_first:  # bodies go by way of the archive
        progress.walk = max(progress.walk, 1)
    while progress.walk < len(walks):
        name, keep = walks[progress.walk]
        began = context.clock()
        batch = PruneBatch(name, progress.after, keep, BATCH, archive_first)
        after, gone = yield from context.moves.retention.prune_batch(batch)
        setattr(progress.pruned, name, getattr(progress.pruned, name) + gone)
        progress.walk, progress.after = (progress.walk, after) if after is not None else (progress.walk + 1, 0)
        progress.told(progress.pruned)
        if limit is not None and context.clock() >= limit and progress.walk < len(walks):
            return False
        if limit is None and after is not None:
            yield Wait(min(context.clock() - began, LONGEST_REST))
    yield from context.moves.retention.forget_effects(ids)
    progress.walk = 0
    return True


def _say_once(prefix: str, error: RightsMissing) -> None:
    if prefix not in _TOLD:
        _TOLD.add(prefix)
        log.warning(
            "old bodies are deleted row by row: this role may not make and drop partitions (%s). Let it own %sbody and "
            "its partitions, and create tables in their schema: see Rights in docs/operations.md",
            error,
            prefix,
        )


def partition_time(context: Context) -> timedelta:
    """How long a partition of bodies is used: a day, or less where bodies are kept for hours only."""
    return min(PARTITION_TIME, max(SHORTEST_PARTITION, context.settings.body_retention / 4))


def _drop_partitions(context: Context, progress: PruneProgress, keep: float) -> Flow[None]:
    """Remove whole partitions of old bodies; one that is in use, or has unfinished messages, stays for now."""
    moves, archive_first = context.moves.retention, context.settings.archive_first
    partitions = yield from moves.old_partitions(keep)
    for partition in partitions:
        try:
            dropped = yield from moves.drop_partition(partition, PARTITION_LOCK_SECONDS, archive_first=archive_first)
        except (StoreUnavailable, StoreConflict):
            yield ROLLBACK
            return
        progress.pruned.partitions += dropped
        progress.told(progress.pruned)
