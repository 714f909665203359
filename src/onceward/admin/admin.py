"""What an operator does: the actions that steer messages, on top of all that is seen (`admin/looking.py`).

`inbox.admin`. What changes messages is selected, shown and applied in `admin/decisions.py`; each method has an awaited
form for ASGI applications: `inbox.admin.aredrive()`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Unpack, get_args

from onceward.admin import adoption, decisions, revisions
from onceward.admin import messages as reports
from onceward.admin.actor import user
from onceward.admin.alerts import Alerts, Hook, Rules
from onceward.admin.looking import Looking
from onceward.domain import checks
from onceward.errors import ConfigurationError
from onceward.flow import Flow
from onceward.runtime.awaited import awaited
from onceward.runtime.runner import perform
from onceward.steps import operate, revise
from onceward.steps import unsubscribe as unsubscribing
from onceward.steps.context import Context
from onceward.stores.moves.catalog import PauseOrder
from onceward.stores.moves.operations import Resolution
from onceward.stores.protocol import Store


class Admin(Looking):
    """Seeing and steering: what an operator does, from Python, the command line or the dashboard."""

    def __init__(self, context: Context, store: Store) -> None:
        super().__init__(context, store)
        self.alerts: Alerts | None = None
        """What sends alerts while `run` runs, where `alert` was called."""

    def record_reading(self, seq: int, *, reason: str, actor: str = "") -> bool:
        """Write into the audit that an operator is about to see a payload; False where there is no such message."""
        who = actor or user()
        return perform(self._store, lambda: operate.record_reading(self._context, seq, actor=who, reason=reason))

    def settle_effect(  # noqa: PLR0913 - what a person has to say
        self, seq: int, name: str, *, happened: bool, result: Any = None, reason: str = "", actor: str = ""
    ) -> bool:
        """Record what became of an external call, with its result if it happened; then redrive the message.

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

    def select(
        self,
        /,
        *seqs: int,
        id: str | None = None,  # noqa: A002 - the word every sender uses
        limit: int | None = None,
        status: str = "dead",
        **filters: Any,
    ) -> decisions.Selection:
        """Choose messages, and see what they are, before `apply` does something to them.

        By number; or by the producer's own `id=` with `source=`; or the dead ones (`status="retrying"`: those, and so
        on) that match the filters of `messages`, all of them without any, at most `limit`.
        """
        by = decisions.check_select(seqs, id, limit, status, filters)
        if id is not None:
            seqs = tuple(self.find(filters["source"], id))
        if seqs or id is not None:
            return decisions.numbered(self._context, self._store, seqs)
        return decisions.matching(self._context, self._store, by, limit)

    def apply(
        self,
        action: decisions.ActionName,
        seqs: Iterable[int],
        *,
        reason: str = "",
        actor: str = "",
        out_of_order: bool = False,
    ) -> decisions.Applied:
        """Redrive, unblock, discard, ... messages (`decisions.NAMES`): `apply("redrive", selection.seqs, reason=...)`.

        Returns which were changed, and why the others were left alone.
        """
        checks.one_of("apply()", "action", action, decisions.NAMES)
        options = {"out_of_order": out_of_order} if action == "redrive" else {}
        return self._apply("apply()", action, seqs, reason, actor, **options)

    def redrive(
        self, /, *seqs: int, reason: str = "", actor: str = "", out_of_order: bool = False, **filters: Any
    ) -> int:
        """Give dead messages a new budget: those named, or those that match the filters of `messages`."""
        return self._decide("redrive", seqs, filters, reason, actor=actor, out_of_order=out_of_order)

    def unblock(self, /, *seqs: int, reason: str = "", actor: str = "", **filters: Any) -> int:
        """Let keys go on without their dead messages, which stay dead: those named, or those that match type=, key=."""
        return self._decide("unblock", seqs, filters, reason, actor=actor)

    def discard(
        self, /, *seqs: int, reason: str = "", actor: str = "", status: str | None = None, **filters: Any
    ) -> int:
        """Take messages out for good: those named, or the dead ones that match type=, key=, source=, fingerprint=.

        With `status="retrying"` (or scheduled, waiting, unhandled, due) filters select those. What is running is left.
        """
        return self._decide("discard", seqs, filters, reason, actor=actor, status=status)

    def cancel(self, /, *seqs: int, reason: str = "", actor: str = "", **filters: Any) -> int:
        """Discard messages that are still scheduled: those named, or those that match type=, key=, source=."""
        return self._decide("cancel", seqs, filters, reason, actor=actor)

    def interrupt(self, /, *seqs: int, reason: str = "", actor: str = "", **filters: Any) -> int:
        """Take running messages from their workers: those named, or those that match type=, key=, source=.

        Their commit is refused, and they are dead. The handler is interrupted within a second, as far as that is
        possible: a `def` handler at its next statement, an `async def` handler where it waits.
        """
        return self._decide("interrupt", seqs, filters, reason, actor=actor)

    def hasten(self, /, *seqs: int, reason: str = "", actor: str = "", **filters: Any) -> int:
        """Run scheduled messages now, and retrying ones that are named: those, or what matches type=, key=, source=."""
        return self._decide("hasten", seqs, filters, reason, actor=actor)

    def retry_now(self, /, *seqs: int, reason: str = "", actor: str = "", **filters: Any) -> int:
        """Run messages that wait for another try now: those named, or what matches type=, fingerprint=, key=, source=.

        Their attempts stay; `redrive` is for dead ones. Preview with `select(status="retrying", ...)`.
        """
        return self._decide("retry-now", seqs, filters, reason, actor=actor)

    def edit(  # noqa: PLR0913 - what an operator decides
        self,
        seq: int,
        *,
        data: Any = None,
        body: bytes | None = None,
        reason: str = "",
        actor: str = "",
        out_of_order: bool = False,
    ) -> bool:
        """Give a dead or retrying message a corrected body, and run it again; see what changes with `revision` first.

        Type, key and number stay as they are. A copy of the first body stays a duplicate, and one of the corrected
        body is one. False where the message is neither dead nor retrying (any more).
        """
        where = "edit()"
        checks.whole(where, "seq", seq, least=0)
        checks.text(where, "reason", reason, empty=True)
        checks.text(where, "actor", actor, empty=True)
        checks.flag(where, "out_of_order", out_of_order)
        wanted = revisions.corrected(where, data, body)
        who: dict[str, Any] = {"actor": actor or user(), "reason": reason, "out_of_order": out_of_order}
        done = perform(self._store, lambda: revise.edit(self._context, seq, wanted, **who))
        self._store.notify()
        return done

    def pause(self, *, reason: str = "", actor: str = "", **what: Unpack[decisions.Paused]) -> bool:
        """Stop something until it is resumed: type=, consumer=, source= or destination= names it, or everything=True.

        Messages are stored and wait; what a pause takes does not count for their age. A source that is paused is not
        read or polled, and its webhooks are stored. Workers obey within a second. False where it is paused already.
        """
        return self._stop_or_go("pause()", operate.pause, what, reason, actor)

    def resume(self, *, reason: str = "", actor: str = "", **what: Unpack[decisions.Paused]) -> bool:
        """Let something go on that was paused, named as for `pause`; False where it is not paused."""
        return self._stop_or_go("resume()", operate.resume, what, reason, actor)

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

    def resolve(self, case: int, resolution: Resolution, *, reason: str = "", actor: str = "") -> int | None:
        """Decide about a mismatch: "keep-first", "accept-as-new" or "discard". None when it is not open (any more)."""
        checks.whole("resolve()", "case", case, least=0)
        checks.one_of("resolve()", "resolution", resolution, get_args(Resolution))
        who = actor or user()
        step = operate.resolve
        answer = perform(self._store, lambda: step(self._context, case, resolution, actor=who, reason=reason))
        self._store.notify()
        return answer

    def keep_first(self, *, source: str, type: str, reason: str = "", actor: str = "") -> int:  # noqa: A002
        """Decide every open mismatch of kind `type` of a source and a (second) type: the first message is right.

        For a sender that has renamed its events: returns how many were decided.
        """
        who, decided = actor or user(), 0
        step = partial(operate.keep_first, self._context, source, type, actor=who, reason=reason)
        while some := perform(self._store, step):
            decided += some
        return decided

    def import_ids(  # noqa: PLR0913 - each is one decision
        self,
        source: str,
        ids: Iterable[Any] | adoption.Table,
        *,
        consumers: Collection[str] = (),
        after: str | int | None = None,
        preview: bool = False,
        progress: Callable[[adoption.Imported], None] | None = None,
    ) -> adoption.Imported:
        """Remember ids of a source that were handled before onceward: copies of them are duplicates.

        `ids` are ids, pairs of an id and when it was handled, or a `Table` of the inbox's database, which is read
        behind the id `after`. Without `consumers`, all of this service. Each batch is a transaction of its own;
        importing again changes nothing. What was handled longer ago than the dedupe retention is skipped and counted.
        """
        options: dict[str, Any] = {"consumers": consumers, "after": after, "preview": preview, "progress": progress}
        return adoption.import_ids(self._context, self._store, source, ids, **options)

    def alert(self, *hooks: Hook, rules: Rules | None = None) -> Alerts:
        """Send alerts while `run` runs: dead letters, mismatches, blocked keys, an old backlog and the like.

        A hook is a function of an `Alert`; `alerts.http_hook(url, secrets=[...])` makes one; without any, alerts are
        logged. Of several processes one sends them. A program that does not `run` calls `look()` of what this returns.
        """
        for hook in hooks:
            checks.function("alert()", "hook", hook)
        if rules is not None:
            checks.instance("alert()", "rules", rules, Rules, "Rules(...)")
        self.alerts = Alerts(self._context, self._store, hooks, rules or Rules())
        return self.alerts

    def _stop_or_go(
        self, where: str, step: Callable[..., Flow[bool]], what: decisions.Paused, reason: str, actor: str
    ) -> bool:
        checks.text(where, "reason", reason, empty=True)
        checks.text(where, "actor", actor, empty=True)
        order = PauseOrder(*decisions.paused(where, what), actor or user(), reason)
        done = perform(self._store, partial(step, self._context, order))
        self._store.notify()
        return done

    def _decide(
        self,
        action: decisions.ActionName,
        seqs: Sequence[int],
        filters: dict[str, Any],
        reason: str,
        *,
        status: str | None = None,
        **who: Any,
    ) -> int:
        """Select and apply; a refusal of a message that was named is an error once the others are done."""
        where = f"{action.replace('-', '_')}()"
        given = {} if status is None else {"status": status}
        decisions.check_choice(where, seqs, {**filters, **given}, (*decisions.FILTERS, *given))
        which = {**filters, "status": decisions.check_status(where, action, status)}
        chosen = decisions.matching(self._context, self._store, which, None).seqs if filters or given else seqs
        applied = self._apply(where, action, chosen, reason, **who)
        if seqs and applied.refused:
            raise ConfigurationError("; ".join(applied.left[seq] for seq in applied.refused))
        return len(applied.changed)

    def _apply(
        self, where: str, action: decisions.ActionName, seqs: Iterable[int], reason: str, actor: str, **options: bool
    ) -> decisions.Applied:
        checks.text(where, "reason", reason, empty=True)
        checks.text(where, "actor", actor, empty=True)
        for name, given in options.items():
            checks.flag(where, name, given)
        chosen = decisions.ACTIONS[action]
        step = partial(chosen.step, self._context, actor=actor or user(), reason=reason, **options)
        return decisions.apply(
            self._context, self._store, chosen, step, (checks.whole(where, "seq", one, least=0) for one in seqs)
        )

    # For ASGI applications, which must not block their event loop

    arecord_reading = awaited(record_reading)
    asettle_effect = awaited(settle_effect)
    aselect = awaited(select)
    aapply = awaited(apply)
    aredrive = awaited(redrive)
    aunblock = awaited(unblock)
    adiscard = awaited(discard)
    acancel = awaited(cancel)
    ainterrupt = awaited(interrupt)
    ahasten = awaited(hasten)
    aretry_now = awaited(retry_now)
    aedit = awaited(edit)
    apause = awaited(pause)
    aresume = awaited(resume)
    aunsubscribe = awaited(unsubscribe)
    aresolve = awaited(resolve)
    akeep_first = awaited(keep_first)
    aimport_ids = awaited(import_ids)
