"""The place where cases happen: the database at its start, processes to disturb, recovery, and the judgement.

Invariant: every case begins from the same state and ends, recovered, in one that is compared with the undisturbed one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from onceward.admin.messages import Story
from onceward.errors import ConfigurationError
from onceward.inbox import Inbox
from onceward.message import Delivery
from onceward.registry import Handler
from onceward.steps.context import Catalog, Introduction
from onceward.testing.disturbance import Disturbance, Watch
from onceward.testing.outside import own_file
from onceward.testing.process import Process, Sessions
from onceward.testing.restore import keeper_of

_PAST = {"sqlite": "0", "postgres": "'epoch'"}
_ROUNDS = 6

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
        self._answers: dict[str, Any] = {}
        self.problem = ""
        """Why a delivery was not acknowledged, in the case that runs."""
        self._sessions = Sessions(self.inbox.store)
        self._open = ExitStack()
        self._plain: Any = None
        # Every process of a service introduces its handlers when it starts: once for all cases is enough.
        self._original = self._remembered()
        if not subject.reset:
            self.process().introduce()
        self._start = self._remembered()
        self.begin()
        self.initial = self.look()

    def _remembered(self) -> Callable[[], object]:
        if self.subject.reset:
            return self.subject.reset
        with self.connection() as connection:
            keeper = keeper_of(self.inbox.store, connection)

        def restore() -> None:
            with self.connection() as connection:
                keeper.restore(connection)

        return restore

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A plain connection, in a transaction that is committed at the end of the block."""
        if self.inbox.store.single_writer:
            with self.inbox.transaction() as connection:
                yield connection
            return
        if self._plain is None:  # one for all: connecting is most of what a short transaction costs on a server
            self._plain = self._open.enter_context(self.inbox.transaction())
        try:
            yield self._plain
            self._plain.commit()
        except BaseException:
            self._drop_plain()
            raise

    def _drop_plain(self) -> None:
        self._plain = None
        with suppress(Exception):
            self._open.close()

    # A case, step by step

    def begin(self) -> None:
        """Back to the start: the database, what this process remembers of it, and the user's own fakes."""
        try:
            self._start()
        except Exception:  # noqa: BLE001 - a connection that a killed handler left open holds a lock
            gc.collect()
            self._start()
        self._forget()
        if self.subject.reset:
            self.process().introduce()
        if self.subject.setup:
            self.subject.setup()
        self._calls_before, self.problem = self._calls() or 0, ""

    def end(self) -> None:
        """Leave the database as it was found."""
        gc.collect()
        self._original()
        self._forget()
        self._drop_plain()
        self._sessions.close()

    def _forget(self) -> None:
        self.inbox.context.cache.catalog = Catalog()
        self.inbox.context.introduction = Introduction()  # as after a start

    def process(self, disturbance: Disturbance | None = None, *, failing: bool = False) -> Process:
        """A new process, disturbed or not."""
        single_writer = self.inbox.store.single_writer
        watch = Watch(self._is_ours, disturbance, failing=failing, single_writer=single_writer, results=self._answers)
        watch.outside.own = own_file(self.inbox.store)
        return Process(self.inbox, self.subject.handler, watch, self._sessions)

    def _is_ours(self, message: Any) -> bool:
        same = (message.source, message.id) == (self._delivery.source, self._delivery.id)
        return same and message.consumer == self.subject.handler.consumer

    def settle_down(self) -> None:
        """Recover: make whatever is due again run, until nothing changes; a person answers for unknown effects."""
        for _ in range(_ROUNDS):
            if not self._unfinished():
                return
            self._hurry()
            self.process().work()
            story = self.story()
            if story is not None and story.status == "dead":
                open_effects = [effect for effect in story.effects if not effect.done]
                for effect in open_effects:
                    result = self._answers.get(effect.name)
                    self.inbox.admin.settle_effect(
                        story.seq, effect.name, happened=True, result=result, reason="a proof"
                    )
                if not open_effects:
                    return
                self.inbox.admin.redrive(story.seq, reason="a proof")

    def _hurry(self) -> None:
        prefix, past = self.inbox.context.prefix, _PAST[self.inbox.store.dialect]
        with self.connection() as connection:
            connection.execute(f"UPDATE {prefix}queue SET due_at = {past} WHERE state = 'retry'")

    def _unfinished(self) -> int:
        with self.connection() as connection:
            sql = f"SELECT count(*) FROM {self.inbox.context.prefix}queue WHERE NOT outgoing"
            return int(connection.execute(sql).fetchone()[0])

    # Looking

    def look(self) -> Findings:
        """What is there now."""
        gc.collect(1)  # what the handler of just now left open, if anything
        columns = "b.type, b.version, b.key, b.destination, b.body"
        prefix = self.inbox.context.prefix
        with self.connection() as connection:
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
        for seq in self.inbox.admin.find(self._delivery.source, self._delivery.id):
            story = self.inbox.admin.message(seq)
            if story is not None and story.consumer == self.subject.handler.consumer:
                return story
        return None

    def finished(self) -> bool:
        """Whether the message is done."""
        story = self.story()
        return story is not None and story.status in ("done", "skipped")


def _plain(value: Any) -> Any:
    """A snapshot that can be compared and kept: cursors are read, rows become tuples."""
    if hasattr(value, "fetchall"):
        value = value.fetchall()
    if isinstance(value, list):
        return [tuple(row) if hasattr(row, "keys") and not isinstance(row, dict) else row for row in value]
    return value
