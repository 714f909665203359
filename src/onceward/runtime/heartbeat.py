"""This process's row in `worker`: registered, renewed by a thread with a connection of its own, removed at the end.

Invariant: nothing but the heartbeat itself can make the heartbeat late. What else a process owes the others (taking
over processes that died, fan-out, maintenance) has another thread and other connections, and so have the deadlines of
handlers: each works while the others wait or fail.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial

from onceward.deferred import socket
from onceward.domain import identity
from onceward.domain.selection import EVERYTHING, Selection
from onceward.errors import ConfigurationError, StoreConflict, StoreError, StoreUnavailable
from onceward.flow import RECONNECT, Flow, run_sync
from onceward.runtime.rounds import Rounds
from onceward.runtime.watchdog import TICK, Watchdog
from onceward.steps import membership
from onceward.steps.context import LOOK_SECONDS, Context
from onceward.steps.isolation import Isolation
from onceward.steps.lane import open_tokens
from onceward.stores.protocol import Session, Store

log = logging.getLogger("onceward")

_AGAIN = "#"
"""Between the name of a process and what tells its later registrations apart."""
AGAIN_SECONDS = 1.0
"""How soon a heartbeat that failed is tried again, where that is sooner than the next one."""


class Membership:
    """A process that is known to the database for as long as it lives."""

    def __init__(  # noqa: PLR0913 - who it is
        self,
        context: Context,
        store: Store,
        *,
        process: str = "",
        lanes: int = 0,
        selection: Selection = EVERYTHING,
        lost: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._context, self._store = context, store
        if _AGAIN in process:
            raise ConfigurationError(f"process={process!r}: the name of a process cannot contain {_AGAIN!r}")
        self._process = self._name = process or identity.new_id()
        self._lanes, self._lost = lanes, lost or _say_lost
        self._selection = selection
        self.token: Callable[[], int] = itertools.count(1).__next__
        """A number never used before by this process."""
        self._duties: list[Callable[[], Flow[int]]] = []
        self._inline = False
        self._rounds: list[Rounds] = []
        self._is_lost = False
        """One of them has ended without being told to."""
        self._session: Session | None = None
        self.worker = 0
        """The worker number of now; it changes when this process was declared dead and came back."""
        self._lease = context.settings.lease.total_seconds()
        self._every = self._lease / 3
        self._renewed_at = 0.0
        self._away_since: float | None = None
        self._trusting_at = 0.0
        self._lock = threading.Lock()
        self.isolation = Isolation()
        self.watchdog = Watchdog()

    def number(self) -> int:
        """The worker number of now, for lanes."""
        return self.worker

    def start(self, *, inline: bool = False) -> None:
        """Register and begin to renew; fine when started already."""
        if self._alive:
            return  # past the lock
        with self._lock:
            if not self._alive:
                self._leave()  # a heartbeat that was lost
                self._inline = inline
                self._session = self._store.connect()
                try:
                    self._register()
                    if inline:  # before it meets the message that the process before it may have died of
                        run_sync(membership.take_over_lapsed(self._context, self.worker), self._session.perform)
                except BaseException:
                    self._session.close()  # perhaps in a transaction, whose lock would be in everybody's way
                    raise
                self._is_lost = False
                self._rounds = [
                    Rounds("onceward-heartbeat", self._renew, pause=self._every, lost=self._ended),
                    Rounds("onceward-duties", self._serve, pause=self._every, lost=self._ended),
                    Rounds("onceward-watchdog", self.watchdog.look, pause=TICK, lost=self._ended),
                    Rounds("onceward-claims", self._look_at_claims, pause=LOOK_SECONDS, lost=self._ended),
                ]

    def _ended(self, error: BaseException) -> None:
        self._is_lost = True
        self._lost(error)

    @property
    def _alive(self) -> bool:
        return bool(self._rounds) and not self._is_lost

    def also(self, duty: Callable[[], Flow[int]]) -> None:
        """Run a step about as often as the lease is renewed; when it returns that it did something, lanes are woken."""
        self._duties.append(duty)

    def distrust(self) -> None:
        """The database was away, perhaps for all: that a lease has lapsed says nothing until another one has passed."""
        self._trusting_at = time.monotonic() + self._lease

    def stop(self) -> None:
        """Let go of every claim and leave; fine when not started."""
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        rounds, self._rounds = self._rounds, []
        for one in rounds:
            one.stop()
        session, self._session = self._session, None
        if not rounds or session is None:
            return
        try:
            self._deregister(session)
        except StoreError as error:
            log.warning(
                "could not deregister, the messages of this process are given back when its lease runs out: %s", error
            )
        finally:
            session.close()

    def _deregister(self, session: Session) -> None:
        try:
            run_sync(membership.deregister(self._context, self.worker), session.perform)
        except StoreUnavailable:  # perhaps only this connection is gone, as after a restart of the server
            if not session.perform(RECONNECT):
                raise
            run_sync(membership.deregister(self._context, self.worker), session.perform)

    def _register(self) -> None:
        assert self._session is not None  # noqa: S101 - set by start
        flow = membership.register(
            self._context,
            process=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            inline=self._inline,
            lanes=self._lanes,
            selection=self._selection,
        )
        self.worker = run_sync(flow, self._session.perform)
        self._renewed_at = time.monotonic()

    # The heartbeat

    def _renew(self) -> float:
        """Renew the lease: a turn of its thread."""
        assert self._session is not None  # noqa: S101 - set by start
        try:
            self._heartbeat()
        except BaseException as error:
            self.distrust()
            if not isinstance(error, StoreUnavailable):
                self._session.perform(RECONNECT)
                raise
            if self._away_since is None:
                self._away_since = time.monotonic()
                log.warning("database unreachable since %s, retrying: %s", time.strftime("%H:%M:%S"), error)
            self._session.perform(RECONNECT)
            return min(self._every, AGAIN_SECONDS)
        return self._every

    def _heartbeat(self) -> None:
        assert self._session is not None  # noqa: S101 - set by start
        flow = membership.heartbeat(self._context, self.worker, self._name, inline=self._inline)
        if not run_sync(flow, self._session.perform):
            self._return()
        now = time.monotonic()
        if now - self._renewed_at > self._lease:  # as after an outage that nobody reported: others may be late, too
            self.distrust()
        self._renewed_at = now
        if self._away_since is not None:
            log.warning("database back after %.0f s, the lease is renewed", now - self._away_since)
            self._away_since = None

    def _return(self) -> None:
        """Register anew, under a name that no other process has."""
        assert self._session is not None  # noqa: S101 - set by start
        namesakes = run_sync(membership.namesakes(self._context, self._name), self._session.perform)
        name, self._name = self._name, f"{self._process}{_AGAIN}{identity.new_id()[:8]}"
        if namesakes:
            log.error(
                "process %d on %s has registered under the name of this process, %s, and was given its messages; "
                "give each process a name of its own (process=). This one goes on as %s",
                *(namesakes[0].pid, namesakes[0].host, name, self._name),
            )
        else:
            log.warning(
                "the lease of this process ran out and its messages were given to other workers; it registers again"
            )
        self._register()

    # What it owes the others

    def _serve(self) -> float:
        """Take over, fan out, clean up: a turn of their thread. What fails is tried again after the others."""
        did = 0
        for duty in (self._unclaim_strays, *self._duties):
            did += self._do(self._take_over)  # before each, for they may take long
            did += self._do(duty)
        if did:
            self._store.notify()
        return self._every

    def _do(self, duty: Callable[[], Flow[int]]) -> int:
        if self._away_since is not None:
            return 0  # the heartbeat has said so
        try:
            with self._store.session() as session:
                return run_sync(duty(), session.perform)
        except (StoreUnavailable, StoreConflict) as error:
            log.warning("maintenance is postponed: %s", error)
        except Exception:
            log.exception("maintenance failed with an unexpected error; it is tried again")
        return 0

    def _look_at_claims(self) -> float:
        """Interrupt handlers whose messages an operator has taken away: as soon as a pause is obeyed."""
        if self.watchdog.running():
            self._do(partial(self.watchdog.interrupt_lost, self._context))
        return LOOK_SECONDS

    def _unclaim_strays(self) -> Flow[int]:
        return membership.unclaim_strays(self._context, self.worker, partial(open_tokens, self.isolation))

    def _take_over(self) -> Flow[int]:
        now = time.monotonic()
        if now < self._trusting_at or now - self._renewed_at > self._lease:
            return 0
        return (yield from membership.take_over_lapsed(self._context, self.worker))


def _say_lost(error: BaseException) -> None:
    log.critical("this process no longer renews its lease (%s); it registers again with its next message", error)
