"""Sending what no incoming message caused."""

from __future__ import annotations

from typing import Any

from onceward.domain import checks, identity
from onceward.errors import InvalidMessage, StoreConflict, StoreUnavailable
from onceward.flow import Flow, Query, run_async, run_sync
from onceward.message import DEFAULT, Delivery, SendArguments, check_destination
from onceward.registry import OUTBOX
from onceward.runtime.receiver import beside
from onceward.runtime.runner import async_performer, perform, perform_async, performer
from onceward.steps.attempt import send_request
from onceward.steps.blob import put_away
from onceward.steps.context import Cache, Context, once
from onceward.steps.introduce import introduce, subscribe
from onceward.steps.join import prepare
from onceward.steps.receive import look_up
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
            flow = self._send_joined(delivery)
            run_sync(flow, performer(self._store.join(tx)))
        else:
            perform(self._store, lambda: self._send(delivery))
            self._store.ring()
        return delivery.id

    async def asend(self, type: str, data: Any, tx: Any, message: SendArguments) -> str:  # noqa: A002
        """As `send`, awaited."""
        delivery = self._outgoing(type, data, message)
        if tx is not None:
            flow = self._send_joined(delivery)
            await run_async(flow, async_performer(self._store.async_join(tx)))
        else:
            await perform_async(self._store, lambda: self._send(delivery))
            self._store.ring()
        return delivery.id

    def _outgoing(self, type: str, data: Any, message: SendArguments) -> Delivery:  # noqa: A002
        fields: dict[str, Any] = {"id": identity.new_id(), **message}
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
            yield from prepare(self._context, {self._context.service, OUTBOX}, set(), apart)
            cache.catalog = self._context.cache.catalog
        elif not self._may_send(cache):
            yield from subscribe(self._context, cache)
        yield from self._store_outgoing(cache, delivery, Query("ring"))

    def _may_send(self, cache: Cache) -> bool:
        return cache.catalog.relay is not None and self._context.service in cache.catalog.names

    def _store_outgoing(self, cache: Cache, delivery: Delivery, *more: Query) -> Flow[None]:
        if not self._may_send(cache):
            raise StoreUnavailable(
                "nothing can be sent yet: a transaction that stored messages with tx= is still open, and the log names "
                "it. Try again when it has ended"
            )
        put = yield from put_away(self._context, [delivery])
        request = send_request(self._context, cache.catalog, put)
        for _ in range(5):
            fresh, *_ = yield from once(self._context, request, *more)
            known = None if fresh else (yield from look_up(self._context, cache.catalog, request.records)).get(0)
            if fresh or (known and known.is_same(delivery)):
                return
            if known:
                raise InvalidMessage(
                    f"id={delivery.id!r} was sent to {delivery.destination or DEFAULT!r} before with another type or "
                    "other data, so nothing was sent; give each message an id of its own, or leave id= out"
                )
        raise StoreConflict(f"message {delivery.id!r} was forgotten while it was sent again; try again")
