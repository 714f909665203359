"""What a person sees and does: numbers, lists, one message's story, and the actions that steer messages.

`inbox.admin`. Each method is one step of `admin/messages.py`, `admin/overview.py` or `steps/operate.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, get_args

from onceward.admin import dry_run, overview, timeline
from onceward.admin import messages as reports
from onceward.admin.alerts import Alerts, Hook, Rules
from onceward.domain import checks
from onceward.errors import ConfigurationError
from onceward.flow import Flow
from onceward.runtime.runner import perform
from onceward.steps import operate
from onceward.steps import unsubscribe as unsubscribing
from onceward.steps.context import Context
from onceward.stores.protocol import Store

PAGE = 500
DECIDED_BY = ("type", "key", "source", "since", "until", "fingerprint", "outgoing")
"""The filters by which dead messages are decided about."""


class Admin:
    """Seeing and steering: what an operator does, from Python, the command line or the dashboard."""

    def __init__(self, context: Context, store: Store) -> None:
        self._context, self._store = context, store
        self.alerts: Alerts | None = None
        """What tells people while `run` runs, where `alert` was called."""

    @property
    def context(self) -> Context:
        """What its steps know, for extensions with steps of their own."""
        return self._context

    @property
    def store(self) -> Store:
        """The database behind it, for extensions such as a supervisor or a doctor."""
        return self._store

    def stats(self) -> reports.Stats:
        """The inbox in numbers."""
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
        _check_filters("messages()", filters)
        step = reports.messages
        return perform(
            self._store, lambda: step(self._context, status=status, limit=limit, outgoing=outgoing, **filters)
        )

    def message(self, seq: int) -> reports.Story | None:
        """Everything known about one message."""
        checks.whole("message()", "seq", seq, least=0)
        return perform(self._store, lambda: reports.story(self._context, seq))

    def explain(self, seq: int) -> timeline.Explanation | None:
        """One message as a story: every delivery, attempt, call, outgoing message and decision, in order of time."""
        checks.whole("explain()", "seq", seq, least=0)
        return perform(self._store, lambda: timeline.explain(self._context, seq))

    def dry_run(self, seq: int) -> dry_run.Trial:
        """Run the handler on a stored message in a transaction that is rolled back; shows all that it would do.

        Calls through `message.once` are stopped and shown. What a handler does outside of its transaction without
        `once` happens all the same.
        """
        return dry_run.run(self._context, self._store, checks.whole("dry_run()", "seq", seq, least=0))

    def note_reading(self, seq: int, *, reason: str, actor: str = "") -> bool:
        """Write into the audit that somebody is about to see a payload; False where there is no such message."""
        who = actor or user()
        return perform(self._store, lambda: operate.note_reading(self._context, seq, actor=who, reason=reason))

    def find(self, source: str, id: str) -> list[int]:  # noqa: A002 - the word every sender uses
        """The sequence numbers of a message by the producer's own id: one for each consumer that has it."""
        checks.text("find()", "source", source)
        checks.text("find()", "id", id)
        return perform(self._store, lambda: reports.find(self._context, source, id))

    def quarantine(self, *, limit: int = 100) -> list[reports.Mismatch]:
        """Open cases of an id that came again with other bytes, or under another type."""
        checks.whole("quarantine()", "limit", limit)
        return perform(self._store, lambda: reports.quarantine(self._context, limit=limit))

    def workers(self) -> list[reports.WorkerRow]:
        """The processes that run handlers."""
        return perform(self._store, lambda: reports.workers(self._context))

    def polls(self) -> list[overview.PollRow]:
        """The polled APIs: how far each is, when it is due, how it went last."""
        return perform(self._store, lambda: overview.polls(self._context))

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
        """Messages that have failed so many times, and keys that a failing message has held for so long."""
        checks.whole("failing()", "times", times)
        checks.duration("failing()", "held_for", held_for, least=timedelta(0))
        return perform(self._store, lambda: overview.failing(self._context, times=times, held_for=held_for))

    def sources(self) -> list[overview.SourceRow]:
        """Who sends, as far as the newest messages show."""
        return perform(self._store, lambda: overview.sources(self._context))

    def storage(self) -> overview.Storage:
        """Table sizes, and since when messages are remembered."""
        return perform(self._store, lambda: overview.storage(self._context))

    def audit(self, *, before: int | None = None, limit: int = 100) -> list[overview.AuditLine]:
        """What people did, newest first."""
        checks.whole("audit()", "limit", limit)
        _check_filters("audit()", {"before": before})
        return perform(self._store, lambda: overview.audit(self._context, before=before, limit=limit))

    def traffic(self, *, minutes: int = 60) -> list[overview.Minute]:
        """Messages received, done and failed, minute by minute, the newest last."""
        checks.whole("traffic()", "minutes", minutes)
        return perform(self._store, lambda: overview.traffic(self._context, minutes=minutes))

    def find_anywhere(self, id: str) -> list[int]:  # noqa: A002 - the word every sender uses
        """As `find`, from whatever source and for whatever consumer."""
        checks.text("find_anywhere()", "id", id)
        return perform(self._store, lambda: reports.find_anywhere(self._context, id))

    def effects(self, *, limit: int = 100) -> list[reports.Effect]:
        """External calls under `message.once` whose outcome nobody knows."""
        checks.whole("effects()", "limit", limit)
        return perform(self._store, lambda: reports.effects(self._context, limit=limit))

    def settle_effect(  # noqa: PLR0913 - what a person has to say
        self, seq: int, name: str, *, happened: bool, result: Any = None, reason: str = "", actor: str = ""
    ) -> bool:
        """Say what became of an external call, with its result if it happened; then redrive the message.

        False when its outcome is known already, and while the message is being run. The message itself need not be
        there: an inline attempt that died was rolled back, and what it called was not.
        """
        checks.whole("settle_effect()", "seq", seq, least=0)
        checks.flag("settle_effect()", "happened", happened)
        of_message = perform(self._store, lambda: reports.effects(self._context, seq=seq))
        called = sorted((one for one in of_message if one.name == name), key=lambda one: one.done)
        if not called:
            raise LookupError(
                f"message {seq} has no effect named {name!r}; inbox.admin.effects() lists those that are open"
            )
        said = {"happened": happened, "result": result, "actor": actor or user(), "reason": reason}
        return perform(self._store, lambda: operate.settle_effect(self._context, called[0].key, seq, **said))

    def redrive(self, *seqs: int, reason: str = "", actor: str = "", out_of_order: bool = False, **filters: Any) -> int:
        """Give dead messages a new budget: those named, or those that match the filters of `messages`."""
        action = partial(operate.redrive, out_of_order=out_of_order)
        return self._decide("redrive()", seqs, filters, action, reason, actor)

    def unblock(self, *seqs: int, reason: str = "", actor: str = "", **filters: Any) -> int:
        """Let keys go on without their dead messages, which stay dead: those named, or those that match type=, key=."""
        return self._decide("unblock()", seqs, filters, operate.release, reason, actor)

    def discard(self, *seqs: int, reason: str = "", actor: str = "", **filters: Any) -> int:
        """Take messages out for good: those named, or the dead ones that match type=, key=, source=."""
        return self._decide("discard()", seqs, filters, operate.discard, reason, actor)

    def subscriptions(self, consumer: str, type: str | None = None) -> list[unsubscribing.Subscribed]:  # noqa: A002
        """What a consumer is subscribed to, with the number of its unfinished messages."""
        return perform(self._store, lambda: unsubscribing.subscribed(self._context, consumer, type))

    def unsubscribe(
        self,
        consumer: str,
        type: str | None = None,  # noqa: A002 - the word every sender uses
        *,
        discard: bool = False,
        reason: str = "",
        actor: str = "",
    ) -> int:
        """Retire a consumer, or its subscription to a type: it gets no further messages. Returns how many it discarded.

        While it has unfinished messages that is refused, unless they are to be discarded. A program that registers a
        handler for it subscribes it again.
        """
        step, who = unsubscribing.unsubscribe, {"actor": actor or user(), "reason": reason}
        return perform(self._store, lambda: step(self._context, consumer, type, discard_unfinished=discard, **who))

    def resolve(self, case: int, resolution: operate.Resolution, *, reason: str = "", actor: str = "") -> int | None:
        """Decide about a mismatch: "keep-first", "accept-as-new" or "discard". None when it is not open (any more)."""
        checks.whole("resolve()", "case", case, least=0)
        checks.one_of("resolve()", "resolution", resolution, get_args(operate.Resolution))
        who = actor or user()
        step = operate.resolve
        answer = perform(self._store, lambda: step(self._context, case, resolution, actor=who, reason=reason))
        self._store.ring()
        return answer

    def keep_first(self, *, source: str, type: str, reason: str = "", actor: str = "") -> int:  # noqa: A002
        """Decide every open mismatch of kind `type` of a source and a (second) type: the first message is right.

        For a sender whose events are called otherwise now: returns how many were decided.
        """
        who, decided = actor or user(), 0
        step = partial(operate.keep_first, self._context, source, type, actor=who, reason=reason)
        while some := perform(self._store, step):
            decided += some
        return decided

    def alert(self, *hooks: Hook, rules: Rules | None = None) -> Alerts:
        """Tell when something needs a person, while `run` runs: dead letters, mismatches, blocked keys, old backlog.

        A hook is a function of an `Alert`; `alerts.http_hook(url, secrets=[...])` makes one, and without any the log is
        told. Of several processes one tells. A program that does not `run` calls `look()` of what this returns.
        """
        for hook in hooks:
            checks.function("alert()", "hook", hook)
        if rules is not None:
            checks.instance("alert()", "rules", rules, Rules, "Rules(...)")
        self.alerts = Alerts(self._context, self._store, hooks, rules or Rules())
        return self.alerts

    def _decide(  # noqa: PLR0913, PLR0917 - what a person has said
        self,
        where: str,
        seqs: Sequence[int],
        filters: dict[str, Any],
        action: Callable[..., Flow[bool]],
        reason: str,
        actor: str,
    ) -> int:
        checks.no_others(where, filters, DECIDED_BY)
        for seq in seqs:
            checks.whole(where, "seq", seq, least=0)
        if seqs and filters:
            both = f"{', '.join(map(str, seqs))} and {', '.join(f'{name}=' for name in filters)}"
            raise ConfigurationError(f"{where}: name messages or filters, not both: {both}")
        _check_filters(where, filters)
        checks.text(where, "reason", reason, empty=True)
        checks.text(where, "actor", actor, empty=True)
        return sum(self._each(self._chosen(seqs, "dead", filters), action, reason, actor))

    def _chosen(self, seqs: Sequence[int], status: str, filters: dict[str, Any]) -> Iterator[int]:
        if seqs or not filters:
            yield from seqs
            return
        before: int | None = None
        while page := self.messages(status=status, before=before, limit=PAGE, **filters):
            yield from (row.seq for row in page)
            before = page[-1].seq

    def _each(self, seqs: Iterable[int], action: Callable[..., Flow[bool]], reason: str, actor: str) -> Iterator[bool]:
        who = actor or user()
        for seq in seqs:
            yield perform(self._store, lambda seq=seq: action(self._context, seq, actor=who, reason=reason))  # type: ignore[misc]
        self._store.ring()


def _check_filters(where: str, filters: Mapping[str, Any]) -> None:
    for name, given in filters.items():
        if given is None:
            continue
        if name in ("since", "until"):
            checks.moment(where, name, given)
        elif name == "before":
            checks.whole(where, name, given, least=0)
        elif name == "outgoing":
            checks.flag(where, name, given)
        else:
            checks.text(where, name, given, empty=True)


def user() -> str:
    """Who acts, where nobody says so."""
    import getpass  # noqa: PLC0415 - only for people

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return f"uid {os.getuid()}"
