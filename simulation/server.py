"""What the simulations on real servers share: one database for all histories, a thread for each actor's connection.

The scheduler hands one request at a time to one of the threads. A statement that must wait for a lock is recognised by
the server itself (`Locks`), so what happens depends on the seed and not on how fast the machine is.

Many transactions are open at once: this reaches what SQLite's single writer cannot: late commits, row locks, key locks,
deadlocks.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from onceward.errors import StoreConflict, StoreUnavailable
from onceward.flow import Begin, Each, Query, Reconnect, Rollback
from simulation.clock import Clock
from simulation.lite import CROWDED, PREFIX, TABLES
from simulation.requests import Blocked, Close, Open, Write

GLANCE = 0.003
"""Seconds before the server is asked whether a statement waits for a lock."""
CANCELLED = 60.0
"""Seconds in which the server has ended a statement that was cancelled, however busy the machine is."""


class Locks(Protocol):
    """What the server knows of who waits for whom; connections are known by its numbers for them."""

    def blockers(self, pid: int, /) -> list[int]:
        """Who holds what one waits for."""

    def in_deadlock(self, pid: int, /) -> bool:
        """Whether one waits, in the end, for itself."""


class ServerDatabase(ABC):
    """One database on a real server, used by one history after the other."""

    name: str
    single_writer = False
    locks: Locks

    def __init__(self) -> None:
        self.clock = Clock()
        self.chance = random.Random(0)
        self.epoch = 0
        self.sessions: list[Any] = []
        self._pool: list[Any] = []
        self._callers: list[Any] = []

    @abstractmethod
    def run(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Look at what is committed."""

    @abstractmethod
    def new_session(self) -> Any:
        """A connection of its own."""

    @abstractmethod
    def new_caller(self) -> Any:
        """A connection that is a program's."""

    def begin(self, clock: Clock) -> None:
        """Begin a new history: nothing of the last one is under way."""
        for session in list(self.sessions):
            self.give_back(session)
        self.clock, self.epoch = clock, 0
        self.chance.seed(0)

    def session(self, name: str) -> Any:
        """A connection of its own for an actor."""
        session = self._pool.pop() if self._pool else self.new_session()
        return self._given(session, name)

    def caller(self, name: str) -> Any:
        """A connection of a program's own, in whose transactions it receives."""
        caller = self._callers.pop() if self._callers else self.new_caller()
        return self._given(caller, name)

    def _given(self, session: Any, name: str) -> Any:
        session.name, session.broken = name, False
        self.sessions.append(session)
        return session

    def give_back(self, session: Any) -> None:
        """The actor is gone; its connection may serve another."""
        session.cut()
        self.sessions.remove(session)
        (self._callers if session.is_caller else self._pool).append(session)

    def close_sessions(self) -> None:
        """Close every connection."""
        for session in [*self.sessions, *self._pool, *self._callers]:
            session.close()

    def ended(self) -> None:
        """A transaction has ended: whoever waited for it goes on or waits for another."""
        self.epoch += 1
        waiting = [session for session in self.sessions if session.waits]
        self.chance.shuffle(waiting)
        while any(session.come_to_rest() for session in waiting):  # it may have ended what others waited for
            waiting = [session for session in waiting if session.waits]

    def waits_for_caller(self, session: ServerSession) -> bool:
        """Whether a caller's transaction is in the way."""
        callers = {one.pid for one in self.sessions if one.is_caller}
        return not callers.isdisjoint(self.locks.blockers(session.pid))

    def claims(self) -> list[tuple[int | None, int, int, int]]:
        """Committed claims: (key hash, worker, token, seq)."""
        rows = self.run(f"SELECT key_hash, worker, token, seq FROM {PREFIX}queue WHERE token IS NOT NULL ORDER BY seq")
        return [(row[0], row[1], row[2], row[3]) for row in rows]

    def crowded(self) -> list[int]:
        """Committed claims of messages that must be alone and are not: their worker holds another."""
        return [row[0] for row in self.run(CROWDED)]

    def has_effect_intent(self, key: str) -> bool:
        """Whether the intent of an external call is committed."""
        return bool(self.run(f"SELECT 1 FROM {PREFIX}effect e WHERE e.key = %s", key))

    def has_outgoing(self, message_id: str) -> bool:
        """Whether an outgoing message is committed."""
        return bool(self.run(f"SELECT 1 FROM {PREFIX}body WHERE id = %s", message_id))

    def outgoing_of(self, worker: int) -> set[str]:
        """The ids of outgoing messages that a worker has claimed and not finished."""
        sql = f"SELECT b.id FROM {PREFIX}queue q JOIN {PREFIX}body b USING (seq) WHERE q.outgoing AND q.worker = %s"
        return {row[0] for row in self.run(sql, worker)}

    def catalog_version(self) -> int:
        """The committed version of the catalog."""
        return int(self.run(f"SELECT version FROM {PREFIX}catalog")[0][0])

    def names(self) -> dict[int, str]:
        """Names by their numbers."""
        return {row[0]: row[1] for row in self.run(f"SELECT id, name FROM {PREFIX}name")}

    def queue(self) -> list[tuple[int, str, int | None]]:
        """Committed unfinished messages: (seq, state, token)."""
        rows = self.run(f"SELECT seq, state, token FROM {PREFIX}queue ORDER BY seq")
        return [(row[0], row[1], row[2]) for row in rows]

    def open_cases(self) -> list[int]:
        """Open cases of quarantine."""
        return [row[0] for row in self.run(f"SELECT id FROM {PREFIX}quarantine WHERE resolution IS NULL ORDER BY id")]

    def cases(self) -> set[int]:
        """The messages that have a case of quarantine, open or decided."""
        return {row[0] for row in self.run(f"SELECT seq FROM {PREFIX}quarantine")}

    def open_effects(self) -> list[tuple[str, int]]:
        """(key, seq) of effects whose outcome is not recorded and whose message is not running."""
        rows = self.run(
            f"SELECT e.key, e.seq FROM {PREFIX}effect e JOIN {PREFIX}queue q ON q.seq = e.seq "
            "WHERE NOT e.done AND q.token IS NULL ORDER BY e.key"
        )
        return [(row[0], row[1]) for row in rows]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Everything that is committed."""
        found = {name: self.dump(PREFIX + name) for name in TABLES}
        found["effect_log"] = self.dump("effect_log")
        return found

    @abstractmethod
    def dump(self, table: str) -> list[dict[str, Any]]:
        """The committed rows of a table, in the order of its first column."""


class ServerSession(ABC):
    """An actor's connection and its thread; it can be cut."""

    patience = 20.0
    changed = 0
    is_caller = False
    """Whether its transactions begin and end as somebody else says."""

    def __init__(self, database: Any) -> None:
        self.database, self.name, self.broken = database, "", False
        self._thread = ThreadPoolExecutor(1)
        self._real = self.connected()
        self._pending: Future[Any] | None = None
        self.waits = False
        """Whether its request had not been answered when it came to rest, whatever has become of it since."""

    @abstractmethod
    def connected(self) -> Any:
        """A session of the store."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """Whom to ask the server about."""

    @abstractmethod
    def write(self, request: Write) -> None:
        """Write an effect as a handler does."""

    @abstractmethod
    def open(self, request: Open) -> None:
        """Begin a transaction of the caller's, and decide what it sees."""

    @abstractmethod
    def cancel_statement(self) -> None:
        """The server ends what it is doing for this connection."""

    @abstractmethod
    def end_victim(self) -> None:
        """What a deadlock leaves of the transaction whose statement it has ended."""

    @abstractmethod
    def peek_state(self, seq: int) -> str:
        """The state of a row as this transaction sees it."""

    @property
    @abstractmethod
    def is_stopped(self) -> bool:
        """Whether it goes on only when it is told to."""

    @abstractmethod
    def is_waiting(self) -> bool:
        """Whether it waits for a lock; then it is stopped, and else it goes on."""

    @abstractmethod
    def go_on(self) -> None:
        """Let it run, if it was stopped."""

    @property
    def is_idle(self) -> bool:
        """Whether the connection has no transaction open."""
        return bool(self._real.idle)

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return self._pending is None and self.is_idle

    def perform(self, request: Any) -> Any:
        """Perform one request; raises `Blocked` while it waits for a lock."""
        if isinstance(request, Reconnect):
            self.cut()
            self.broken = False
            return True
        if self.broken:
            raise StoreUnavailable("the connection is gone")
        if isinstance(request, Begin):
            self.patience = request.lock_limit
            return self._real.perform(request)
        if self._pending is None:
            self.go_on()
            self._pending = self._thread.submit(self._action(request))
        was_open = not self.is_idle or not isinstance(request, Rollback)
        if not self.come_to_rest():
            self._break_deadlock()
        pending, self._pending = self._pending, None
        try:
            answer = pending.result()
        except BaseException:
            self.database.ended()  # its locks are free as soon as it is refused, before it is rolled back
            raise
        if was_open and self.is_idle:
            self.database.ended()
        return answer

    def _action(self, request: Any) -> Callable[[], Any]:
        now = {"now": self.database.clock.wall(), "chance": self.database.chance.random()}
        if isinstance(request, Query):
            request = replace(request, params={**request.params, **now})
        elif isinstance(request, Each):
            request = replace(request, shared={**request.shared, **now})
        if isinstance(request, Write):
            return lambda: self.write(request)
        if isinstance(request, Open):
            return lambda: self.open(request)
        if isinstance(request, Close):
            connection = self._real.connection
            return lambda: connection.commit() if request.commits else connection.rollback()
        return lambda: self._real.perform(request)

    def come_to_rest(self) -> bool:
        """Wait until the running statement has ended (True) or waits for somebody (False)."""
        self.waits = False
        while self._pending is not None and not self.waits:
            try:
                self._pending.exception(timeout=0 if self.is_stopped else GLANCE)
            except TimeoutError:
                self.waits = self.is_waiting()
            else:
                break
        return not self.waits

    def _break_deadlock(self) -> None:
        """Wait with the others; where they wait for each other, the last to come is ended, as the server would do."""
        if not self.database.locks.in_deadlock(self.pid):
            raise Blocked
        self._cancel()
        self.end_victim()
        raise StoreConflict("deadlock detected")

    def give_up(self) -> None:
        """It waited too long for a lock: the statement is cancelled."""
        self._cancel()

    def _cancel(self) -> None:
        if self._pending is not None:
            if not self.come_to_rest():  # it waits for a lock, so this is what ends it: once, or the next would be hit
                self.cancel_statement()
                self.go_on()
                self._pending.exception(timeout=CANCELLED)
            self._pending, self.waits = None, False
            self.database.ended()

    def abort(self) -> None:
        """The database rolls the transaction back; the connection stays."""
        self._cancel()
        if not self.is_idle:
            self.roll_back()
            self.database.ended()

    def roll_back(self) -> None:
        """Roll back what is open."""
        connection = self._real.connection
        if self.is_caller:
            connection.rollback()
            return
        connection.take_pending_begin()
        self._real.perform(Rollback())

    def cut(self) -> None:
        """The connection is lost, and with it whatever is not committed."""
        self.abort()
        self.broken = True

    def close(self) -> None:
        """The connection is not needed any more."""
        self.cut()
        self._thread.shutdown()
        (self._real.connection if self.is_caller else self._real).close()
