"""Callers that receive inside a transaction of their own (`tx=`) and commit it late, or not at all.

Mirrors `Inbox.receive(tx=)` around the real steps. Their programs may have handlers, and may not have told anybody yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.errors import StoreError
from onceward.flow import RECONNECT, Wait
from onceward.steps.context import Context
from onceward.steps.join import join
from simulation.broker import Parcel
from simulation.history import Reception
from simulation.process import began, ended
from simulation.requests import Beside, Close, Open, Script

if TYPE_CHECKING:
    from simulation.world import World

ISOLATION = ("READ COMMITTED", "REPEATABLE READ")


def caller(world: World, name: str) -> Script:
    """Takes deliveries one by one, each into a transaction that is open for a while before and after."""
    context = world.program()
    while not world.calm:
        parcels = world.broker.take(name, 1)
        if not parcels:
            yield Wait(0.3)
            continue
        reception = began(world, parcels[0].delivery, inline=False)
        try:
            stored = yield from _transaction(world, context, parcels[0], reception)
        except StoreError:
            yield RECONNECT
            stored = False
        if stored:
            world.broker.acknowledge(parcels)
        else:
            world.broker.refuse(parcels)
            context = world.program()  # it is restarted, and knows nothing
        yield Wait(world.chance.choice((0.1, 1.0)))


def _transaction(world: World, context: Context, parcel: Parcel, reception: Reception) -> Script:
    chance = world.chance
    isolation = chance.choice(ISOLATION)
    yield Open(isolation)
    yield Wait(chance.choice((0.0, 2.0, 6.0)))
    (receipt,) = yield from join(context, [parcel.delivery], None if world.database.single_writer else Beside)
    yield Wait(chance.choice((0.0, 1.0, 8.0)))
    commits = chance.random() < 0.9
    yield Close(commits)
    if commits:
        reception.committed = world.scheduler.steps
        ended(world, reception, receipt)
        world.observer.sometimes(f"join: {isolation}")
    return commits
