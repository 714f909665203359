"""Dispatch: find the destinations that have something to publish; each is published to by a lane of its own.

Invariant: nothing here waits for a destination. It is looked at, its lane runs elsewhere, and one that hangs holds up
its own lane alone. What goes to a destination that this process has no sink for is never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onceward.errors import StoreConflict, StoreUnavailable
from onceward.flow import RECONNECT, Flow, Wait
from onceward.registry import OUTBOX
from onceward.steps.context import Context, catalog_wait, stay_current

LINGER = 5.0
"""For how many seconds the lane of a destination stays when there is nothing more to publish."""


@dataclass(slots=True)
class Dispatch:
    """The destinations of one process, and which of them have a lane now."""

    context: Context
    destinations: Sequence[str]
    stopping: Callable[[], bool]
    start: Callable[[str], None]
    """Begins the lane of a destination, and returns at once."""
    busy: set[str] = field(default_factory=set)


def dispatch(relay: Dispatch, *, until_idle: bool = False) -> Flow[None]:
    """Start lanes where there is something to publish, until stopped; or once, until each of them has ended."""
    context, poll = relay.context, relay.context.settings.poll.total_seconds()
    woken_at = context.clock()
    while not relay.stopping():
        try:
            if context.clock() >= context.look_at:
                yield from stay_current(context)
            current_at = context.current_at
            found = yield from _awaiting(relay)
        except (StoreConflict, StoreUnavailable):
            yield RECONNECT
            yield Wait(min(poll, 1.0))
            continue
        for destination in found:
            relay.busy.add(destination)
            relay.start(destination)
        if until_idle:
            break
        if (yield Wait(min(poll, catalog_wait(context, current_at, woken_at)))) is not False:
            woken_at = context.clock()
    while until_idle and relay.busy and not relay.stopping():
        yield Wait(poll)


def _awaiting(relay: Dispatch) -> Flow[list[str]]:
    """The destinations with something due, without those that are served already and those that pause."""
    registry, pauses = relay.context.registry, relay.context.cache.catalog.pauses
    free = [one for one in relay.destinations if one not in relay.busy and not registry.all_paused(OUTBOX, one)]
    free = [one for one in free if pauses.publishing(one) is None]
    if not free or relay.context.cache.catalog.relay is None:  # this process could not introduce itself yet
        return []
    return (yield from relay.context.moves.claims.awaiting(free))
