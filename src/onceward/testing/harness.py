"""The place where cases happen: the database at its start, processes with faults, recovery, and what is found.

Invariant: every case begins from the same state and ends, recovered, in one that is compared
with that of a run without faults.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from onceward.admin.messages import MessageDetail
from onceward.errors import ConfigurationError
from onceward.inbox import Inbox
from onceward.message import Delivery
from onceward.registry import Handler
from onceward.testing.fault import Fault, Watch
from onceward.testing.looking import Check, looking
from onceward.testing.outside import own_addresses, own_file
from onceward.testing.process import Process, Sessions
from onceward.testing.restore import keeper_of

_ROUNDS = 6
_PATIENCE, _PAUSE = 10.0, 0.02
"""For how many seconds, and how often, a message that is due and cannot be claimed is tried: a busy server takes a
while to notice that a connection was cut, and keeps its locks until then."""

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
    recorded: Mapping[str, Any] | None = None
    """Results of calls through `message.once`, where nothing outside of the database may be touched."""


class Harness:
    """Runs cases on one subject."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.inbox = subject.inbox
        self._look = looking(subject.inbox, subject.check)
        self._delivery = Delivery.of(**subject.message)
        self._calls_before = 0
        self._answers: dict[str, Any] = {}
        self.problem = ""
        """Why a delivery was not acknowledged, in the case that runs."""
        self._sessions = Sessions(self.inbox.store)
        self._addresses = own_addresses(self.inbox.store)
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
        self._put_back(self._start)
        if self.subject.reset:
            self.process().introduce()
        if self.subject.setup:
            self.subject.setup()
        self._calls_before, self.problem = self._calls() or 0, ""

    def end(self) -> None:
        """Leave the database as it was found."""
        gc.collect(1)  # as in `look`
        self._put_back(self._original)
        self._drop_plain()
        self._sessions.close()

    def _put_back(self, state: Callable[[], object]) -> None:
        try:
            state()
        except Exception:  # noqa: BLE001 - a connection that a killed handler left open holds a lock
            gc.collect()  # of everything in the process, which takes long: only where it is needed
            state()
        self.inbox.context.forget()

    def process(self, fault: Fault | None = None, *, failing: bool = False) -> Process:
        """A new process, with a fault or without."""
        single_writer = self.inbox.store.single_writer
        watch = Watch(self._is_ours, fault, failing=failing, single_writer=single_writer, results=self._answers)
        watch.outside.own, watch.recorded = own_file(self.inbox.store), self.subject.recorded
        watch.outside.addresses = self._addresses
        watch.outside.refuses = self.subject.recorded is not None
        return Process(self.inbox, self.subject.handler, watch, self._sessions)

    def _is_ours(self, message: Any) -> bool:
        same = (message.source, message.id) == (self._delivery.source, self._delivery.id)
        return same and message.consumer == self.subject.handler.consumer

    def settle_down(self) -> None:
        """Recover: make whatever is due again run, until nothing changes; an operator decides about unknown effects."""
        for _ in range(_ROUNDS):
            if not self.unfinished():
                return
            self.work(self._is_due)
            detail = self.detail()
            if detail is not None and detail.status == "dead":
                open_effects = [effect for effect in detail.effects if not effect.done]
                for effect in open_effects:
                    result = self._answers.get(effect.name)
                    self.inbox.admin.settle_effect(
                        detail.seq, effect.name, happened=True, result=result, reason="a proof"
                    )
                if not open_effects:
                    return
                self.inbox.admin.redrive(detail.seq, reason="a proof")

    def work(self, is_due: Callable[[], bool]) -> None:
        """Make retries due, and run what is due in another process; what is due and cannot be claimed is waited for."""
        self.hurry()
        until = time.monotonic() + _PATIENCE
        while not self.process().work() and is_due() and time.monotonic() < until:
            time.sleep(_PAUSE)

    def _is_due(self) -> bool:
        detail = self.detail()
        return detail is not None and detail.status == "due"

    def hurry(self) -> None:
        """Make retries due."""
        with self.connection() as connection:
            connection.execute(f"UPDATE {self.inbox.context.prefix}queue SET due_at = 0 WHERE state = 'retry'")

    def unfinished(self) -> int:
        """How many messages wait, run or are dead."""
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
            effect = _plain(self._look(connection))
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
        raise ConfigurationError(f"external= returned {type(seen).__name__}; a list of the calls or a number is needed")

    def detail(self) -> MessageDetail | None:
        """What onceward knows of the message."""
        for seq in self.inbox.admin.find(self._delivery.source, self._delivery.id):
            detail = self.inbox.admin.message(seq)
            if detail is not None and detail.consumer == self.subject.handler.consumer:
                return detail
        return None

    def finished(self) -> bool:
        """Whether the message is done."""
        detail = self.detail()
        return detail is not None and detail.status in ("done", "skipped")


def _plain(value: Any) -> Any:
    """A snapshot that can be compared and kept: cursors are read, rows become tuples."""
    if hasattr(value, "fetchall"):
        value = value.fetchall()
    if isinstance(value, list):
        return [tuple(row) if hasattr(row, "keys") and not isinstance(row, dict) else row for row in value]
    return value
