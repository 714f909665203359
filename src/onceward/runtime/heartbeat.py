"""This process's row in `worker`: registered, renewed by a thread with a connection of its own, removed at the end.

Invariant: nothing but the heartbeat itself can make the heartbeat late. What else a process owes the others (taking
over processes that died, fan-out, upkeep) has another thread and other connections, and so have the deadlines of
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
from onceward.errors import ConfigurationError, StoreConflict, StoreError, StoreUnavailable
from onceward.flow import RECONNECT, Flow, run_sync
from onceward.runtime.rounds import Rounds
from onceward.runtime.watchdog import TICK, Watchdog
from onceward.steps import presence
from onceward.steps.context import Context
from onceward.steps.gate import Gate
from onceward.steps.lane import open_tokens
from onceward.stores.protocol import Session, Store

log = logging.getLogger("onceward")

_AGAIN = "#"
"""Between the name of a process and what tells its later registrations apart."""
AGAIN_SECONDS = 1.0
"""How soon a heartbeat that failed is tried again, where that is sooner than the next one."""


class Presence:
    """A process that is known to the database for as long as it lives."""

    def __init__(
        self,
        context: Context,
        store: Store,
        *,
        process: str = "",
        lanes: int = 0,
        lost: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._context, self._store = context, store
        if _AGAIN in process:
            raise ConfigurationError(f"process={process!r}: the name of a process cannot hold {_AGAIN!r}")
        self._process = self._name = process or identity.new_id()
        self._lanes, self._lost = lanes, lost or _say_lost
        self._tokens = itertools.count(1)
        self._duties: list[Callable[[], Flow[int]]] = []
        self._inline = False
        self._rounds: list[Rounds] = []
        self._session: Session | None = None
        self._worker = 0
        self._lease = context.settings.lease.total_seconds()
        self._every = self._lease / 3
        self._beaten = 0.0
        self._away_since: float | None = None
        self._trusting_at = 0.0
        self._lock = threading.Lock()
        self.gate = Gate()
        self.watchdog = Watchdog()

    @property
    def worker(self) -> int:
        """The worker number of now; it changes when this process was declared dead and came back."""
        return self._worker

    def token(self) -> int:
        """A number never used before by this process."""
        return next(self._tokens)

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
                        run_sync(presence.take_over_lapsed(self._context, self._worker), self._session.perform)
                except BaseException:
                    self._session.close()  # perhaps in a transaction, whose lock would be in everybody's way
                    raise
                self._rounds = [
                    Rounds("onceward-presence", self._renew, pause=self._every, lost=self._lost),
                    Rounds("onceward-duties", self._serve, pause=self._every, lost=self._lost),
                    Rounds("onceward-watchdog", self.watchdog.look, pause=TICK, lost=self._lost),
                ]

    @property
    def _alive(self) -> bool:
        return bool(self._rounds) and all(rounds.alive for rounds in self._rounds)

    def also(self, duty: Callable[[], Flow[int]]) -> None:
        """Run a step about as often as the lease is renewed; when it answers that it did something, lanes are woken."""
        self._duties.append(duty)

    def distrust(self) -> None:
        """The database was away, perhaps for all: that a lease has lapsed says nothing until another one has passed."""
        self._trusting_at = time.monotonic() + self._lease

    def stop(self) -> None:
        """Let go of every note and leave; fine when not started."""
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
            self._say_goodbye(session)
        except StoreError as error:
            log.warning("could not say goodbye (%s); messages in hand come back when the lease runs out", error)
        finally:
            session.close()

    def _say_goodbye(self, session: Session) -> None:
        try:
            run_sync(presence.say_goodbye(self._context, self._worker), session.perform)
        except StoreUnavailable:  # perhaps only this connection is gone, as after a restart of the server
            if not session.perform(RECONNECT):
                raise
            run_sync(presence.say_goodbye(self._context, self._worker), session.perform)

    def _register(self) -> None:
        assert self._session is not None  # noqa: S101 - set by start
        flow = presence.register(
            self._context,
            process=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            inline=self._inline,
            lanes=self._lanes,
        )
        self._worker = run_sync(flow, self._session.perform)
        self._beaten = time.monotonic()

    # The heartbeat

    def _renew(self) -> float:
        """Renew the lease: a turn of its thread."""
        assert self._session is not None  # noqa: S101 - set by start
        try:
            self._beat()
        except BaseException as error:
            self.distrust()
            if not isinstance(error, StoreUnavailable):
                self._session.perform(RECONNECT)
                raise
            if self._away_since is None:
                self._away_since = time.monotonic()
                log.warning("the lease could not be renewed: %s; trying again", error)
            self._session.perform(RECONNECT)
            return min(self._every, AGAIN_SECONDS)
        return self._every

    def _beat(self) -> None:
        assert self._session is not None  # noqa: S101 - set by start
        flow = presence.beat(self._context, self._worker, self._name, inline=self._inline)
        if not run_sync(flow, self._session.perform):
            self._return()
        now = time.monotonic()
        if now - self._beaten > self._lease:  # as after an outage that nobody reported: others may be late, too
            self.distrust()
        self._beaten = now
        if self._away_since is not None:
            log.warning("the lease is renewed again after %.0f s", now - self._away_since)
            self._away_since = None

    def _return(self) -> None:
        """Register anew, under a name that cannot be in anybody's way."""
        assert self._session is not None  # noqa: S101 - set by start
        namesakes = run_sync(presence.namesakes(self._context, self._name), self._session.perform)
        name, self._name = self._name, f"{self._process}{_AGAIN}{identity.new_id()[:8]}"
        if namesakes:
            *_, pid, host = namesakes[0]
            log.error(
                "process %d on %s has registered under the name of this process, %s, and was given what it held; "
                "each process needs a name of its own. This one goes on as %s",
                *(pid, host, name, self._name),
            )
        else:
            log.warning("this process was declared dead and registers anew; what it held was given to others")
        self._register()

    # What it owes the others

    def _serve(self) -> float:
        """Take over, fan out, clean up: a turn of their thread. What fails is tried again after the others."""
        did = 0
        for duty in (self._release, *self._duties):
            did += self._do(self._take_over)  # before each, for they may take long
            did += self._do(duty)
        if did:
            self._store.ring()
        return self._every

    def _do(self, duty: Callable[[], Flow[int]]) -> int:
        if self._away_since is not None:
            return 0  # the heartbeat has said so
        try:
            with self._store.session() as session:
                return run_sync(duty(), session.perform)
        except (StoreUnavailable, StoreConflict) as error:
            log.warning("upkeep is put off: %s", error)
        except Exception:
            log.exception("upkeep failed; it will be tried again")
        return 0

    def _release(self) -> Flow[int]:
        return presence.release_strays(self._context, self._worker, partial(open_tokens, self.gate))

    def _take_over(self) -> Flow[int]:
        now = time.monotonic()
        if now < self._trusting_at or now - self._beaten > self._lease:
            return 0
        return (yield from presence.take_over_lapsed(self._context, self._worker))


def _say_lost(error: BaseException) -> None:
    log.critical("this process no longer renews its lease (%s); its next message registers it anew", error)
