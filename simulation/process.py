"""A simulated process: maintenance, lanes, receivers; the threads and loops of the real one as generators.

Mirrors `heartbeat.py`, `worker.py`, `inline.py` and `runner.py` of `runtime/`, whose threads cannot be simulated: the
same steps in the same order, each request a scheduling point.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onceward.errors import HandlerNotFound, StoreConflict, StoreError, StoreUnavailable
from onceward.flow import RECONNECT, Flow, Wait
from onceward.message import Delivery, Message, Receipt
from onceward.registry import Subscription
from onceward.runtime.worker import FAN_OUT_SECONDS
from onceward.steps import membership
from onceward.steps.context import Context
from onceward.steps.dispatch import LINGER
from onceward.steps.handle import work
from onceward.steps.introduce import introduce, stay_introduced
from onceward.steps.isolation import Isolation
from onceward.steps.lane import Lane, open_tokens
from onceward.steps.process import process as process_step
from onceward.steps.process import process_many
from onceward.steps.prune import PruneProgress, maintain
from onceward.steps.receive import folded, merged, receive
from onceward.steps.subscribe import fan_out
from simulation.broker import Parcel
from simulation.history import Reception
from simulation.requests import Effect
from simulation.tasks import Task
from simulation.themes import SERVICE
from simulation.workload import LEASE

if TYPE_CHECKING:
    from simulation.world import World

TICK = LEASE / 3


@dataclass(slots=True, eq=False)
class Process:
    """What the threads of one process share."""

    name: str
    context: Context
    inline: bool
    receivers: int
    lanes: int
    knows_all: bool
    """It handles what came late, too."""
    numbers: Iterator[int]
    """What worker numbers are drawn from: the same for all processes."""
    isolation: Isolation = field(default_factory=Isolation)
    worker: int = 0
    registered_as: str = ""
    stopping: bool = False
    alive: bool = True
    paused_until: float = 0.0
    tasks: list[Task] = field(default_factory=list)
    prune_progress: PruneProgress = field(default_factory=PruneProgress)
    _tokens: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _starts: itertools.count[int] = field(default_factory=itertools.count)

    def token(self) -> int:
        """A number never used before by this process."""
        return next(self._tokens)

    def start_name(self) -> str:
        """A name of its own for every registration."""
        number = next(self._starts)
        return self.name if number == 0 else f"{self.name}#{number}"

    def knows(self, kind: str, version: int) -> bool:
        """Whether it has a handler, or upcasters to one."""
        try:
            self.context.registry.find(SERVICE, kind, version)
        except HandlerNotFound:
            return False
        return True

    @property
    def busy(self) -> bool:
        """Whether a lane or receiver still runs."""
        return any(not task.ended for task in self.tasks)


def twice(step: Callable[[], Flow[Any]]) -> Flow[Any]:
    """As `transact.perform`: once more on a new session when the first try failed for a reason that may have passed."""
    for last in (False, True):
        try:
            return (yield from step())
        except (StoreUnavailable, StoreConflict):
            yield RECONNECT
            if last:
                raise
    raise AssertionError("unreachable")


def life(world: World, process: Process) -> Flow[None]:
    """Register, start the lanes, renew the lease until told to stop, deregister."""
    while True:
        try:
            yield from introduce(process.context, anew=True)
            yield from fan_out(process.context)
            yield from _register(process)
            break
        except StoreError:
            yield RECONNECT
            yield Wait(0.5)
    world.start_actors(process)
    while not process.stopping or process.busy:
        yield Wait(0.2 if process.stopping else TICK)
        try:
            yield from _heartbeat(process)
        except StoreError:
            yield RECONNECT
    try:
        yield from membership.deregister(process.context, process.worker)
    except StoreError:
        world.observer.sometimes("could not deregister")


def _register(process: Process) -> Flow[None]:
    process.registered_as = process.start_name()
    process.worker = yield from membership.register(
        process.context,
        process=process.registered_as,
        host="host",
        pid=1,
        inline=process.inline,
        draw=lambda: next(process.numbers),
    )


def _heartbeat(process: Process) -> Flow[None]:
    if not (
        yield from membership.heartbeat(process.context, process.worker, process.registered_as, inline=process.inline)
    ):
        yield from _register(process)


def duties(process: Process) -> Flow[None]:
    """What a process owes the others, beside its heartbeat: one after the other, each again where it failed."""
    context = process.context
    while not process.stopping:
        yield Wait(TICK)
        for duty in (
            lambda _: membership.unclaim_strays(context, process.worker, lambda: open_tokens(process.isolation)),
            _introduce,
            lambda _: fan_out(context, seconds=FAN_OUT_SECONDS),
            lambda _: maintain(context, process.prune_progress),
        ):
            try:
                yield from membership.take_over_lapsed(context, process.worker)
                yield from duty(process)
            except StoreError:
                yield RECONNECT


def _introduce(process: Process) -> Flow[None]:
    """What could not be subscribed to yet, or was lost, is subscribed to, and the lanes serve it."""
    yield from stay_introduced(process.context)
    for task in process.tasks:
        if task.lane is not None and task.lane.effects is not None and not task.lane.outgoing:
            served = _served(process)
            if served != task.lane.subscriptions:
                task.lane.serve(served)


def _served(process: Process) -> list[Subscription]:
    registry, known = process.context.registry, process.context.cache.catalog.subscriptions.values()
    return [one for one in known if registry.of_type(one.consumer, one.type) is not None]


def lane_of(process: Process, *, destination: str | None = None) -> Lane:
    """A lane for the handlers, or for a destination of the relay."""
    context, relay = process.context, process.context.cache.catalog.relay
    return Lane(
        context=context,
        worker=lambda: process.worker,
        new_token=process.token,
        subscriptions=_served(process) if destination is None else [one for one in [relay] if one is not None],
        stopping=lambda: process.stopping,
        isolation=process.isolation,
        destination=destination,
        linger=float("inf") if destination is None else LINGER,
        effects=_effect,
    )


def lane_work(lane: Lane) -> Flow[int]:
    """The life of a lane."""
    return (yield from work(lane))


def _effect(message: Message, name: str, call: Callable[[], Any], idempotent: bool) -> Effect:  # noqa: FBT001 - as `Message.once` calls it
    return Effect(message, name, call, idempotent)


def receiver(world: World, process: Process, name: str) -> Flow[None]:
    """Take deliveries from the broker, store or process them, acknowledge."""
    while not process.stopping:
        parcels = world.broker.take(name, world.chance.choice((1, 1, 2, 3)))
        if not parcels:
            yield Wait(0.3)
            continue
        try:
            if process.inline and _plan_is_inline(world, parcels[0]):
                if len(parcels) == 1:
                    yield from _process_one(world, process, parcels[0].delivery, name)
                else:
                    yield from _process_batch(world, process, parcels, name)
            else:
                yield from _receive_all(world, process, parcels)
        except StoreError as error:
            if world.spool is not None and isinstance(error, StoreUnavailable):
                world.history.misdeeds.append(("refused", f"{parcels[0].delivery.id}, though there is a spool"))
            world.broker.refuse(parcels)
            yield RECONNECT
            yield Wait(0.2)
            continue
        yield Wait(0.0)
        world.broker.acknowledge(parcels)
        if world.scenario.pace:
            yield Wait(world.scenario.pace)


def _plan_is_inline(world: World, parcel: Parcel) -> bool:
    plan = world.scenario.plans.get((parcel.delivery.source, parcel.delivery.id))
    return plan is not None and plan.inline


def began(world: World, delivery: Delivery, *, inline: bool) -> Reception:
    """A delivery is handed over."""
    plan = world.scenario.plans[delivery.source, delivery.id]
    reception = Reception(
        delivery.source,
        delivery.id,
        delivery.hash,
        delivery.type,
        world.key_of(plan),
        world.scheduler.steps,
        inline=inline,
        unsigned=delivery.echo_window is not None,
    )
    world.history.receptions.append(reception)
    return reception


def ended(world: World, reception: Reception, receipt: Receipt) -> None:
    """A receipt was returned."""
    if reception.undone:
        return
    reception.ended, reception.status = world.scheduler.steps, receipt.status
    world.observer.received(reception, receipt.seq)


def take_in(process: Process, deliveries: Sequence[Delivery]) -> Flow[list[Receipt]]:
    """As `Inbox.receive`: what it handles is told first, where it has not been."""
    yield from introduce(process.context, {delivery.type for delivery in deliveries})
    return (yield from receive(process.context, process.context.cache, deliveries))


def _receive_all(world: World, process: Process, parcels: list[Parcel]) -> Flow[None]:
    deliveries = [parcel.delivery for parcel in parcels]
    receptions = [began(world, delivery, inline=False) for delivery in deliveries]

    receipts = yield from world.take_in(process, deliveries)
    for reception, receipt in zip(receptions, receipts, strict=True):
        ended(world, reception, receipt)


@contextmanager
def inline_lane(world: World, process: Process, name: str) -> Iterator[Lane]:
    """The lane of an actor that handles a message itself; whoever has it enters its isolation."""
    lane = Lane(
        context=process.context,
        worker=lambda: process.worker,
        new_token=process.token,
        subscriptions=[],
        stopping=lambda: False,
        isolation=process.isolation,
        effects=_effect,
    )
    world.lane_of_task(name, lane)
    try:
        yield lane
    finally:
        process.isolation.leave(lane)
        world.lane_of_task(name, None)


def _process_one(world: World, process: Process, delivery: Delivery, name: str) -> Flow[None]:
    reception = began(world, delivery, inline=True)
    with inline_lane(world, process, name) as lane:
        while not process.isolation.enter(lane):
            yield Wait(0.005)
        receipts = yield from twice(lambda: process_step(lane, delivery, is_async=False))
    wanted = {one.consumer for one in process.context.cache.catalog.by_type.get(delivery.type, ())}
    stored: list[Receipt] = []
    if not receipts or wanted - receipts.keys():
        stored = yield from twice(lambda: take_in(process, [delivery]))
    receipt = merged([*receipts.values(), *stored])
    if receipt.finished and receipt.status == "accepted":
        world.observer.sometimes("inline: finished")
    ended(world, reception, receipt)


def _process_batch(world: World, process: Process, parcels: list[Parcel], name: str) -> Flow[None]:
    """As `Inbox.process_many`: a batch without its copies in one transaction, then those."""
    deliveries = [parcel.delivery for parcel in parcels]
    receptions = [began(world, delivery, inline=True) for delivery in deliveries]
    firsts, copies = folded(deliveries)
    fresh = [deliveries[index] for index in firsts]
    with inline_lane(world, process, name) as lane:
        while not process.isolation.enter(lane):
            yield Wait(0.005)
        parts = yield from twice(lambda: process_many(lane, fresh, is_async=False, rest=True))
    receipts = dict(zip(firsts, map(merged, parts), strict=True))
    if copies:
        again = yield from twice(lambda: take_in(process, [deliveries[index] for index in copies]))
        receipts |= dict(zip(copies, again, strict=True))
    if sum(receipt.finished and receipt.status == "accepted" for receipt in receipts.values()) > 1:
        world.observer.sometimes("direct: several finished")
    for index, reception in enumerate(receptions):
        ended(world, reception, receipts[index])
