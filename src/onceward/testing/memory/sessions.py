"""What the moves of a memory store yield, and the sessions that perform it.

Invariant: `Apply` is a whole transaction. What a handler's transaction has recorded is applied with `End` and at no
other time, in one change with the end itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar

from onceward.errors import GuardFailed, StoreConflict, StoreUnavailable
from onceward.flow import Call, Commit, DryRun, Flow, Outcome, Reconnect, Rollback, StoreRequest
from onceward.stores.calls import awaited_outcome, outcome
from onceward.stores.dry_run import DryRunResult
from onceward.testing.memory.recorder import Recorded, Recorder
from onceward.testing.memory.tables import Tables

P = ParamSpec("P")
T = TypeVar("T")


class MemoryRequest(StoreRequest):
    """What the moves yield: each knows what it does to a session."""

    def perform(self, session: MemorySession) -> Any:
        """Do it."""
        raise NotImplementedError


@dataclass(slots=True)
class Apply(MemoryRequest):
    """Change the tables, as a transaction of its own; the answer is what the function returns."""

    change: Callable[[Tables], Any]

    def perform(self, session: MemorySession) -> Any:
        held = session.held
        return session.memory.apply(self.change) if held is None else self.change(held)


@dataclass(slots=True)
class Open(MemoryRequest):
    """Begin a handler's transaction: from now on its writes are recorded."""

    keys: Collection[int] = ()
    """Keys of which no other transaction gets a message until this one ends; the answer is those that were free."""

    def perform(self, session: MemorySession) -> set[int]:
        session.forget()
        held = session.memory.keys
        session.keys = {key for key in self.keys if held.setdefault(key, session) is session}  # atomic, as they are
        session.tx = Recorder(lambda: session.memory.tables)
        return session.keys


@dataclass(slots=True)
class Record(MemoryRequest):
    """Add a write of onceward's to those of the handler."""

    write: Recorded

    def perform(self, session: MemorySession) -> None:
        session.open_tx().writes.append(self.write)


class Savepoint(MemoryRequest):
    """What was recorded until here stays, whatever fails later."""

    def perform(self, session: MemorySession) -> None:
        tx = session.open_tx()
        tx.marks.append(len(tx.writes))


class Undo(MemoryRequest):
    """Forget what was recorded since the last savepoint."""

    def perform(self, session: MemorySession) -> None:
        tx = session.open_tx()
        del tx.writes[tx.marks[-1] :]


@dataclass(slots=True)
class End(MemoryRequest):
    """Apply what was recorded and this change, as one."""

    change: Callable[[Tables], Any]

    def perform(self, session: MemorySession) -> Any:
        answer = session.memory.apply(self.change, session.open_tx())
        session.forget()
        return answer


class Hold(MemoryRequest):
    """What is applied from now until Commit is one transaction, and no other session changes anything meanwhile."""

    def perform(self, session: MemorySession) -> None:
        memory = session.memory
        memory.lock.acquire()
        session.held = memory.tables.copied(memory.clock())


def move(change: Callable[Concatenate[Any, Tables, P], T]) -> Callable[Concatenate[Any, P], Flow[T]]:
    """A move that is one change of the tables."""

    def made(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Flow[T]:
        answer: T = yield Apply(lambda tables: change(self, tables, *args, **kwargs))
        return answer

    return made


class Memory:
    """The tables, and the one lock around every change of them."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.tables, self.clock, self.lock = Tables(), clock, RLock()
        self.keys: dict[int, object] = {}
        """Keys of which a message is processed inline now, and who does that: the key locks of this store."""

    def apply(self, change: Callable[[Tables], Any], recorded: Recorder | None = None) -> Any:
        """Make a change as a whole, after what was recorded; or raise, and nothing of it has happened."""
        with self.lock:
            changed = self.tables.copied(self.clock())
            if recorded is not None:
                recorded.apply(changed)
            answer = change(changed)
            self.tables = changed
            return answer


class MemorySession:
    """One connection, so to speak: at most one transaction at a time."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.tx: Recorder | None = None
        """The transaction of a handler,"""
        self.keys: set[int] = set()
        """the keys that it holds,"""
        self.held: Tables | None = None
        """or what is changed between Hold and Commit."""
        self._is_open, self._is_cut = True, False

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return self.tx is None and self.held is None

    def perform(self, request: Any) -> Any:
        if isinstance(request, tuple):
            return tuple(self.perform(part) for part in request)
        if isinstance(request, Reconnect):
            return self._reconnect()
        if self._is_cut or not self._is_open:
            raise StoreUnavailable("this session of the memory store is closed")
        if isinstance(request, MemoryRequest):
            return request.perform(self)
        if isinstance(request, Call):
            with self.lent() as tx:
                return examined(outcome(request, tx, is_infrastructure), tx)
        if isinstance(request, DryRun):
            with self.lent() as tx:
                return shown(examined(outcome(request.call, tx, is_infrastructure), tx), tx)
        return self._end(request)

    def _end(self, request: Commit | Rollback) -> None:
        if isinstance(request, Commit) and self.held is not None:
            self.memory.tables = self.held
        self.forget()

    def open_tx(self) -> Recorder:
        """The transaction; raises where there is none, for then it was not finished but lost."""
        if self.tx is None:
            raise GuardFailed("the transaction that is to be finished is not there any more")
        return self.tx

    @contextmanager
    def lent(self) -> Iterator[Recorder]:
        """The transaction, while a handler has it."""
        tx = self.open_tx()
        tx.lend()
        try:
            yield tx
        finally:
            tx.reclaim()

    def forget(self) -> None:
        """Nothing is open any more, and nothing of it stays."""
        for key in self.keys:
            self.memory.keys.pop(key, None)
        if self.held is not None:
            self.memory.lock.release()
        self.tx, self.keys, self.held = None, set(), None

    def _reconnect(self) -> bool:
        self.forget()
        self._is_open = not self._is_cut
        return self._is_open

    def cut(self) -> None:
        self._is_cut = True
        if self.held is None:  # what is held is about to end, in the thread that began it
            self.forget()

    def interrupt(self) -> None:
        if self.tx is not None:
            self.tx.overrun = True

    def close(self) -> None:
        self.forget()
        self._is_open = False


class AsyncMemorySession:
    """The same, awaited: nothing of it waits but the handler."""

    def __init__(self, session: MemorySession) -> None:
        self._session = session

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return self._session.idle

    async def perform(self, request: Any) -> Any:
        if isinstance(request, Call):
            with self._session.lent() as tx:
                return examined(await awaited_outcome(request, tx, is_infrastructure), tx)
        if isinstance(request, DryRun):
            with self._session.lent() as tx:
                return shown(examined(await awaited_outcome(request.call, tx, is_infrastructure), tx), tx)
        return self._session.perform(request)

    def abandon(self) -> None:
        self._session.close()

    async def close(self) -> None:
        self._session.close()


def examined(called: Outcome, tx: Recorder) -> Outcome:
    """What a handler did, with whether it has used its transaction."""
    called.touched = tx.statements > 0
    return called


def shown(called: Outcome, tx: Recorder) -> DryRunResult:
    """What a handler would have done."""
    try:
        return DryRunResult(called, tx.statements_shown(), tx.changes())
    except StoreConflict as conflict:
        return DryRunResult(called, tx.statements_shown(), (), f"nothing would be committed: {conflict}")


def is_infrastructure(error: BaseException) -> bool:
    """Whether the store was at fault rather than the message."""
    return isinstance(error, StoreUnavailable | StoreConflict)
