"""The place where cases happen: the database at its start, processes to disturb, recovery, and the judgement.

Invariant: every case begins from the same state and ends, recovered, in one that is compared with the undisturbed one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from onceward.errors import ConfigurationError
from onceward.inbox import Inbox
from onceward.message import Delivery
from onceward.registry import Handler
from onceward.report import Story
from onceward.steps.context import Catalog
from onceward.testing.disturbance import Disturbance, Watch
from onceward.testing.process import Process
from onceward.testing.report import Case, Kind, Statement, brief, compared
from onceward.testing.restore import keeper_of

_PAST = {"sqlite": "0", "postgres": "'epoch'"}
_ROUNDS = 6
_AT_LEAST_ONCE = (
    "why: a call outside of the database is at least once: an attempt that is undone has made it already. Use "
    "message.once(...); or pass message.idempotency_key(...) along and say external_at_least_once=True"
)

Check = Callable[[Any], Any]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Findings:
    """What can be seen after a case."""

    effect: Any
    sent: list[Any]
    """What waits in the outbox."""
    calls: int | None
    """How often the external effect happened."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is proven: a handler, the message it gets, and where its effects are seen."""

    inbox: Inbox
    handler: Handler
    message: Message
    others: Sequence[Message]
    check: Check
    external: Callable[[], Any] | None = None
    at_least_once: bool = False
    setup: Callable[[], object] | None = None
    reset: Callable[[], object] | None = None


class Laboratory:
    """Runs cases on one subject."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.inbox = subject.inbox
        self._delivery = Delivery.of(**subject.message)
        self._calls_before = 0
        self.problem = ""
        """Why a delivery was not acknowledged, in the case that runs."""
        # Every process of a service introduces its handlers when it starts: once for all cases is enough.
        self._put_back = subject.reset or keeper_of(subject.inbox.store).restore
        self._restore = subject.reset or self._introduced()
        self.begin()
        self.initial = self.look()

    def _introduced(self) -> Callable[[], object]:
        self.process().introduce()
        return keeper_of(self.inbox.store).restore

    # A case, step by step

    def begin(self) -> None:
        """Back to the start: the database, what this process remembers of it, and the user's own fakes."""
        try:
            self._restore()
        except Exception:  # noqa: BLE001 - a connection that a killed handler left open holds a lock
            gc.collect()
            self._restore()
        self._forget()
        if self.subject.reset:
            self.process().introduce()
        if self.subject.setup:
            self.subject.setup()
        self._calls_before, self.problem = self._calls() or 0, ""

    def end(self) -> None:
        """Leave the database as it was found."""
        gc.collect()
        self._put_back()
        self._forget()

    def _forget(self) -> None:
        self.inbox.context.cache.catalog = Catalog()
        self.inbox._introduced = 0  # noqa: SLF001 - the inbox has to introduce itself again, as after a start

    def process(self, disturbance: Disturbance | None = None, *, failing: bool = False) -> Process:
        """A new process, disturbed or not."""
        single_writer = self.inbox.store.single_writer
        watch = Watch(self._is_ours, disturbance, failing=failing, single_writer=single_writer)
        return Process(self.inbox, self.subject.handler, watch)

    def _is_ours(self, message: Any) -> bool:
        same = (message.source, message.id) == (self._delivery.source, self._delivery.id)
        return same and message.consumer == self.subject.handler.consumer

    def settle_down(self) -> None:
        """Recover: make whatever is due again run, until nothing changes; a person answers for unknown effects."""
        for _ in range(_ROUNDS):
            self._hurry()
            self.process().work()
            story = self.story()
            if story is not None and story.status == "dead":
                open_effects = [effect for effect in story.effects if not effect.done]
                for effect in open_effects:
                    self.inbox.settle_effect(story.seq, effect.name, happened=True, reason="onceward.testing")
                if not open_effects:
                    return
                self.inbox.redrive(story.seq, reason="onceward.testing")
            elif not self._unfinished():
                return

    def _hurry(self) -> None:
        prefix, past = self.inbox.context.prefix, _PAST[self.inbox.store.dialect]
        with self.inbox.transaction() as connection:
            connection.execute(f"UPDATE {prefix}queue SET due_at = {past} WHERE state = 'retry'")

    def _unfinished(self) -> int:
        with self.inbox.transaction() as connection:
            sql = f"SELECT count(*) FROM {self.inbox.context.prefix}queue WHERE NOT outgoing AND state <> 'dead'"
            return int(connection.execute(sql).fetchone()[0])

    # Looking

    def look(self) -> Findings:
        """What is there now."""
        gc.collect(1)  # what the handler of just now left open, if anything
        columns = "b.type, b.version, b.key, b.destination, b.body"
        prefix = self.inbox.context.prefix
        with self.inbox.transaction() as connection:
            rows = connection.execute(
                f"SELECT {columns} FROM {prefix}queue q JOIN {prefix}body b ON b.seq = q.seq WHERE q.outgoing"
            ).fetchall()
            effect = _plain(self.subject.check(connection))
        sent = sorted(((*row[:4], bytes(row[4]).decode(errors="replace")) for row in rows), key=repr)
        calls = self._calls()
        return Findings(effect, sent, None if calls is None else calls - self._calls_before)

    def _calls(self) -> int | None:
        if self.subject.external is None:
            return None
        seen = self.subject.external()
        if isinstance(seen, Sized):
            return len(seen)
        if isinstance(seen, int):
            return seen
        raise ConfigurationError(f"external= answered {type(seen).__name__}; a list of the calls or a number is needed")

    def story(self) -> Story | None:
        """What onceward knows of the message."""
        for seq in self.inbox.find(self._delivery.source, self._delivery.id):
            story = self.inbox.message(seq)
            if story is not None and story.consumer == self.subject.handler.consumer:
                return story
        return None

    def finished(self) -> bool:
        """Whether the message is done."""
        story = self.story()
        return story is not None and story.status in ("done", "skipped")


