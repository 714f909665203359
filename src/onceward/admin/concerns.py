"""What needs an operator: the one list that alerts and the dashboard read, the most important first.

Invariant: a concern has a number, and never an id, a key or a payload. It is computed from reports whose cost has
an end, and names the page and the command that show more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from onceward.admin import backlog as backlogs
from onceward.admin import history as histories
from onceward.admin.backlog import Backlog
from onceward.admin.overview import Pause, pauses
from onceward.domain import checks
from onceward.domain.text import count, span
from onceward.flow import Flow
from onceward.steps.context import Context
from onceward.stores.moves.reports import Stats

Kind = Literal[
    "stuck",
    "outbox",
    "dead",
    "blocked",
    "held",
    "effect",
    "mismatch",
    "backlog",
    "failing",
    "failed",
    "slow",
    "unhandled",
    "poll",
    "retention",
]
Tone = Literal["bad", "warn"]

MOST = 200
"""So many blocked keys and unknown outcomes are counted; it is the same concern for more."""
RECENT = timedelta(minutes=15)
"""What the thresholds of a type that are about rates and durations look at."""
FEWEST = 20
"""Fewer messages than this are no rate and no percentile."""


@dataclass(frozen=True, slots=True)
class Help:
    """Where to look, and what to do."""

    tone: Tone
    page: str
    """Of the dashboard."""
    words: str
    """The command that shows more: what comes after `onceward`, but for the inbox."""
    runbook: str

    def command(self, context: Context) -> str:
        """The command that shows more of this inbox, to copy and run."""
        verb, *options = self.words.split(" --")
        return context.hint(verb, *(f"--{option}" for option in options))


HELP: Mapping[Kind, Help] = {
    "stuck": Help("bad", "workers", "run", "no-worker"),
    "outbox": Help("bad", "outbox", "doctor", "unsent"),
    "dead": Help("bad", "dead", "list --status dead", "poison-message"),
    "blocked": Help("bad", "keys", "list --status waiting", "blocked-key"),
    "held": Help("bad", "messages?status=retrying", "list --status retrying", "blocked-key"),
    "effect": Help("bad", "effects", "effects list", "unknown-outcome"),
    "mismatch": Help("warn", "quarantine", "quarantine list", "id-reused"),
    "backlog": Help("warn", "messages?status=due", "history", "backlog"),
    "failing": Help("warn", "messages?status=retrying", "list --status retrying", "poison-message"),
    "failed": Help("warn", "messages?status=retrying", "history --per type", "poison-message"),
    "slow": Help("warn", "types", "history --per type", "backlog"),
    "unhandled": Help("warn", "messages?status=unhandled", "list --status unhandled", "unhandled"),
    "poll": Help("warn", "polls", "status", "poll-fails"),
    "retention": Help("warn", "storage", "doctor", "retention"),
}
"""In the order of importance."""


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that needs an operator."""

    kind: Kind
    number: int
    what: str
    type: str = ""
    """The type of the messages, where a threshold of its own was passed."""

    @property
    def help(self) -> Help:
        """Where to look, and what to do."""
        return HELP[self.kind]


@dataclass(frozen=True, slots=True)
class Threshold:
    """When the messages of one type need an operator. What is None is as for all others, or not looked at."""

    dead: int | None = None
    """From so many dead messages on."""
    backlog: timedelta | None = None
    """When one that may run has waited for so long."""
    failed: float | None = None
    """When more than this share of the attempts of the last 15 minutes failed, such as 0.05."""
    wait: timedelta | None = None
    """When 5 of 100 messages of the last 15 minutes waited longer for their first attempt."""
    run: timedelta | None = None
    """When the handler took longer for 5 of 100 messages of the last 15 minutes."""

    def __post_init__(self) -> None:
        if self.dead is not None:
            checks.whole("Threshold", "dead", self.dead)
        for name in ("backlog", "wait", "run"):
            if getattr(self, name) is not None:
                checks.duration("Threshold", name, getattr(self, name), least=timedelta(0))
        if self.failed is not None:
            checks.number("Threshold", "failed", self.failed, least=0, most=1)


