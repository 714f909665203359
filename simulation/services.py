"""Services on one set of tables: clients that repeat requests under an `Idempotency-Key`, and programs that send.

Mirrors `integrations/idempotency.py`, `runtime/inline.py` and `runtime/sender.py` around the real steps.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from onceward.errors import InvalidMessage, StoreError, StoreUnavailable
from onceward.flow import RECONNECT, Flow, Wait
from onceward.integrations.idempotency import IdempotencyKeys
from onceward.message import Delivery, Receipt
from onceward.runtime.sender import Sender
from onceward.steps.process import process as process_step
from simulation.history import Answer, Sent
from simulation.process import Process, inline_lane, twice

if TYPE_CHECKING:
    from simulation.world import World

KEYS = 3


def add_requests(process: Process) -> None:
    """Its endpoints take an `Idempotency-Key`, under the default source."""
    inbox: Any = SimpleNamespace(context=process.context, settings=process.context.settings)
    IdempotencyKeys(cast("Any", None), inbox=inbox, tenant=lambda _: "tenant")


def client(world: World, process: Process, name: str) -> Flow[None]:
    """Sends requests to one service, again and again under few keys."""
    chance = world.chance
    (handler,) = [handler for handler in process.context.registry if handler.forgets_failures]
    while not process.stopping and not world.calm:
        yield Wait(chance.choice((0.1, 1.0, 4.0)))
        key = f"request-{chance.randrange(KEYS)}"
        delivery = Delivery.of(source="api", id=key, type=handler.type, data={"key": key})
        try:
            receipt = yield from _answer(world, process, delivery, handler.consumer, name)
        except StoreError:
            yield RECONNECT
            continue
        except ValueError:  # the endpoint has answered with an error, and nothing is remembered
            world.observer.sometimes("request: not remembered")
            continue
        if receipt.finished:
            of = (receipt.result or {}).get("service", "nobody")
            world.history.answers.append(Answer(world.scheduler.steps, process.context.service, key, of))
            world.observer.sometimes(f"request: {receipt.status}")


def _answer(world: World, process: Process, delivery: Delivery, consumer: str, name: str) -> Flow[Receipt]:
    with inline_lane(world, process, name) as lane:
        while not process.isolation.enter(lane):
            yield Wait(0.005)
        receipts: dict[str, Receipt] = yield from twice(lambda: process_step(lane, delivery, is_async=True))
    if consumer not in receipts:
        raise StoreUnavailable("not subscribed any more")
    return receipts[consumer]


def announcer(world: World, process: Process) -> Flow[None]:
    """Sends what no message caused, under ids of its own: to two destinations, and now and then something else."""
    chance, sender = world.chance, Sender(process.context, cast("Any", None))
    context = process.context
    sinks = context.registry.destinations(is_async=False)
    while not process.stopping and not world.calm:
        yield Wait(chance.choice((0.5, 2.0, 6.0)))
        arguments: Any = {"id": f"news-{chance.randrange(KEYS)}", "to": chance.choice(sinks)}
        delivery = sender._outgoing("news", {"key": "a", "n": chance.choice((0, 0, 0, 1))}, arguments)
        record = Sent(world.scheduler.steps, context.service, delivery.id, delivery.destination or "", delivery.hash)
        try:
            yield from twice(lambda: sender._send(delivery))  # noqa: B023 - called before the next
        except StoreError:
            yield RECONNECT
        except InvalidMessage:
            world.observer.sometimes("send: another one has this id")
        else:
            world.history.sent.append(record)
            world.observer.sometimes("send: by itself")
