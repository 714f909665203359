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
    from onceward.runtime.spool import Spool

log = logging.getLogger("onceward")

BATCH = 100

LOOKED = 10 * BATCH
"""When the database refuses so many in a row, it is taken to be at fault itself, and no more are tried."""
LONGEST_PAUSE = 60.0

Store = Callable[[Sequence[Delivery]], list[Receipt]]
Refusal = tuple[Delivery, Exception]


class Spooling:
    """A spool, and the thread that drains it; without a path, nothing but what the caller does itself."""

    def __init__(self, path: str | os.PathLike[str] | None, store: Store, every: float) -> None:
        self.spool = None if path is None else _opened(path)
        self._store, self._every = store, every
        self._placed = (b"", 0)
        """The file that was drained last, and up to where what is in it is stored or put aside."""
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
                log.warning("%s; messages go to the spool %s", error, self.spool.path)
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
                log.warning("%s; messages go to the spool %s", error, self.spool.path)
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
        """Stop draining; what is left waits for whoever opens the spool next."""
        with self._lock:
            self._stopping.set()
            self._news.set()
            thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            thread.join()

    def _run(self, spool: Spool) -> None:
        pause = self._every
        while not self._stopping.is_set():
            self._news.clear()
            placed, refused = self._placed, False
            try:
                self.drain()
            except StoreUnavailable:
                pass  # it was said when the first message went to the spool
            except Exception:  # the thread goes on whatever it is: only it brings these messages to the database
                refused = True
                pause = self._every if placed != self._placed else min(pause * 2, LONGEST_PAUSE)
                what = "the spool %s could not be drained; it is tried again in %.0f s, or when another message comes"
                log.exception(what, spool.path, pause)
            with self._lock:  # whoever appends from now on finds a thread that goes on, or starts another
                if spool.is_empty:
                    self._thread = None
                    return
            self._stopping.wait(self._every)
            if refused:  # another message may show that it is not the database's fault
                self._news.wait(pause - self._every)

    def drain(self) -> int:
        """Store what is in the spool, in order; answers how many, or raises when the database is (still) away.

        What was placed before a drain failed is not looked at again. A record that is refused is put aside when one
        behind it can be stored; while none can, the database may be at fault, and they wait.
        """
        spool, number = self.spool, 0
        if spool is None:
            return 0
        with spool.draining() as mine:
            name, refused = spool.name, list[Refusal]()
            after = self._placed[1] if self._placed[0] == name else 0
            while mine and not self._stopping.is_set():
                deliveries, after = spool.read(after, BATCH)
                if not deliveries and not refused and spool.clear(after):
                    break
                found = self._refused(deliveries)
                refused += found
                if len(found) < len(deliveries):
                    for delivery, error in refused:
                        _put_aside(spool, delivery, error)
                    refused, self._placed = [], (name, after)
                elif refused and (not deliveries or len(refused) >= LOOKED):
                    raise refused[0][1]
                number += len(deliveries)
        return number

    def _refused(self, deliveries: Sequence[Delivery]) -> list[Refusal]:
        """Store a batch; where the database refuses it, one by one. Answers which of them are refused."""
        error = self._refusal(deliveries) if deliveries else None
        if error is None:
            return []
        if len(deliveries) == 1:
            return [(deliveries[0], error)]
        return [(one, error) for one in deliveries if (error := self._refusal([one])) is not None]

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


def _put_aside(spool: Spool, delivery: Delivery, error: Exception) -> None:
    where = f"message {delivery.id!r} from {delivery.source!r} was put aside in {spool.put_aside(delivery)}"
    log.error("%s: it cannot be stored: %s", where, error)
