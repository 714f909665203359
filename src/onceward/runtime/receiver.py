"""Receiving: a delivery on its way into the database, alone, together with others, or through the spool.

Invariant: a receipt is given for what is committed, or on the disk of the spool; whatever raises was not stored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from onceward.deferred import asyncio
from onceward.domain.marks import Mark, marks_of
from onceward.errors import OncewardError, StoreUnavailable
from onceward.flow import run_async, run_sync
from onceward.message import Arguments, Delivery, Receipt
from onceward.runtime.copies import Copies
from onceward.runtime.group_commit import GroupCommits, batches
from onceward.runtime.runner import OUTSIDE, OUTSIDE_ASYNC, apart, perform, perform_async
from onceward.runtime.spooling import Spooling
from onceward.steps.blob import offload
from onceward.steps.context import Context, Try
from onceward.steps.history import save_activity
from onceward.steps.join import Apart, join
from onceward.steps.receive import receive_apart
from onceward.stores import callers
from onceward.stores.calls import running
from onceward.stores.inside import whole
from onceward.stores.protocol import Store, require


def beside(store: Store) -> Apart | None:
    """What runs a step beside a caller's transaction; nothing can where that is the only writer."""
    return None if store.single_writer else partial(perform, store)


def check_joins(store: Store, call: str) -> None:
    """Refuse a caller's transaction where the store has none."""
    require(store, "callers' transactions", call, "leave tx= out, or use message.send(...) in a handler")


def pending(receipt: Receipt) -> Receipt:
    """A receipt for a caller who is still to commit what is new."""
    return replace(receipt, pending=True) if receipt.status == "accepted" else receipt


class Receiver:
    """Stores deliveries of one inbox."""

    def __init__(self, context: Context, store: Store, spool: str | os.PathLike[str] | None) -> None:
        self._context, self._store = context, store
        self.copies = Copies(context.settings.lock_wait)
        self.spooling = Spooling(spool, self.store_first, context.settings.poll.total_seconds())
        self._group_commits = GroupCommits(self._receive, self._areceive, single_writer=store.single_writer)

    def receive(self, delivery: Delivery) -> Receipt:
        """Store a delivery, together with whatever else arrives at the same time."""
        if running.get():
            self._store.check_caller()  # here, for another thread may store it
        if self.copies.turns:
            self.copies.wait(delivery)  # before it meets others, which would wait too
        if self._context.large.store is not None:
            delivery = self._offloaded(delivery)
        return self._group_commits.of_threads().receive(delivery)

    async def areceive(self, delivery: Delivery) -> Receipt:
        """As `receive`, awaited."""
        if self._context.large.wants(delivery):
            delivery = await asyncio.to_thread(self._offloaded, delivery)
        self._store.check_caller()
        await self.copies.async_wait(delivery)
        return await self._group_commits.of_tasks().receive(delivery)

    def receive_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """Store many, in few transactions."""
        *head, last = [*batches(messages)] or [[]]
        receipts = [receipt for batch in head for receipt in self._receive(batch)]
        return receipts + (self._receive(last, marks_of(messages)) if last else [])

    async def areceive_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """As `receive_many`, awaited."""
        *head, last = [*batches(messages)] or [[]]
        receipts = [receipt for batch in head for receipt in await self._areceive(batch)]
        return receipts + (await self._areceive(last, marks_of(messages)) if last else [])

    def join(self, delivery: Delivery, tx: Any) -> Receipt:
        """Store a delivery in the transaction of a caller."""
        check_joins(self._store, "receive(tx=...)")
        step = join(self._context, [delivery], beside(self._store))
        session = callers.join(self._store, tx)
        return pending(run_sync(whole(step, session), session.perform, OUTSIDE)[0])

    async def ajoin(self, delivery: Delivery, tx: Any) -> Receipt:
        """As `join`, awaited."""
        check_joins(self._store, "areceive(tx=...)")
        step = join(self._context, [delivery], beside(self._store))
        session = await callers.async_join(self._store, tx)
        return pending((await run_async(whole(step, session), session.perform, OUTSIDE_ASYNC))[0])

    def store_first(self, deliveries: Sequence[Delivery], marks: Sequence[Mark] = ()) -> list[Receipt]:
        """Store deliveries in the database, or raise."""
        self._store.make_missing()
        tries: list[Try] = []
        with self.copies.turn(deliveries[0]) if len(deliveries) == 1 else nullcontext():
            receipts = perform(self._store, partial(receive_apart, self._context, deliveries, tries, marks))
        self._store.notify()
        return receipts

    async def astore_first(self, deliveries: Sequence[Delivery], marks: Sequence[Mark] = ()) -> list[Receipt]:
        """As `store_first`, awaited."""
        self._store.make_missing()
        tries: list[Try] = []
        async with self.copies.async_turn(deliveries[0]) if len(deliveries) == 1 else nullcontext():
            receipts = await perform_async(self._store, partial(receive_apart, self._context, deliveries, tries, marks))
        self._store.notify()
        return receipts

    async def finish(self) -> None:
        """Wait until nothing is being stored on the running event loop."""
        await self._group_commits.finish()

    def save_activity(self) -> None:
        """Write the last counts of the history, at the end of a process; where that fails they are forgotten."""
        if not self._context.activity.is_empty:
            with suppress(OncewardError):
                perform(self._store, lambda: save_activity(self._context))

    def _offloaded(self, delivery: Delivery) -> Delivery:
        """A large body is offloaded before its message meets others, who would wait for it in a shared transaction."""
        if not self._context.large.wants(delivery) or self.spooling.waiting:
            return delivery
        try:
            return apart(self._store, lambda: offload(self._context, [delivery], self._context.cache))[0]
        except StoreUnavailable:
            if self.spooling.spool is None:
                raise
            return delivery

    def _receive(self, deliveries: Sequence[Delivery], marks: Sequence[Mark] = ()) -> list[Receipt]:
        if self.spooling.spool is None:
            return self.store_first(deliveries, marks)
        return self.spooling.attempt(deliveries, lambda: self.store_first(deliveries, marks))

    async def _areceive(self, deliveries: Sequence[Delivery], marks: Sequence[Mark] = ()) -> list[Receipt]:
        if self.spooling.spool is None:
            return await self.astore_first(deliveries, marks)
        return await self.spooling.attempt_async(deliveries, lambda: self.astore_first(deliveries, marks))
