"""This process's row in `worker`: registered, renewed by a thread with a connection of its own, removed at the end.

The same thread takes over processes that died and interrupts handlers that overrun, so both work while every
lane is busy.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onceward import identity
from onceward.deferred import socket
from onceward.errors import StoreError, StoreUnavailable
from onceward.flow import RECONNECT, Flow, run_sync
from onceward.steps import presence
from onceward.steps.context import Context
from onceward.steps.lane import Gate
from onceward.stores.protocol import Session, Store

log = logging.getLogger("onceward")


class Watch:
    """The deadline of one lane's running handler."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deadline = float("inf")
        self._session: Session | None = None
        self._expired = False

    def begin(self, session: Session, seconds: float) -> None:
        """A handler starts."""
        with self._lock:
            self._session, self._deadline, self._expired = session, time.monotonic() + seconds, False

    def end(self) -> bool:
        """The handler has ended; answers whether it was interrupted."""
        with self._lock:
            self._session, self._deadline = None, float("inf")
            return self._expired

    def check(self, now: float) -> None:
        """Interrupt the handler if it has overrun."""
        with self._lock:
            if now > self._deadline and self._session is not None and not self._expired:
                self._expired = True
                self._session.interrupt()

    def cut(self) -> None:
        """End the handler's transaction, though not the handler: nobody waits for it any more."""
        with self._lock:
            if self._session is not None:
                self._expired = True
                self._session.cut()


class Presence:
    """A process that is known to the database for as long as it lives."""

    TICK = 0.2

    def __init__(self, context: Context, store: Store, *, process: str = "") -> None:
        self._context, self._store = context, store
        self._process = process or identity.new_id()
        self._starts = itertools.count()
        self._tokens = itertools.count(1)
        self._watches: set[Watch] = set()
        self._duties: list[Callable[[], Flow[int]]] = []
        self._orphans: set[int] = set()
        self._inline = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._session: Session | None = None
        self._worker = 0
        self._trusting_at = 0.0
        self._lock = threading.Lock()
        self.gate = Gate()

    @property
    def worker(self) -> int:
        """The worker number of now; it changes when this process was declared dead and came back."""
        return self._worker

    def token(self) -> int:
        """A number never used before by this process."""
        return next(self._tokens)

    def start(self, *, inline: bool = False) -> None:
        """Register and begin to renew; fine when started already."""
        if self._thread is not None and (self._inline or not inline):
            return  # past the lock, which a renewal holds for as long as the database takes
        with self._lock:
            if self._thread is None:
                self._inline = inline
                self._session = self._store.connect()
                try:
                    self._register()
                    if inline:  # before it meets the message that the process before it may have died of
                        run_sync(presence.take_over_lapsed(self._context, self._worker), self._session.perform)
                except BaseException:
                    self._session.close()  # perhaps in a transaction, whose lock would be in everybody's way
                    raise
                self._thread = threading.Thread(target=self._run, name="onceward-presence", daemon=True)
                self._thread.start()
            elif inline and not self._inline:
                self._inline = True
                self._beat()

    def also(self, duty: Callable[[], Flow[int]]) -> None:
        """Run a step every time the lease is renewed; when it answers that it did something, lanes are woken."""
        self._duties.append(duty)

    def adopt(self, tokens: set[int]) -> None:
        """Let go, in time, of claims whose lane ended without knowing what became of them."""
        self._orphans |= tokens

    @contextmanager
    def watched(self) -> Iterator[Watch]:
        """A deadline for one lane."""
        watch = Watch()
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    def cut(self) -> None:
        """End the transactions of handlers that still run, so that their locks are in nobody's way."""
        for watch in list(self._watches):
            watch.cut()

    def stop(self) -> None:
        """Let go of every note and leave; fine when not started."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping.set()
        thread.join()
        assert self._session is not None  # noqa: S101 - set by start
        try:
            self._say_goodbye(self._session)
        except StoreError as error:
            log.warning("could not say goodbye (%s); messages in hand come back when the lease runs out", error)
        finally:
            self._session.close()

    def _say_goodbye(self, session: Session) -> None:
        try:
            run_sync(presence.say_goodbye(self._context, self._worker), session.perform)
        except StoreUnavailable:  # perhaps only this connection is gone, as after a restart of the server
            if not session.perform(RECONNECT):
                raise
            run_sync(presence.say_goodbye(self._context, self._worker), session.perform)

    def _register(self) -> None:
        assert self._session is not None  # noqa: S101 - set by start
        number = next(self._starts)
        name = self._process if number == 0 else f"{self._process}.{number}"
        flow = presence.register(
            self._context, process=name, host=socket.gethostname(), pid=os.getpid(), inline=self._inline
        )
        self._worker = run_sync(flow, self._session.perform)

    def _run(self) -> None:
        every = self._context.settings.lease.total_seconds() / 3
        beaten = time.monotonic()
        while not self._stopping.wait(min(self.TICK, every)):
            now = time.monotonic()
            for watch in list(self._watches):
                watch.check(now)
            if now - beaten >= every:
                beaten = now
                with self._lock:  # the session has one user at a time
                    self._renew()

    def _renew(self) -> None:
        assert self._session is not None  # noqa: S101 - set by start
        try:
            self._beat()
            tokens = set(self._orphans)
            run_sync(presence.release(self._context, self._worker, tokens), self._session.perform)
            self._orphans -= tokens
            did = 0
            if time.monotonic() >= self._trusting_at:
                did += run_sync(presence.take_over_lapsed(self._context, self._worker), self._session.perform)
            for duty in self._duties:
                did += run_sync(duty(), self._session.perform)
            if did:
                self._store.ring()
        except StoreUnavailable as error:
            log.warning("the lease could not be renewed: %s", error)
            # Perhaps nobody else could either: that a lease has lapsed says nothing until another one has passed.
            self._trusting_at = time.monotonic() + self._context.settings.lease.total_seconds()
            self._session.perform(RECONNECT)
        except StoreError:
            log.exception("upkeep of the lease failed; it will be tried again")
            self._session.perform(RECONNECT)

    def _beat(self) -> None:
        assert self._session is not None  # noqa: S101 - set by start
        if not run_sync(presence.beat(self._context, self._worker, inline=self._inline), self._session.perform):
            log.warning("this process was declared dead and registers anew; what it held was given to others")
            self._register()
