"""The shell around `steps/inside.py`: handlers in a transaction that the caller has begun, and will commit or not.

The process is not registered for it: if it dies, the caller's transaction is rolled back, and nothing is left to be
taken over.
"""

from __future__ import annotations

import threading
from functools import partial
from itertools import count
from typing import Any

from onceward.domain.schedule import AT_ONCE
from onceward.errors import ConfigurationError
from onceward.flow import AfterCommit, Call, Outside, run_async, run_sync
from onceward.message import Delivery, Receipt
from onceward.registry import Handler
from onceward.runtime.effects import async_effects, sync_effects
from onceward.runtime.receiver import Receiver, beside, check_joins, pending
from onceward.runtime.rounds import Rounds
from onceward.runtime.runner import OUTSIDE, OUTSIDE_ASYNC
from onceward.runtime.watchdog import TICK, Watchdog, watched_call
from onceward.steps.context import Context
from onceward.steps.inside import process_inside
from onceward.steps.isolation import Isolation
from onceward.steps.lane import Lane
from onceward.stores import callers
from onceward.stores.callers import Lent
from onceward.stores.inside import ended
from onceward.stores.protocol import Store


class Inside:
    """Runs handlers in the transactions of callers."""

    def __init__(self, context: Context, store: Store, receiver: Receiver) -> None:
        self._context, self._store, self._receiver = context, store, receiver
        self._isolation, self._token = Isolation(), count(1).__next__
        self._watchdog = Watchdog()
        self._rounds: Rounds | None = None
        self._lock = threading.Lock()

    def process(self, delivery: Delivery, tx: Any, *, raise_on_failure: bool) -> Receipt:
        """Handle a delivery in the caller's transaction. What is not due yet is stored there."""
        check_joins(self._store, "process(tx=...)")
        if delivery.due != AT_ONCE:
            return self._receiver.join(delivery, tx)
        self._check_kind(delivery, is_async=False)
        lent = callers.lend(self._store, tx)
        lane = self._lane(lent)
        lane.effects = sync_effects(lane, self._store, _never)
        step = process_inside(lane, delivery, beside(self._store), partial(_fits, lent, is_async=False))
        with self._watching().watched() as watch:
            call = partial(watched_call, lent.session, watch)
            outside: Outside = {**OUTSIDE, Call: call, AfterCommit: partial(_leave, lent)}
            receipt = run_sync(step, partial(_perform, lent), outside)
        return _told(receipt, lane, raise_on_failure=raise_on_failure)

    async def aprocess(self, delivery: Delivery, tx: Any, *, raise_on_failure: bool) -> Receipt:
        """As `process`, awaited, for `async def` handlers."""
        check_joins(self._store, "aprocess(tx=...)")
        if delivery.due != AT_ONCE:
            return await self._receiver.ajoin(delivery, tx)
        self._check_kind(delivery, is_async=True)
        lent = await callers.async_lend(self._store, tx)
        lane = self._lane(lent)
        lane.effects = async_effects(lane, self._store, _never)
        step = process_inside(lane, delivery, beside(self._store), partial(_fits, lent, is_async=True))
        receipt = await run_async(step, partial(_perform, lent), OUTSIDE_ASYNC)
        return _told(receipt, lane, raise_on_failure=raise_on_failure)

    def close(self) -> None:
        """End the thread that watches over handlers."""
        with self._lock:
            rounds, self._rounds = self._rounds, None
        if rounds is not None:
            rounds.stop()

    def _watching(self) -> Watchdog:
        with self._lock:
            if self._rounds is None or not self._rounds.alive:  # as in a forked child
                self._rounds = Rounds("onceward-watchdog", self._watchdog.look, pause=TICK, lost=lambda _: None)
        return self._watchdog

    def _check_kind(self, delivery: Delivery, *, is_async: bool) -> None:
        """Refuse what has handlers here, and none that could take this transaction."""
        handlers = [one for one in self._context.registry if one.type == delivery.type and not one.external]
        if handlers and all(one.is_async != is_async for one in handlers):
            kind, call, needs = (
                ("a def handler", "process", "a connection or Session that blocks, in a thread")
                if is_async
                else ("an async def handler", "aprocess", "an async connection or Session")
            )
            raise ConfigurationError(
                f"{delivery.type!r} has {kind}, which cannot have this transaction, so nothing was stored; use "
                f"{call}(..., tx=...) with {needs}, or receive(..., tx=...) and a worker"
            )

    def _lane(self, lent: Lent[Any]) -> Lane:
        return Lane(
            context=self._context,
            worker=lambda: 0,
            new_token=self._token,
            subscriptions=[],
            stopping=lambda: False,
            isolation=self._isolation,
            inside=True,
            tells_commit=lent.after_commit is not None,
        )


def _perform(lent: Lent[Any], request: Any) -> Any:
    """Perform a request in the caller's transaction; the connection may be another caller's by now."""
    if lent.is_over is not None and lent.is_over():
        raise ended()
    return lent.session.perform(request)


def _fits(lent: Lent[Any], handler: Handler, *, is_async: bool) -> bool:
    """Whether a handler can have the transaction."""
    return handler.is_async == is_async and (lent.is_drivers or not handler.parameter.is_drivers)


def _never() -> bool:
    """The transaction has begun, whatever the handler does."""
    return False


def _leave(lent: Lent[Any], request: AfterCommit) -> None:
    """Leave calls for after the caller's commit."""
    if lent.after_commit is not None:
        for call in request.calls:
            lent.after_commit(call)


def _told(receipt: Receipt, lane: Lane, *, raise_on_failure: bool) -> Receipt:
    """The receipt for a caller who has not committed yet."""
    if raise_on_failure and lane.raised is not None:
        raise lane.raised
    return pending(receipt)