@dataclass(frozen=True, slots=True)
class Limits:
    """What is too much."""

    failures: int = 5
    """A message that has failed this often, and is tried again, is a concern."""
    held: timedelta = timedelta(minutes=10)
    """So is a key in which others have waited behind a failing message for this long."""
    backlog: timedelta = timedelta(minutes=5)
    """A message that may run and has waited for this long is an old backlog."""
    types: Mapping[str, Threshold] = field(default_factory=dict)
    """Other thresholds for some types."""


LIMITS = Limits()


class Standing(NamedTuple):
    """How an inbox is."""

    stats: Stats
    concerns: Sequence[Concern]
    """The most important first; none where it is healthy."""
    pauses: Sequence[Pause] = ()
    """What operators have stopped: it waits until they let it go on."""


def standing(context: Context, limits: Limits = LIMITS) -> Flow[Standing]:
    """The numbers of now, and what needs an operator."""
    stats = yield from context.moves.reports.stats()
    found = yield from _concerns(context, stats, limits)
    return Standing(stats, found, (yield from pauses(context, ended=False)))


def _concerns(context: Context, stats: Stats, limits: Limits) -> Flow[list[Concern]]:
    failing = yield from backlogs.failing(context, limits.failures, limits.held.total_seconds())
    waiting = yield from backlogs.backlog(context, stats)
    found = [
        *_counted(stats, waiting),
        *_old(waiting, limits),
        *(yield from _dead(context, stats, limits)),
        *(yield from _blocked(context, stats)),
        *(yield from _unknown(context)),
        *(yield from _retention(context)),
        *(yield from _of_types(context, limits)),
    ]
    often = f"failed {limits.failures} times or more and {'is' if failing.messages == 1 else 'are'} tried again"
    found.append(Concern("failing", failing.messages, f"{count(failing.messages, 'message')} {often}"))
    behind = f"held for {span(limits.held.total_seconds())} or longer: messages wait behind a failing one"
    found.append(Concern("held", failing.held_keys, f"{count(failing.held_keys, 'key')} {behind}"))
    order = list(HELP)
    return sorted((one for one in found if one.number), key=lambda one: order.index(one.kind))


def _counted(stats: Stats, backlog: Backlog) -> Iterator[Concern]:
    """What the numbers of the inbox say by themselves."""
    waiting = 0 if stats.workers else backlog.due + backlog.retrying
    yield Concern("stuck", waiting, f"{_waits(waiting)}, and no worker is running")
    ids = count(stats.quarantined, "id")
    yield Concern("mismatch", stats.quarantined, f"{ids} came again with other bytes or another type")
    has = "has" if stats.unhandled == 1 else "have"
    yield Concern("unhandled", stats.unhandled, f"{count(stats.unhandled, 'message')} {has} a type without a handler")
    fails = "fails" if stats.polls_failing == 1 else "fail"
    yield Concern("poll", stats.polls_failing, f"{count(stats.polls_failing, 'polled API')} {fails}")


def _waits(number: int) -> str:
    return f"{count(number, 'message')} {'waits' if number == 1 else 'wait'}"


def _dead(context: Context, stats: Stats, limits: Limits) -> Flow[list[Concern]]:
    """Dead messages; those of a type with a threshold of its own from that number on."""
    own = {name: one.dead for name, one in limits.types.items() if one.dead is not None}
    total = stats.dead + stats.outbox_dead
    by_type: Counter[str] = Counter()
    if total and own:
        for group in (yield from context.moves.reports.dead_groups(MOST)):
            by_type[group.type] += group.messages if group.type in own else 0
    others = max(0, total - by_type.total())
    found = [Concern("dead", others, f"{_need(others, 'dead message')} a decision")]
    for name, most in own.items():
        number = by_type[name] if by_type[name] >= most else 0
        found.append(Concern("dead", number, f"{_need(number, 'dead message')} a decision: {name}", name))
    return found


def _need(number: int, noun: str) -> str:
    return f"{count(number, noun)} {'needs' if number == 1 else 'need'}"


