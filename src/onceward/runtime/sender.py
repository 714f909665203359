"""Sending what no incoming message caused."""

from __future__ import annotations

from typing import Any

from onceward.domain import checks
from onceward.domain.ids import time_ordered_id
from onceward.errors import InvalidMessage, StoreConflict, StoreUnavailable
from onceward.flow import Flow, run_async, run_sync
from onceward.message import DEFAULT, Delivery, SendArguments, check_destination
from onceward.registry import OUTBOX
from onceward.runtime.receiver import beside, check_joins
from onceward.runtime.runner import OUTSIDE, OUTSIDE_ASYNC, perform, perform_async
from onceward.steps.blob import offload
from onceward.steps.context import Cache, Context
from onceward.steps.introduce import introduce, subscribe
from onceward.steps.join import prepare
from onceward.steps.receive import look_up
from onceward.steps.rows import outgoing_rows
from onceward.stores import callers
from onceward.stores.inside import whole
from onceward.stores.protocol import Store

_ARGUMENTS = ("type", "data", *SendArguments.__annotations__, "tx")


class Sender:
    """Stores outgoing messages for the relay."""

    def __init__(self, context: Context, store: Store) -> None:
        self._context, self._store = context, store

    def send(self, type: str, data: Any, tx: Any, message: SendArguments) -> str:  # noqa: A002 - as `Inbox.send`
        """Store a message, in the transaction of a caller where there is one; returns its id."""
        delivery = self._outgoing(type, data, message)
        if tx is not None:
            check_joins(self._store, "send(tx=...)")
            session = callers.join(self._store, tx)
            run_sync(whole(self._send_joined(delivery), session), session.perform, OUTSIDE)
        else:
            perform(self._store, lambda: self._send(delivery))
            self._store.notify()
        return delivery.id

    async def asend(self, type: str, data: Any, tx: Any, message: SendArguments) -> str:  # noqa: A002
        """As `send`, awaited."""
        delivery = self._outgoing(type, data, message)
        if tx is not None:
            check_joins(self._store, "asend(tx=...)")
            session = await callers.async_join(self._store, tx)
            await run_async(whole(self._send_joined(delivery), session), session.perform, OUTSIDE_ASYNC)
        else:
            await perform_async(self._store, lambda: self._send(delivery))
            self._store.notify()
        return delivery.id

    def _outgoing(self, type: str, data: Any, message: SendArguments) -> Delivery:  # noqa: A002
        fields: dict[str, Any] = {"id": time_ordered_id(), **message}
        checks.message("send()", fields, {}, _ARGUMENTS)
        destination = fields.pop("to", None)
        check_destination("send()", destination, self._context.registry.outlets)
        return Delivery.of(source=self._context.service, type=type, data=data, destination=destination, **fields)

    def _send(self, delivery: Delivery) -> Flow[None]:
        if not self._may_send(self._context.cache):
            # Also where there is nothing to tell: a program without handlers and sinks may send.
            yield from introduce(self._context, anew=not self._context.introduction.pending)
        yield from self._store_outgoing(self._context.cache, delivery)

    def _send_joined(self, delivery: Delivery) -> Flow[None]:
        cache, apart = Cache(self._context.cache.catalog), beside(self._store)
        if not self._may_send(cache) and apart is not None:
            yield from prepare(self._context, {self._context.service, OUTBOX}, set(), apart, anew=True)
            cache.catalog = self._context.cache.catalog
        elif not self._may_send(cache):
            yield from subscribe(self._context, cache)
        yield from self._store_outgoing(cache, delivery, notify=True)

    def _may_send(self, cache: Cache) -> bool:
        return cache.catalog.relay is not None and self._context.service in cache.catalog.names

    def _store_outgoing(self, cache: Cache, delivery: Delivery, *, notify: bool = False) -> Flow[None]:
        if not self._may_send(cache):
            raise StoreUnavailable(
                "nothing can be sent yet: a transaction that stored messages with tx= is still open, and the log names "
                "it. Try again when it has ended"
            )
        put = yield from offload(self._context, [delivery])
        rows = outgoing_rows(self._context, cache.catalog, put)
        for _ in range(5):
            fresh = yield from self._context.moves.ledger.send(rows, notify=notify)
            known = None if fresh else (yield from look_up(self._context, cache.catalog, rows)).get(0)
            if fresh or (known and known.is_same(delivery)):
                return
            if known:
                raise InvalidMessage(
                    f"id={delivery.id!r} was sent to {delivery.destination or DEFAULT!r} before with another type or "
                    "other data, so nothing was sent; give each message an id of its own, or leave id= out"
                )
        raise StoreConflict(f"message {delivery.id!r} was forgotten while it was sent again; try again")
