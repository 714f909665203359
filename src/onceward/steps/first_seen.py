"""First seen: under which id a body came first, for sources whose ids are not signed.

An attacker with a signed body can send it again under a new id, and it is a new message: equal genuine events exist, so
it is not refused. But it is known, and the message says so. The look is part of receiving, so a delivery that waited
in a spool is looked at when it is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from onceward.flow import Flow
from onceward.message import Delivery
from onceward.steps.context import Cache, Context
from onceward.stores.moves.ledger import FirstSeen

log = logging.getLogger("onceward")

ECHO = "onceward-echo-of"
"""The stored header that says under which id the same body came before, where the id is not signed."""


def check_first_seen(context: Context, cache: Cache, deliveries: Sequence[Delivery]) -> Flow[Sequence[Delivery]]:
    """Record under which ids bodies came, where deliveries ask for it, and mark those that are not the first.

    Their sources have their numbers. Bodies are recorded in their order, before old records go, so that batches which
    overlap cannot deadlock.
    """
    asking = [(one.source, one.hash, index) for index, one in enumerate(deliveries) if one.echo_window is not None]
    if not asking:
        return deliveries
    asking.sort()  # of equal bodies, the one that came first is recorded first
    windows = {one.source: one.echo_window for one in deliveries if one.echo_window is not None}
    bodies = [
        FirstSeen(cache.catalog.names[source], digest, deliveries[index].id, windows[source])
        for source, digest, index in asking
    ]
    ids = yield from context.moves.ledger.first_seen(bodies)
    marked = list(deliveries)
    for (source, _, index), first in zip(asking, ids, strict=True):
        if first != deliveries[index].id:
            what = "source %s: the body of message %s came before as message %s; ids are not signed, it may be a replay"
            log.warning(what, source, deliveries[index].id, first)
            marked[index] = marked[index]._replace(headers={**marked[index].headers, ECHO: str(first)})
    return marked
