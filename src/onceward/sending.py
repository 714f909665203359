"""Sending what no incoming message caused: the public methods of `Inbox` for that."""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

from onceward import checks, identity
from onceward.desk import Desk
from onceward.errors import InvalidMessage, StoreConflict, StoreUnavailable
from onceward.flow import Flow, Query, run_async, run_sync
from onceward.message import DEFAULT, Delivery, SendArguments, check_destination
from onceward.registry import OUTBOX
from onceward.steps.attempt import send_request
from onceward.steps.blob import put_away
from onceward.steps.context import Cache, once
from onceward.steps.introduce import introduce, subscribe
from onceward.steps.join import Apart, prepare
from onceward.steps.receive import look_up
from onceward.transact import async_performer, perform, perform_async, performer

_ARGUMENTS = ("type", "data", *SendArguments.__annotations__, "tx")


class Sending(Desk):
    """Outgoing messages."""

    def send(self, type: str, data: Any = None, *, tx: Any = None, **message: Unpack[SendArguments]) -> str:  # noqa: A002
        """Send a message that no incoming one caused; returns its id. With `tx=` in the caller's own transaction.

        With `id=` it goes out once for each destination: the same again changes nothing, and other content under a
        known id raises `InvalidMessage`.
        """
        delivery = self._outgoing(type, data, message)
        if tx is not None:
            flow = self._send_joined(delivery)
            run_sync(flow, performer(self._store.join(tx)))
        else:
            perform(self._store, lambda: self._send(delivery))
            self._store.ring()
        return delivery.id

    async def asend(self, type: str, data: Any = None, *, tx: Any = None, **message: Unpack[SendArguments]) -> str:  # noqa: A002
        """As `send`, awaited; `tx=` takes an async connection."""
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

    @property
    def _apart(self) -> Apart | None:
        """What runs a step beside a caller's transaction; nothing can where that is the only writer."""
        return None if self._store.single_writer else partial(perform, self._store)

    def _send(self, delivery: Delivery) -> Flow[None]:
        if not self._may_send(self._context.cache):
            # Also where there is nothing to tell: a program without handlers and sinks may send.
            yield from introduce(self._context, anew=not self._context.introduction.pending)
        yield from self._store_outgoing(self._context.cache, delivery)

    def _send_joined(self, delivery: Delivery) -> Flow[None]:
        cache, apart = Cache(self._context.cache.catalog), self._apart
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
