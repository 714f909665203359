"""Sight: under which id a body came first, for sources whose ids are not signed.

Whoever has one signed body can send it again under a new id, and it is a new message: equal genuine events exist, so it
is not refused. But it is known, and the message says so.
"""

from __future__ import annotations

from datetime import timedelta

from onceward.flow import Flow, Query
from onceward.steps.context import Cache, Context, know_names, once


def sight(  # noqa: PLR0913, PLR0917 - what a sighting is
    context: Context, cache: Cache, source: str, digest: bytes, message_id: str, window: timedelta
) -> Flow[str]:
    """Note that a body came under an id; answers the id under which it came first inside the window."""
    yield from know_names(context, cache, {source})
    place = {"source": cache.catalog.names[source], "window": window.total_seconds()}
    noted = Query("sight", {**place, "hash": digest, "id": message_id})
    first, _ = yield from once(context, noted, Query("forget_sightings", place))
    return str(first[0][0])
