"""Sight: under which id a body came first, for sources whose ids are not signed.

Whoever has one signed body can send it again under a new id, and it is a new message: equal genuine events exist, so it
is not refused. But it is known, and the message says so. The look is part of receiving, so a delivery that waited in a
spool is looked at when it is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from onceward.flow import Flow, Query
from onceward.message import Delivery
from onceward.steps.context import Cache, Context, once

log = logging.getLogger("onceward")

ECHO = "onceward-echo-of"
"""The stored header that says under which id the same body came before, where the id is not signed."""


def sight(context: Context, cache: Cache, deliveries: Sequence[Delivery]) -> Flow[Sequence[Delivery]]:
    """Note under which ids bodies came, where deliveries ask for it, and mark those that are not the first.

    Their sources have their numbers. Bodies are noted in their order, before old notes are swept, so that batches which
    overlap cannot deadlock.
    """
    asking = [(one.source, one.hash, index) for index, one in enumerate(deliveries) if one.echo_window is not None]
    if not asking:
        return deliveries
    asking.sort()  # of equal bodies, the one that came first is noted first
    places = {one.source: _place(cache, one) for one in deliveries if one.echo_window is not None}
    notes = [
        Query("sight", {**places[source], "hash": digest, "id": deliveries[index].id})
        for source, digest, index in asking
    ]
    answers = yield from once(context, *notes, *(Query("forget_sightings", place) for place in places.values()))
    marked = list(deliveries)
    for (source, _, index), ((first,),) in zip(asking, answers[: len(asking)], strict=True):
        if first != deliveries[index].id:
            log.warning("source %s: a body that came before came again under a new, unsigned id", source)
            marked[index] = marked[index]._replace(headers={**marked[index].headers, ECHO: str(first)})
    return marked


def _place(cache: Cache, delivery: Delivery) -> dict[str, Any]:
    return {"source": cache.catalog.names[delivery.source], "window": delivery.echo_window}
