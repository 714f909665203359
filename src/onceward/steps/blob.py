"""Large bodies on their way to the blob store and back (the claim check, R10).

Invariant: a blob is safe before the transaction that refers to it begins, under a name that is never used again; it is
removed only when no row refers to it and none can begin to. What dies in between leaves a blob that no row refers
to, and the collector finds it: it looks at rows *after* it has listed blobs that are older than any receive takes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from onceward.domain.reference import Reference
from onceward.errors import StoreError
from onceward.flow import Do, Flow, Outcome
from onceward.message import Delivery, Message, Receipt
from onceward.steps.context import Cache, Context

log = logging.getLogger("onceward")


def offload(context: Context, deliveries: Sequence[Delivery], cache: Cache | None = None) -> Flow[list[Delivery]]:
    """Put large bodies into the blob store; raises `BlobsUnavailable`, and then nothing is stored.

    With the catalog at hand, a body whose type has no handler stays with its row: its key will be looked for in it,
    inside a transaction, when there is one.
    """
    known = None if cache is None or cache.catalog.version < 0 else cache.catalog.by_type
    put = []
    for delivery in deliveries:
        if context.large.wants(delivery) and (known is None or delivery.type in known):
            yield from know_folder(context)
            put.append((yield from _done(Do(partial(context.large.offload, delivery)))))
        else:
            put.append(delivery)
    return put


def offload_sent(context: Context, messages: Iterable[Message]) -> Flow[Outcome]:
    """As `offload`, for what handlers have just sent; the outcome has the error, if there was one."""
    try:
        for message in messages:
            if message.outbox and message.outbox.deliveries:
                message.outbox.deliveries = yield from offload(context, message.outbox.deliveries)
    except StoreError as error:
        return Outcome(error=error, infrastructure=True)
    return Outcome()


def prepare(context: Context) -> Flow[None]:
    """Before a handler's transaction begins, in which nothing else can be looked up: it may send something large."""
    if context.large.store is not None:
        yield from know_folder(context)


def know_folder(context: Context) -> Flow[None]:
    """Make sure that it is known which part of the blob store belongs to these tables."""
    if not context.large.folder:
        context.large.folder = yield from context.moves.ledger.blob_folder()


def remove_offloaded(context: Context, deliveries: Sequence[Delivery], receipts: Sequence[Receipt]) -> Flow[None]:
    """Remove what was offloaded for copies, as far as that is certain: a copy may be our own, its answer lost."""
    names = [
        delivery.blob.name
        for delivery, receipt in zip(deliveries, receipts, strict=True)
        if delivery.blob is not None and receipt.status != "accepted"
    ]
    yield from remove_unreferred(context, names)


def remove_unreferred(context: Context, names: Sequence[str]) -> Flow[int]:
    """Remove blobs unless a row refers to them; returns how many. What fails here is left to the collector."""
    if not names:
        return 0
    removed = 0
    try:
        referred = yield from context.moves.ledger.referred(names)
        for name in sorted(set(names) - referred):
            yield from _done(Do(partial(context.large.delete, name)))
            removed += 1
    except StoreError as error:
        log.warning("blobs that no row refers to stay for now, the collector will remove them: %s", error)
    return removed


def read(context: Context, reference: Reference) -> Flow[bytes]:
    """A body that is elsewhere; raises `BlobsUnavailable` or `BodyLost`."""
    body: bytes = yield from _done(Do(partial(context.large.fetch, reference)))
    return body


def _done(request: Do) -> Flow[Any]:
    outcome: Outcome = yield request
    if outcome.error is not None:
        raise outcome.error
    return outcome.value