def _old(backlog: Backlog, limits: Limits) -> Iterator[Concern]:
    """What has waited for too long: to be handled, by type, or to be sent."""
    unserved, patience = backlog.unserved, limits.backlog.total_seconds()
    late = {one.destination: one.messages for one in unserved if one.destination and one.oldest_seconds >= patience}
    where = ", ".join(sorted(late))
    unsent = f"{_waits(sum(late.values()))} for {where}: no relay with that sink runs, or it cannot publish"
    yield Concern("outbox", sum(late.values()), unsent)
    own = {name: one.backlog for name, one in limits.types.items() if one.backlog is not None}
    if own:
        oldest = max((one.oldest_seconds for one in unserved if not one.destination and one.type not in own), default=0)
        due = sum(one.messages for one in unserved if not one.destination and one.type not in own)
    else:
        oldest, due = backlog.oldest_seconds, backlog.due
    yield Concern("backlog", due if oldest >= patience else 0, f"{_are_due(due)}, the oldest for {span(oldest)}")
    for name, most in own.items():
        of_type = [one for one in unserved if not one.destination and one.type == name]
        due, oldest = sum(one.messages for one in of_type), max((one.oldest_seconds for one in of_type), default=0)
        number = due if oldest >= most.total_seconds() else 0
        yield Concern("backlog", number, f"{_are_due(due)}, the oldest for {span(oldest)}: {name}", name)


def _are_due(number: int) -> str:
    return f"{count(number, 'message')} {'is' if number == 1 else 'are'} due"


def _blocked(context: Context, stats: Stats) -> Flow[list[Concern]]:
    if not stats.dead + stats.outbox_dead + stats.unhandled:
        return []
    blocked = yield from context.moves.reports.blocked_keys(MOST)
    number = sum(1 for key in blocked if key.behind)
    are = "is" if number == 1 else "are"
    what = f"{count(number, 'key')} {are} blocked: messages wait behind a dead or unhandled one"
    return [Concern("blocked", number, what)]


def _unknown(context: Context) -> Flow[list[Concern]]:
    """External calls that were begun so long ago that their handler is gone."""
    begun_before = datetime.now(UTC) - context.settings.handler_timeout
    calls = yield from context.moves.reports.effects(None, MOST)
    number = sum(1 for call in calls if call.started_at < begun_before)
    has = "has" if number == 1 else "have"
    return [Concern("effect", number, f"{count(number, 'external call')} {has} an unknown outcome")]


def _retention(context: Context) -> Flow[list[Concern]]:
    """What would let a late copy take effect again, or the tables grow without end."""
    latest = yield from context.moves.retention.latest_sources()
    kept, every = context.settings.dedupe_retention, context.settings.maintenance
    trouble = [
        f"source {source} may redeliver for longer than ids are remembered"
        for source, seconds in latest.items()
        if timedelta(seconds=seconds) > kept
    ]
    due = yield from context.moves.reports.pruning_due()
    if every and due and datetime.now(UTC) - due > max(timedelta(hours=1), every * 10):
        trouble.append(f"nothing was pruned since {due:%Y-%m-%d %H:%M} UTC")
    return [Concern("retention", len(trouble), "; ".join(trouble))]


def _of_types(context: Context, limits: Limits) -> Flow[list[Concern]]:
    """Types whose messages fail, wait or run too much, as the history of the last minutes has it."""
    wanted = {
        name: one
        for name, one in limits.types.items()
        if one.failed is not None or one.wait is not None or one.run is not None
    }
    if not wanted:
        return []
    asked = histories.wanted({"since": RECENT, "by": "minute", "per": "type"})
    periods = yield from histories.history(context, asked)
    found = []
    for name, threshold in wanted.items():
        recent = histories.together([one for one in periods if one.type == name])
        if recent is not None:
            found += [Concern(kind, number, f"{what}: {name}", name) for kind, number, what in _over(recent, threshold)]
    return found


def _over(recent: histories.Period, threshold: Threshold) -> Iterator[tuple[Kind, int, str]]:
    attempts = recent.done + recent.failed
    if threshold.failed is not None and attempts >= FEWEST and recent.failed > threshold.failed * attempts:
        yield "failed", recent.failed, f"{recent.failed * 100 // attempts} % of {attempts:,} attempts failed"
    for name, most in (("wait", threshold.wait), ("run", threshold.run)):
        durations = getattr(recent, name)
        took = durations.least(95) or 0.0
        if most is not None and durations.count >= FEWEST and took >= most.total_seconds():
            did = "waited" if name == "wait" else "ran"
            yield "slow", durations.count, f"5 of 100 messages {did} for {span(took)} or longer"
