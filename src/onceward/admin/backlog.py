"""The backlog: what waits for a worker though no operator wants it to. What is paused on purpose is left out.

Invariant: where nothing is paused, these are the numbers of `stats`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from onceward.admin.overview import pause_among
from onceward.domain.pauses import Pauses
from onceward.flow import Flow
from onceward.registry import OUTBOX
from onceward.steps.context import Context
from onceward.stores.moves.catalog import CatalogRows
from onceward.stores.moves.reports import Failing, Halted, Stats, Unserved


class Backlog(NamedTuple):
    """Messages that wait, without those that are paused."""

    due: int
    oldest_seconds: float
    """How long the oldest of these has waited."""
    retrying: int
    """Messages that are tried again."""
    unserved: Sequence[Unserved]
    """What is due, outgoing messages too, by who should take it."""
    pauses: int
    """How many pauses there are."""


def backlog(context: Context, stats: Stats) -> Flow[Backlog]:
    """What waits, of what the numbers of an inbox count."""
    rows = yield from context.moves.catalog.load_catalog()
    unserved = yield from context.moves.reports.unserved()
    pauses = Pauses([one for one in rows.pauses if one.ended_at is None])
    if not pauses.rows:
        return Backlog(stats.due, stats.oldest_due_seconds, stats.retrying, unserved, 0)
    goes_on = [one for one in unserved if pause_among(pauses, one.consumer, one.type, one.destination) is None]
    mine = [one for one in goes_on if one.consumer != OUTBOX]
    retrying = yield from _failing(context, rows, 0, 0.0)
    oldest = max((one.oldest_seconds for one in mine), default=0.0)
    return Backlog(sum(one.messages for one in mine), oldest, retrying.messages, goes_on, len(pauses.rows))


def now(context: Context) -> Flow[Backlog]:
    """What waits."""
    return (yield from backlog(context, (yield from context.moves.reports.stats())))


def failing(context: Context, times: int, held_seconds: float) -> Flow[Failing]:
    """What keeps failing, and what holds a key by that: without what is paused, which is not tried again."""
    rows = yield from context.moves.catalog.load_catalog()
    return (yield from _failing(context, rows, times, held_seconds))


def _failing(context: Context, rows: CatalogRows, times: int, held_seconds: float) -> Flow[Failing]:
    pauses = Pauses([one for one in rows.pauses if one.ended_at is None])
    if any(one.kind == "everything" for one in pauses.rows):
        return Failing(0, 0)
    halted = Halted(
        frozenset(one.id for one in rows.subscriptions if pauses.handling(one.consumer, one.type) is not None),
        frozenset(one.name for one in pauses.rows if one.kind == "destination"),
    )
    return (yield from context.moves.reports.failing(times, held_seconds, halted))
