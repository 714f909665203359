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

from onceward.deferred import Deferred, asyncio
from onceward.errors import OncewardError, StoreBusy, StoreConflict, StoreError, StoreUnavailable
from onceward.message import Delivery, Receipt

if TYPE_CHECKING:
    from onceward import spool as files
else:
    files = Deferred("spool")

log = logging.getLogger("onceward")

BATCH = 100

Store = Callable[[Sequence[Delivery]], list[Receipt]]


class Spooling:
    """A spool, and the thread that drains it; without a path, nothing but what the caller does itself."""

    def __init__(self, path: str | os.PathLike[str] | None, store: Store, every: float) -> None:
        self.spool = None if path is None else files.Spool(path)
        self._store, self._every = store, every
        self._stopping = threading.Event()
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

    def _append(self, spool: files.Spool, deliveries: Sequence[Delivery]) -> list[Receipt]:
        spool.append(deliveries)
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
            thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            thread.join()

    def _run(self, spool: files.Spool) -> None:
        while not self._stopping.is_set():
            try:
                self.drain()
            except StoreUnavailable:
                pass  # it was said when the first message went to the spool
            except (OncewardError, OSError):
                log.exception("the spool %s could not be drained; it will be tried again", spool.path)
            with self._lock:  # whoever appends from now on finds a thread that goes on, or starts another
                if spool.is_empty:
                    self._thread = None
                    return
            self._stopping.wait(self._every)

    def drain(self) -> int:
        """Store what is in the spool, in order; answers how many, or raises when the database is (still) away."""
        drained, number = 0, 0
        if self.spool is None:
            return 0
        with self.spool.draining() as mine:
            while mine and not self._stopping.is_set():
                deliveries, drained = self.spool.read(drained, BATCH)
                if deliveries:
                    self._place(self.spool, deliveries)
                    number += len(deliveries)
                elif self.spool.clear(drained):
                    break
        return number

    def _place(self, spool: files.Spool, deliveries: Sequence[Delivery]) -> None:
        """Store a batch; where the database refuses it, one by one. What is refused while others are stored goes aside.

        Where all are refused, or there is one alone, the database may be at fault: then they wait, and none goes aside.
        """
        try:
            self._store(deliveries)
        except (StoreUnavailable, StoreConflict):
            raise
        except StoreError:
            if len(deliveries) == 1:
                raise
        else:
            return
        refused = [(delivery, error) for delivery in deliveries if (error := self._refusal(delivery)) is not None]
        if len(refused) == len(deliveries):
            raise refused[0][1]
        for delivery, error in refused:
            aside = spool.put_aside(delivery)
            where = f"message {delivery.id!r} from {delivery.source!r} was put aside in {aside}"
            log.error("%s: it cannot be stored: %s", where, error)

    def _refusal(self, delivery: Delivery) -> StoreError | None:
        try:
            self._store([delivery])
        except (StoreUnavailable, StoreConflict):
            raise
        except StoreError as error:
            return error
        return None
