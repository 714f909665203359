"""Sending what no incoming message caused: the public methods of `Inbox` for that."""

from __future__ import annotations

from typing import Any, Unpack

from onceward import identity
from onceward.desk import Desk
from onceward.flow import Flow, Query, run_async, run_sync
from onceward.message import Delivery, SendArguments
from onceward.steps.attempt import send_request
from onceward.steps.blob import put_away
from onceward.steps.context import Cache, once
from onceward.steps.subscribe import subscribe
from onceward.transact import async_performer, perform, perform_async, performer


class Sending(Desk):
    """Outgoing messages."""

    def send(self, type: str, data: Any = None, *, tx: Any = None, **message: Unpack[SendArguments]) -> str:  # noqa: A002
        """Send a message that no incoming one caused; answers its id. With `tx=` in the caller's own transaction."""
        delivery = self._outgoing(type, data, message)
        if tx is not None:
            flow = self._send(Cache(self._context.cache.catalog), delivery, ring=True)
            run_sync(flow, performer(self._store.join(tx)))
        else:
            perform(self._store, lambda: self._send(self._context.cache, delivery))
            self._store.ring()
        return delivery.id

    async def asend(self, type: str, data: Any = None, *, tx: Any = None, **message: Unpack[SendArguments]) -> str:  # noqa: A002
        """As `send`, awaited; `tx=` takes an async connection."""
        delivery = self._outgoing(type, data, message)
        if tx is not None:
            flow = self._send(Cache(self._context.cache.catalog), delivery, ring=True)
            await run_async(flow, async_performer(self._store.async_join(tx)))
        else:
            await perform_async(self._store, lambda: self._send(self._context.cache, delivery))
            self._store.ring()
        return delivery.id

    def _outgoing(self, type: str, data: Any, message: SendArguments) -> Delivery:  # noqa: A002
        fields: dict[str, Any] = {"id": identity.new_id(), **message}
        destination = fields.pop("to", None)
        return Delivery.of(source=self._context.service, type=type, data=data, destination=destination, **fields)

    def _send(self, cache: Cache, delivery: Delivery, *, ring: bool = False) -> Flow[None]:
        if cache.catalog.relay is None or delivery.source not in cache.catalog.names:
            yield from subscribe(self._context, cache)
        put = yield from put_away(self._context, [delivery])
        bell = (Query("ring"),) if ring else ()
        yield from once(self._context, send_request(self._context, cache.catalog, put), *bell)