class Judge:
    """Compares what a case led to with what the undisturbed run led to."""

    def __init__(self, laboratory: Laboratory, expected: Findings) -> None:
        self._laboratory = laboratory
        self._subject = laboratory.subject
        self.expected = expected

    def leftovers(self) -> Any:
        """What a failed attempt left behind, which should be nothing; None then, or when the message is done."""
        laboratory = self._laboratory
        if laboratory.finished():
            return None
        found = laboratory.look()
        kept = [found.effect] if found.effect != laboratory.initial.effect else []
        kept += [f"sent: {found.sent}"] if found.sent != laboratory.initial.sent else []
        return kept or None

    def case(  # noqa: PLR0913 - what is known of a case
        self,
        name: str,
        mode: str,
        *,
        statement: Statement | None = None,
        left: Any = None,
        raised: bool = False,
        repeats: bool = False,
    ) -> Case:
        """Judge what there is now.

        `left` is what an undone attempt left, `raised` says that the handler was made to fail, `repeats` that an
        idempotent `message.once` was interrupted and may rightly make its call again.
        """
        found = self._laboratory.look()
        kind, detail = self._verdict(found, left=left, raised=raised, repeats=repeats)
        return Case(name, mode, kind, tuple(detail), statement, found.calls)

    def _verdict(self, found: Findings, *, left: Any, raised: bool, repeats: bool) -> tuple[Kind, list[str]]:
        initial, expected = self._laboratory.initial, self.expected
        effect = compared(initial.effect, expected.effect, found.effect)
        sent = compared(initial.sent, expected.sent, found.sent)
        told = self._told()
        if left:
            detail = [f"already permanent when the attempt had been undone: {brief(left[0])}"]
            detail += _difference(expected.effect, found.effect) if effect else []
            why = (
                "it does not go through tx: it was committed on another connection or by itself, and a retry repeats it"
            )
            return effect or sent or "escaped", [*detail, *told, f"why: {why}"]
        if effect:
            return effect, [
                *_difference(expected.effect, found.effect),
                *told,
                f"why: {self._why(effect, raised=raised)}",
            ]
        if sent:
            why = (
                "a message left outside of the handler's transaction; use message.send(...), or inbox.send(..., tx=tx)"
            )
            return sent, [*_difference(expected.sent, found.sent, "messages sent: "), *told, f"why: {why}"]
        if told:
            return "unfinished", told
        return self._external(found, repeats=repeats)

    def _told(self) -> list[str]:
        """What onceward says about a message that did not finish."""
        story = self._laboratory.story()
        if story is None:
            return [f"the message is not in the inbox at all: {self._laboratory.problem or 'it was never accepted'}"]
        if story.status in ("done", "skipped"):
            return []
        error = story.history[-1].error.split("\n")[0] if story.history else "no attempt is recorded"
        return [f"the message is {story.status}: {error}"]

    def _external(self, found: Findings, *, repeats: bool) -> tuple[Kind, list[str]]:
        wanted, made = self.expected.calls, found.calls
        if wanted is None or made is None or made == wanted:
            return "", []
        if made < wanted:
            return "lost", [f"external effect: happened {made} times instead of {wanted}"]
        if repeats or self._subject.at_least_once:
            return "", []
        return "doubled", [
            f"external effect: happened {made} times instead of {wanted}",
            _AT_LEAST_ONCE,
        ]

    def _why(self, kind: Kind, *, raised: bool) -> str:
        if kind == "lost" and raised and self._laboratory.finished():
            return "the handler caught the error and returned, and returning commits what was done so far; let it out"
        if kind == "changed" and self._subject.others and self._subject.handler.key is None:
            return "the effect depends on the order of the messages, which only key= keeps"
        if kind == "doubled":
            return "it was done outside of tx, so undoing the attempt did not undo it"
        return "the effect of an undisturbed run is not what is there; see which part of it does not go through tx"


def _difference(expected: Any, found: Any, what: str = "") -> list[str]:
    return [f"{what}expected {brief(expected)}", f"{what}found    {brief(found)}"]


def _plain(value: Any) -> Any:
    """A snapshot that can be compared and kept: cursors are read, rows become tuples."""
    if hasattr(value, "fetchall"):
        value = value.fetchall()
    if isinstance(value, list):
        return [tuple(row) if hasattr(row, "keys") and not isinstance(row, dict) else row for row in value]
    return value
