"""What a person sees: numbers, lists, one message in detail. Nothing here changes anything.

The half of `inbox.admin` that only reads. Each method is one step of `admin/messages.py`, `admin/overview.py` or
`admin/history.py`, and has an awaited form for ASGI applications: `inbox.admin.astats()`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Unpack

from onceward.admin import backlog as backlogs
from onceward.admin import concerns, decisions, dry_run, overview, revisions, timeline
from onceward.admin import handlers as handling
from onceward.admin import history as histories
from onceward.admin import messages as reports
from onceward.domain import checks
from onceward.runtime.awaited import awaited
from onceward.runtime.runner import perform
from onceward.steps import unsubscribe as unsubscribing
from onceward.steps.context import Context
from onceward.stores.moves.catalog import Subscribed
from onceward.stores.protocol import Store


class Looking:
    """Seeing: what is in an inbox, from Python, the command line or the dashboard."""

    def __init__(self, context: Context, store: Store) -> None:
        self._context, self._store = context, store

    @property
    def context(self) -> Context:
        """What its steps know, for extensions with steps of their own."""
        return self._context

    @property
    def store(self) -> Store:
        """The database behind it, for extensions such as a supervisor or a doctor."""
        return self._store

    def stats(self) -> reports.Stats:
        """The number of messages in each status, and of workers."""
        return perform(self._store, lambda: reports.stats(self._context))

    def messages(  # noqa: PLR0913 - each is a filter
        self,
        *,
        status: str | None = None,
        type: str | None = None,  # noqa: A002
        key: str | None = None,
        source: str | None = None,
        before: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        fingerprint: str | None = None,
        limit: int = 100,
        outgoing: bool = False,
    ) -> list[reports.Row]:
        """Messages, newest first; `before` a sequence number gives the next page; `outgoing` shows the outbox.

        `since` and `until` are about when they were received, `fingerprint` about how the last attempt failed.
        """
        filters: dict[str, Any] = {"type": type, "key": key, "source": source, "before": before}
        filters |= {"since": since, "until": until, "fingerprint": fingerprint}
        if status is not None:
            checks.one_of("messages()", "status", status, reports.STATUSES)
        checks.whole("messages()", "limit", limit)
        checks.flag("messages()", "outgoing", outgoing)
        decisions.check_filters("messages()", filters)
        step = reports.messages
        return perform(
            self._store, lambda: step(self._context, status=status, limit=limit, outgoing=outgoing, **filters)
        )

    def message(self, seq: int) -> reports.MessageDetail | None:
        """Everything known about one message."""
        checks.whole("message()", "seq", seq, least=0)
        return perform(self._store, lambda: reports.detail(self._context, seq))

    def explain(self, seq: int) -> timeline.Explanation | None:
        """The history of a message: every delivery, attempt, call, outgoing message and decision, in order of time."""
        checks.whole("explain()", "seq", seq, least=0)
        return perform(self._store, lambda: timeline.explain(self._context, seq))

    def dry_run(self, seq: int) -> dry_run.DryRunReport:
        """Run the handler on a stored message in a transaction that is rolled back; shows all that it would do.

        Calls through `message.once` are stopped and shown. What a handler does outside of its transaction without
        `once` happens all the same.
        """
        return dry_run.run(self._context, self._store, checks.whole("dry_run()", "seq", seq, least=0))

    def revision(self, seq: int, *, data: Any = None, body: bytes | None = None) -> revisions.Revision | None:
        """What `edit` would change: field by field, with the results that `message.once` has on record."""
        checks.whole("revision()", "seq", seq, least=0)
        wanted = revisions.corrected("revision()", data, body)
        return perform(self._store, lambda: revisions.revision(self._context, seq, wanted))

    def find(self, source: str, id: str) -> list[int]:  # noqa: A002 - the word every sender uses
        """The sequence numbers of a message by the producer's own id: one for each consumer that has it."""
        checks.text("find()", "source", source)
        checks.text("find()", "id", id)
        return perform(self._store, lambda: reports.find(self._context, source, id))

    def quarantine(self, *, limit: int = 100) -> list[reports.Mismatch]:
        """Open mismatches: ids that came again with other bytes, or under another type."""
        checks.whole("quarantine()", "limit", limit)
        return perform(self._store, lambda: reports.quarantine(self._context, limit=limit))

    def workers(self) -> list[reports.WorkerRow]:
        """The processes that run handlers."""
        return perform(self._store, lambda: reports.workers(self._context))

    def handlers(self) -> list[handling.HandlerRow]:
        """The handlers of this program with policy, guarantee, circuit and pause; then those that only others have."""
        return handling.handlers(self._context, self._store)

    def effects_outside(self) -> list[overview.Apart]:
        """Handlers seen to finish messages without a statement through their transaction: not exactly once."""
        return perform(self._store, self._context.moves.reports.apart)

    def polls(self) -> list[overview.PollRow]:
        """The polled APIs: how far each is, when it is due, how it went last."""
        return perform(self._store, lambda: overview.polls(self._context))

    def pauses(self, *, ended: bool = False) -> list[overview.Pause]:
        """What operators have paused, the oldest first; with `ended` also what was paused in the last 90 days."""
        checks.flag("pauses()", "ended", ended)
        return perform(self._store, lambda: overview.pauses(self._context, ended=ended))

    def history(self, **asked: Unpack[histories.Asked]) -> list[histories.Period]:
        """What happened in each minute, hour or day, by type or source: rates, failures, copies, durations."""
        wanted = histories.wanted(asked)
        return perform(self._store, lambda: histories.history(self._context, wanted))

    def running(self, *, limit: int = 1000) -> list[overview.Running]:
        """What the workers have in hand now."""
        checks.whole("running()", "limit", limit)
        return perform(self._store, lambda: overview.running(self._context, limit=limit))

    def dead_groups(self, *, limit: int = 200) -> list[overview.DeadGroup]:
        """Dead messages by how they failed, the largest group first."""
        checks.whole("dead_groups()", "limit", limit)
        return perform(self._store, lambda: overview.dead_groups(self._context, limit=limit))

    def blocked_keys(self, *, limit: int = 200) -> list[overview.BlockedKey]:
        """Keys that a dead or unhandled message holds, and how many wait behind it."""
        checks.whole("blocked_keys()", "limit", limit)
        return perform(self._store, lambda: overview.blocked_keys(self._context, limit=limit))

    def failing(self, *, times: int = 5, held_for: timedelta = timedelta(minutes=10)) -> overview.Failing:
        """Messages that have failed so many times, and keys that a failing one has held for so long.

        What is paused does not count.
        """
        checks.whole("failing()", "times", times)
        checks.duration("failing()", "held_for", held_for, least=timedelta(0))
        return perform(self._store, lambda: backlogs.failing(self._context, times, held_for.total_seconds()))

    def backlog(self) -> backlogs.Backlog:
        """What is due or tried again, without what is paused."""
        return perform(self._store, lambda: backlogs.now(self._context))

    def sources(self) -> list[overview.SourceRow]:
        """Who sends, as far as the newest messages show."""
        return perform(self._store, lambda: overview.sources(self._context))

    def storage(self) -> overview.Storage:
        """Table sizes, and since when messages are remembered."""
        return perform(self._store, lambda: overview.storage(self._context))

    def audit(self, *, before: int | None = None, limit: int = 100) -> list[overview.AuditLine]:
        """What operators did, newest first."""
        checks.whole("audit()", "limit", limit)
        decisions.check_filters("audit()", {"before": before})
        return perform(self._store, lambda: overview.audit(self._context, before=before, limit=limit))

    def traffic(self, *, minutes: int = 60) -> list[overview.Minute]:
        """Messages received, done and failed, minute by minute, the newest last."""
        checks.whole("traffic()", "minutes", minutes)
        return perform(self._store, lambda: overview.traffic(self._context, minutes=minutes))

    def find_anywhere(self, id: str) -> list[int]:  # noqa: A002 - the word every sender uses
        """As `find`, from whatever source and for whatever consumer."""
        checks.text("find_anywhere()", "id", id)
        return perform(self._store, lambda: reports.find_anywhere(self._context, id))

    def search(self, text: str) -> list[reports.Hit]:
        """Messages with a text in an error or a payload, the newest first: among the newest 1,000 of each."""
        checks.text("search()", "text", text)
        return perform(self._store, lambda: reports.search(self._context, text))

    def standing(self) -> concerns.Standing:
        """The numbers of now, and what needs an operator, the most important first."""
        return perform(self._store, lambda: concerns.standing(self._context))

    def effects(self, *, limit: int = 100) -> list[reports.Effect]:
        """External calls under `message.once` of unknown outcome."""
        checks.whole("effects()", "limit", limit)
        return perform(self._store, lambda: reports.effects(self._context, limit=limit))

    def subscriptions(self, consumer: str, type: str | None = None) -> list[Subscribed]:  # noqa: A002
        """What a consumer is subscribed to, with the number of its unfinished messages."""
        return perform(self._store, lambda: unsubscribing.subscribed(self._context, consumer, type))

    # For ASGI applications, which must not block their event loop

    astats = awaited(stats)
    amessages = awaited(messages)
    amessage = awaited(message)
    aexplain = awaited(explain)
    adry_run = awaited(dry_run)
    arevision = awaited(revision)
    afind = awaited(find)
    afind_anywhere = awaited(find_anywhere)
    aquarantine = awaited(quarantine)
    aworkers = awaited(workers)
    ahandlers = awaited(handlers)
    aeffects_outside = awaited(effects_outside)
    apolls = awaited(polls)
    apauses = awaited(pauses)
    ahistory = awaited(history)
    arunning = awaited(running)
    adead_groups = awaited(dead_groups)
    ablocked_keys = awaited(blocked_keys)
    afailing = awaited(failing)
    abacklog = awaited(backlog)
    asources = awaited(sources)
    astorage = awaited(storage)
    aaudit = awaited(audit)
    atraffic = awaited(traffic)
    asearch = awaited(search)
    astanding = awaited(standing)
    aeffects = awaited(effects)
    asubscriptions = awaited(subscriptions)
