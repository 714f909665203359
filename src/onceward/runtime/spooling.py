"""Receiving while the database is away: into the spool, and from there into the database once it is back.

Invariant: while the spool holds anything, this host appends to it, so that messages reach the database in the order in
which they came. Draining repeats a receive, which is safe: what was stored before a crash is a duplicate afterwards.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from onceward.deferred import asyncio
from onceward.errors import StoreBusy, StoreConflict, StoreUnavailable
from onceward.message import Delivery, Receipt

if TYPE_CHECKING:
    from onceward.runtime.spool import Spool, Spooled

log = logging.getLogger("onceward")

BATCH = 100

LOOKED = 10 * BATCH
"""When the database refuses so many in a row, it is taken to be at fault itself, and no more are tried."""
LONGEST_PAUSE = 60.0

Store = Callable[[Sequence[Delivery]], list[Receipt]]
Refusal = tuple["Spooled", Exception]


class Spooling:
    """A spool, and the thread that drains it; without a path deliveries go to the database alone."""

    def __init__(self, path: str | os.PathLike[str] | None, store: Store, every: float) -> None:
        self.spool = None if path is None else _opened(path)
        self._store, self._every = store, every
        self._placed = 0
        """How many messages of the spool were stored or put aside."""
        self._stopping, self._news = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def attempt(self, deliveries: Sequence[Delivery], attempt: Callable[[], list[Receipt]]) -> list[Receipt]:
        """Store deliveries as asked, or in the spool while the database is away or others are waiting there."""
        if self.spool is None:
            return attempt()
        if self.spool.is_empty:
            try:
                return attempt()
            except StoreBusy:
                raise  # the database is there, and has another copy in hand
            except StoreUnavailable as error:
                log.warning("database unreachable, messages go to the spool %s: %s", self.spool.path, error)
        return self._append(self.spool, deliveries)

    async def attempt_async(
        self, deliveries: Sequence[Delivery], attempt: Callable[[], Awaitable[list[Receipt]]]
    ) -> list[Receipt]:
        """As `attempt`, awaited."""
        if self.spool is None:
            return await attempt()
        if self.spool.is_empty:
            try:
                return await attempt()
            except StoreBusy:
                raise  # the database is there, and has another copy in hand
            except StoreUnavailable as error:
                log.warning("database unreachable, messages go to the spool %s: %s", self.spool.path, error)
        return await asyncio.to_thread(self._append, self.spool, deliveries)

    def _append(self, spool: Spool, deliveries: Sequence[Delivery]) -> list[Receipt]:
        spool.append(deliveries)
        self._news.set()
        self.start()
        return [Receipt("spooled", 0) for _ in deliveries]

    @property
    def waiting(self) -> bool:
        """Whether there is something to drain."""
        return self.spool is not None and not self.spool.is_empty

    def start(self) -> None:
        """Drain in the background until there is nothing left."""
        with self._lock:
            if self.spool and self.waiting and (self._thread is None or not self._thread.is_alive()):
                self._stopping.clear()
                self._thread = threading.Thread(target=self._run, args=[self.spool], name="onceward-spool", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Stop draining; what is left waits until the spool is opened again."""
        with self._lock:
            self._stopping.set()
            self._news.set()
            thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            thread.join()
        if self.spool is not None:
            self.spool.close()

    def _run(self, spool: Spool) -> None:
        pause = self._every
        while not self._stopping.is_set():
            self._news.clear()
            placed, refused, nothing_left = self._placed, False, False
            try:
                self.drain()
                nothing_left = spool.is_empty
            except StoreUnavailable:
                pass  # logged when the first message went to the spool
            except Exception:  # the thread goes on whatever it is: only it brings these messages to the database
                refused = True
                pause = self._every if placed != self._placed else min(pause * 2, LONGEST_PAUSE)
                what = "the spool %s could not be drained; it is tried again in %.0f s, or when another message comes"
                log.exception(what, spool.path, pause)
            with self._lock:  # whoever appends from now on finds a thread that goes on, or starts another
                if nothing_left and not self._news.is_set():
                    self._thread = None
                    return
            self._stopping.wait(self._every)
            if refused:  # another message may show that it is not the database's fault
                self._news.wait(pause - self._every)

    def drain(self) -> int:
        """Store what is in the spool, in order; returns how many, or raises when the database is (still) away.

        What was placed before a drain failed is gone from the spool. A record that is refused is put aside when one
        behind it can be stored; while none can, the database may be at fault, and they wait.
        """
        spool, number = self.spool, 0
        if spool is None or spool.is_empty:
            return 0
        with spool.draining() as mine:
            after, seen, refused = 0, list[int](), list[Refusal]()
            while mine and not self._stopping.is_set():
                batch = spool.read(after, BATCH)
                if not batch and not refused:
                    break
                found = self._refused(batch)
                refused += found
                seen += [one.number for one in batch]
                if len(found) < len(batch):
                    spool.settle(seen, {one.number: repr(error) for one, error in refused})
                    for one, error in refused:
                        _say_refused(spool, one.delivery, error)
                    self._placed += len(seen)
                    seen, refused = [], []
                elif refused and (not batch or len(refused) >= LOOKED):
                    raise refused[0][1]
                after = batch[-1].number
                number += len(batch)
        return number

    def _refused(self, batch: Sequence[Spooled]) -> list[Refusal]:
        """Store a batch; where the database refuses it, one by one. Returns which of them are refused."""
        error = self._refusal([one.delivery for one in batch]) if batch else None
        if error is None:
            return []
        if len(batch) == 1:
            return [(batch[0], error)]
        return [(one, error) for one in batch if (error := self._refusal([one.delivery])) is not None]

    def _refusal(self, deliveries: Sequence[Delivery]) -> Exception | None:
        try:
            self._store(deliveries)
        except (StoreUnavailable, StoreConflict):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not keep those behind it from being stored
            return error
        return None


def _opened(path: str | os.PathLike[str]) -> Spool:
    from onceward.runtime.spool import Spool  # noqa: PLC0415 - most inboxes have none

    return Spool(path)


def _say_refused(spool: Spool, delivery: Delivery, error: Exception) -> None:
    from onceward.runtime.spool import shown  # noqa: PLC0415 - as in _opened

    what = "%s (%s from %s) cannot be stored: %s. It is kept in the spool, in the table `refused`: %s"
    log.error(what, delivery.type, delivery.id, delivery.source, error, shown(spool.path))
