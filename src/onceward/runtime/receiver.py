"""Receiving: a delivery on its way into the database, alone, together with others, or through the spool.

Invariant: a receipt is given for what is committed, or on the disk of the spool; whatever raises was not stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from onceward.deferred import asyncio
from onceward.errors import StoreUnavailable
from onceward.flow import Flow, run_async, run_sync
from onceward.message import Arguments, Delivery, Receipt
from onceward.runtime.copies import Copies
from onceward.runtime.group_commit import Gatherings, batches
from onceward.runtime.runner import apart, async_performer, perform, perform_async, performer, repeatable
from onceward.runtime.spooling import Spooling
from onceward.steps.blob import put_away
from onceward.steps.context import Context, Try
from onceward.steps.introduce import introduce
from onceward.steps.join import Apart, join
from onceward.steps.receive import receive
from onceward.stores.protocol import Store


def beside(store: Store) -> Apart | None:
    """What runs a step beside a caller's transaction; nothing can where that is the only writer."""
    return None if store.single_writer else partial(perform, store)


class Receiver:
    """Stores deliveries of one inbox."""

    def __init__(self, context: Context, store: Store, spool: str | os.PathLike[str] | None) -> None:
        self._context, self._store = context, store
        self.copies = Copies(context.settings.lock_wait)
        self.spooling = Spooling(spool, self.store_first, context.settings.poll.total_seconds())
        self._gatherings = Gatherings(self._receive, self._areceive, single_writer=store.single_writer)

    def receive(self, delivery: Delivery) -> Receipt:
        """Store a delivery, together with whatever else arrives at the same time."""
        self._store.check_caller()  # here, for another thread may store it
        self.copies.wait(delivery)  # in nobody's company: the others would wait too
        return self._gatherings.of_threads().receive(self._lightened(delivery))

    async def areceive(self, delivery: Delivery) -> Receipt:
        """As `receive`, awaited."""
        if self._context.large.wants(delivery):
            delivery = await asyncio.to_thread(self._lightened, delivery)
        self._store.check_caller()
        await self.copies.async_wait(delivery)
        return await self._gatherings.of_tasks().receive(delivery)

    def receive_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """Store many, in few transactions."""
        return [receipt for batch in batches(messages) for receipt in self._receive(batch)]

    async def areceive_many(self, messages: Iterable[Arguments]) -> list[Receipt]:
        """As `receive_many`, awaited."""
        return [receipt for batch in batches(messages) for receipt in await self._areceive(batch)]

    def join(self, delivery: Delivery, tx: Any) -> Receipt:
        """Store a delivery in the transaction of a caller."""
        step = join(self._context, [delivery], beside(self._store))
        return run_sync(step, performer(self._store.join(tx)))[0]

    async def ajoin(self, delivery: Delivery, tx: Any) -> Receipt:
        """As `join`, awaited."""
        step = join(self._context, [delivery], beside(self._store))
        return (await run_async(step, async_performer(self._store.async_join(tx))))[0]

    def store_first(self, deliveries: Sequence[Delivery]) -> list[Receipt]:
        """Store deliveries in the database, or raise."""
        with self.copies.turn(deliveries[0]) if len(deliveries) == 1 else nullcontext():
            receipts = perform(self._store, self._repeatable(deliveries))
        self._store.ring()
        return receipts

    async def astore_first(self, deliveries: Sequence[Delivery]) -> list[Receipt]:
        """As `store_first`, awaited."""
        async with self.copies.async_turn(deliveries[0]) if len(deliveries) == 1 else nullcontext():
            receipts = await perform_async(self._store, self._repeatable(deliveries))
        self._store.ring()
        return receipts

    async def finish(self) -> None:
        """Wait until nothing is being stored on the running event loop."""
        await self._gatherings.finish()

    def _lightened(self, delivery: Delivery) -> Delivery:
        """A large body is put away before its message meets others, who would wait for it in a shared transaction."""
        if not self._context.large.wants(delivery) or self.spooling.waiting:
            return delivery
        try:
            return apart(self._store, lambda: put_away(self._context, [delivery], self._context.cache))[0]
        except StoreUnavailable:
            if self.spooling.spool is None:
                raise
            return delivery

    def _receive(self, deliveries: Sequence[Delivery]) -> list[Receipt]:
        return self.spooling.attempt(deliveries, lambda: self.store_first(deliveries))

    async def _areceive(self, deliveries: Sequence[Delivery]) -> list[Receipt]:
        return await self.spooling.attempt_async(deliveries, lambda: self.astore_first(deliveries))

    def _repeatable(self, deliveries: Sequence[Delivery]) -> Callable[[], Flow[list[Receipt]]]:
        return repeatable(partial(self._step, deliveries), self._context.clock)

    def _step(self, deliveries: Sequence[Delivery], first_try: Try | None) -> Flow[list[Receipt]]:
        yield from introduce(self._context, {delivery.type for delivery in deliveries})
        return (yield from receive(self._context, self._context.cache, deliveries, first_try=first_try))
