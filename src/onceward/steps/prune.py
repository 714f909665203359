"""Prune: bodies go after days, the memory of messages after weeks, in small transactions beside live traffic.

Invariant: what is unfinished, dead, in an open case of quarantine or under an effect of unknown outcome is never
touched, however old; and the memory of a message counts from when it was finished. That is a condition of the deleting
statement itself, which sees everything that was committed before its rows were locked; and whoever adds a case to a
message locks its ledger row first. So a copy that comes at the same moment is either a duplicate (the row was there)
or a new message (the row is gone), never neither.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from onceward.domain import identity
from onceward.errors import ConfigurationError, RightsMissing, StoreConflict, StoreUnavailable
from onceward.flow import COMMIT, ROLLBACK, Begin, Flow, Query, Wait
from onceward.steps.context import Cache, Context, know_names, once

log = logging.getLogger("onceward")

BATCH = 500
PAGE_TIME = timedelta(days=1)
SHORTEST_PAGE = timedelta(minutes=15)
TURN_SECONDS = 0.5
"""How long one turn of upkeep works: the thread that does it takes over dead processes, too."""
PAGE_LOCK_SECONDS = 0.1
"""So long others may have to queue behind the removal of a page that is in use; then it is tried another time."""
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
    pages: int = 0
    """Pages of bodies that went as a whole (PostgreSQL)."""
    runs: int = 0
    blobs: int = 0
    """Blobs that nobody referred to (any more)."""


Told = Callable[[Pruned], None]


@dataclass(slots=True)
class Sweep:
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
    requests = [
        Query("declare_source", {"name": name, "seconds": window.total_seconds()})
        for name, window in sorted(sources.items())
    ]
    *_, latest = yield from once(context, *requests, Query("latest_source"))
    for name, seconds in latest:
        check_window(context, name, timedelta(seconds=seconds))


def declare(context: Context, source: str, window: timedelta) -> None:
    """Note how late a source may redeliver, to be written down when it is first used; the longest that was said."""
    identity.check_name("source", source)
    if window < timedelta(0):
        raise ConfigurationError(f"source {source!r}: redelivers_for={window} cannot be negative")
    check_window(context, source, window)
    noted = context.registry.sources
    noted[source] = max(window, noted.get(source, window))


def check_window(context: Context, source: str, window: timedelta) -> None:
    """Raise when messages are forgotten before their source has stopped to redeliver them."""
    if context.settings.dedupe_retention < window:
        raise ConfigurationError(
            f"source {source!r} redelivers for up to {window}, and messages are forgotten after "
            f"{context.settings.dedupe_retention}: a late copy would take effect twice. "
            f"Set Settings(dedupe_retention=...) to {window} or more in every program that uses these tables"
        )


def upkeep(context: Context, sweep: Sweep) -> Flow[int]:
    """Take a turn at upkeep if it is due; one process at a time has it, and it is short."""
    yield from save_uses(context)
    every = context.settings.upkeep
    if every is None:
        return 0
    (turn,) = yield from once(context, Query("take_turn", {"task": "prune", "every": every.total_seconds()}))
    try:
        if turn and not (yield from prune(context, sweep, seconds=TURN_SECONDS)):
            yield from once(context, Query("give_turn", {"task": "prune"}))
    except ConfigurationError as error:  # another program has declared a later source since this one started
        log.error("nothing is pruned: %s", error)  # noqa: TRY400 - the traceback says nothing
    return 0  # nothing that a lane should wake up for


def save_uses(context: Context) -> Flow[None]:
    """Write down, once for each handler, whether it has its effects elsewhere: for a doctor in another process."""
    for handler in context.registry:
        is_apart = handler.use.is_apart
        if is_apart is not None and is_apart != handler.use.saved:
            which = {"consumer": handler.consumer, "type": handler.type, "apart": is_apart}
            yield from once(context, Query("note_use", which))
            handler.use.saved = is_apart


def prune(context: Context, sweep: Sweep, *, seconds: float | None = None) -> Flow[bool]:
    """Remove what is old, for so many seconds at most; answers whether that was all.

    Without a limit it rests as long as it works, so that live traffic always has its turn.
    """
    (latest,) = yield from once(context, Query("latest_source"))
    for name, window in latest:
        check_window(context, name, timedelta(seconds=window))
    limit = None if seconds is None else context.clock() + seconds
    bodies, ids = (context.settings.body_retention.total_seconds(), context.settings.dedupe_retention.total_seconds())
    try:
        yield from once(context, Query("turn_page", {"seconds": page_time(context).total_seconds()}))
        yield from _drop_pages(context, sweep, bodies)
    except RightsMissing as error:  # then bodies go one by one
        yield ROLLBACK
        _say_once(context.prefix, error)
    walks = (
        ("bodies", partial(_walk, context, "next_bodies", "drop_bodies", bodies)),
        ("messages", partial(_walk, context, "next_ledger", "forget_messages", ids)),
        ("runs", partial(_walk, context, "next_runs", "forget_runs", ids)),
    )
    if context.settings.archive_first:  # bodies go by way of the archive
        sweep.walk = max(sweep.walk, 1)
    while sweep.walk < len(walks):
        name, walk = walks[sweep.walk]
        began = context.clock()
        after, gone = yield from walk(sweep.after)
        setattr(sweep.pruned, name, getattr(sweep.pruned, name) + gone)
        sweep.walk, sweep.after = (sweep.walk, after) if after is not None else (sweep.walk + 1, 0)
        sweep.told(sweep.pruned)
        if limit is not None and context.clock() >= limit and sweep.walk < len(walks):
            return False
        if limit is None and after is not None:
            yield Wait(min(context.clock() - began, LONGEST_REST))
    yield from once(context, Query("forget_effects", {"keep": ids}))
    sweep.walk = 0
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


def page_time(context: Context) -> timedelta:
    """How long a page of bodies is used: a day, or less where bodies are kept for hours only."""
    return min(PAGE_TIME, max(SHORTEST_PAGE, context.settings.body_retention / 4))


def _drop_pages(context: Context, sweep: Sweep, keep: float) -> Flow[None]:
    """Remove whole pages of old bodies; one that is in use, or has unfinished messages, stays for now."""
    (pages,) = yield from once(context, Query("old_pages", {"keep": keep}))
    statement = context.settings.statement_limit.total_seconds()
    for (page,) in pages:
        try:
            yield Begin(statement, PAGE_LOCK_SECONDS, statement, by_index=True)
            rows = yield Query("drop_page", {"page": page, "archive_first": context.settings.archive_first})
            yield COMMIT
        except (StoreUnavailable, StoreConflict):
            yield ROLLBACK
            return
        sweep.pruned.pages += bool(rows and rows[0][0])
        sweep.told(sweep.pruned)


def _removal(context: Context, statement: str, numbers: list[int], keep: float) -> Query:
    if statement != "forget_messages":
        return Query(statement, {"seqs": numbers})
    # What came long ago may have been finished only now: that is looked for in the range of the batch.
    batch = {"seqs": numbers, "lowest": min(numbers), "highest": max(numbers)}
    return Query(statement, {**batch, "keep": keep, "archive_first": context.settings.archive_first})


def _walk(context: Context, look: str, remove: str, keep: float, after: int) -> Flow[tuple[int | None, int]]:
    """One batch: what is old among the next rows goes. Answers where to go on (None at the end), and how many went."""
    yield context.short()
    rows: list[Any] = yield Query(look, {"after": after, "keep": keep, "limit": BATCH})
    old = [number for number, is_old in rows if is_old]
    gone: list[Any] = []
    if old and remove != "forget_runs":
        locked = yield Query("lock_ledger", {"seqs": old})
        old = [number for (number,) in locked]
    if old:
        gone = yield _removal(context, remove, old, keep)
    yield COMMIT
    at_end = len(rows) < BATCH or not any(is_old for _, is_old in rows)
    return (None if at_end else rows[-1][0]), len(gone)
