"""Small things to build steps from: a clock that stands still, handlers, contexts, lanes, rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from onceward.errors import InvalidMessage
from onceward.flow import Call, Outcome
from onceward.message import DEFAULT, Delivery, Message, Outgoing, moment
from onceward.registry import ANY_TYPE, OUTBOX, Handler, KeySpec, Registry, Subscription
from onceward.retry import RetryPolicy
from onceward.settings import Settings
from onceward.steps.context import Cache, Catalog, Context
from onceward.steps.isolation import Isolation
from onceward.steps.lane import Claimed, Lane
from onceward.steps.rows import new_row, targets
from onceward.stores.protocol import TimeLimits
from onceward.stores.relational import RelationalMoves

SERVICE, SOURCE = "service", "shop"
WORKER = 7
NOW = 1_700_000_000_000_000


@dataclass
class Clock:
    """Stands still until it is moved, or moves a little with each look."""

    now: float = 1000.0
    step: float = 0.0

    def __call__(self) -> float:
        """The time."""
        self.now += self.step
        return self.now


@dataclass
class Stop:
    """Says no for so many looks, then yes."""

    after: float = float("inf")
    looks: int = field(default=0)

    def __call__(self) -> bool:
        """Whether to stop."""
        self.looks += 1
        return self.looks > self.after


def do_nothing(message: Message, tx: Any) -> None:
    """A handler whose effects are played by the script."""


async def do_nothing_async(message: Message, tx: Any) -> None:
    """As `do_nothing`."""


def handler(  # noqa: PLR0913 - each is one decision about a handler
    type: str = "paid",  # noqa: A002 - the word every sender uses
    *,
    consumer: str = SERVICE,
    version: int = 1,
    key: KeySpec = None,
    retry: RetryPolicy | None = None,
    group: int = 100,
    raw: bool = False,
    keep_body: bool = True,
    function: Callable[..., Any] = do_nothing,
    timeout: float = 60,
    **more: Any,
) -> Handler:
    """A handler with the library's own defaults."""
    return Handler(
        function=function,
        type=type,
        consumer=consumer,
        version=version,
        key=key,
        retry=retry or RetryPolicy(),
        timeout=timedelta(seconds=timeout),
        group=group,
        raw=raw,
        keep_body=keep_body,
        **more,
    )


RELAY = Subscription(100, OUTBOX, 100, ANY_TYPE, None, key_function=False)


def relay(destination: str = DEFAULT, **more: Any) -> Handler:
    """The handler of outgoing messages to a destination."""
    return handler(destination, consumer=OUTBOX, raw=True, external=True, **more)


def context(*handlers: Handler, settings: Settings | None = None, strangers: tuple[Handler, ...] = ()) -> Context:
    """A context that knows its catalog: version 1, the handlers subscribed, and those of other processes."""
    registry = Registry()
    for one in handlers:
        if one.external:
            registry.add_relay(one)
        else:
            registry.add(one)
    return Context(
        service=SERVICE,
        prefix="p_",
        code_version="v1",
        settings=settings or Settings(),
        registry=registry,
        moves=RelationalMoves(TimeLimits.of(settings or Settings())),
        cache=Cache(catalog(*handlers, *strangers)),
        clock=Clock(),
    )


def catalog(*handlers: Handler, version: int = 1) -> Catalog:
    """What the database would say about handlers; the relay is always subscribed."""
    names = {SERVICE: 1, SOURCE: 2}
    for one in handlers:
        if not one.external:
            names.setdefault(one.consumer, len(names) + 1)
    known: dict[tuple[str, str], Subscription] = {}
    for one in handlers:
        if not one.external:
            known[one.consumer, one.type] = Subscription(
                id=len(known) + 1,
                consumer=one.consumer,
                consumer_id=names[one.consumer],
                type=one.type,
                key_path=one.key if isinstance(one.key, str) else None,
                key_function=callable(one.key),
                sequence=one.sequence,
                on_dead=one.on_dead,
            )
    by_type: dict[str, list[Subscription]] = {}
    for subscription in known.values():
        by_type.setdefault(subscription.type, []).append(subscription)
    names[OUTBOX] = RELAY.consumer_id
    return Catalog(
        version=version,
        names=names,
        numbers={number: name for name, number in names.items()},
        subscriptions={subscription.id: subscription for subscription in (*known.values(), RELAY)},
        by_type=by_type,
        relay=RELAY,
    )


def catalog_answers(known: Catalog, *, since_crash: float = 1e9) -> dict[str, Any]:
    """A catalog as the statements that read it answer."""
    return {
        "catalog": [(known.version, since_crash)],
        "names": [(number, name) for name, number in known.names.items()],
        "subscriptions": [
            (*s[:5], int(s.key_function), s.sequence, s.on_dead, s.aggregate, int(s.retired))
            for s in known.subscriptions.values()
        ],
    }


def lane(
    here: Context,
    *,
    stop: Stop | None = None,
    group: int | None = None,
    isolation: Isolation | None = None,
    destination: str | None = None,
) -> Lane:
    """A lane of every handler of its context, or a destination; it has scanned, knows how quick they are, has more."""
    known = here.cache.catalog.subscriptions.values()
    subscriptions = [s for s in known if here.registry.of_type(s.consumer, destination or s.type) is not None]
    one = Lane(
        context=here,
        worker=lambda: WORKER,
        new_token=itertools.count(1).__next__,
        subscriptions=subscriptions,
        stopping=stop or Stop(),
        isolation=isolation or Isolation(),
        looked_at=here.clock(),
        owner=WORKER,
        destination=destination,
    )
    for lot in one.lots:
        lot.group, lot.scanned_at, lot.has_backlog, lot.is_empty = group or lot.group, here.clock(), True, False
        lot.measured(lot.seconds * 0.4999, lot.group)  # one group, and no more, is claimed without asking for a share
    return one


def begin(one: Lane) -> None:
    """Make a lane one that has not looked for anything yet."""
    one.looked_at = float("-inf")
    for lot in one.lots:
        lot.scanned_at = float("-inf")


def delivery(**changes: Any) -> Delivery:
    """A delivery with something in each field."""
    return Delivery.of(**{"source": SOURCE, "id": "e1", "type": "paid", "data": {"order": 7}, **changes})


def stored_headers(headers: dict[str, str]) -> str | None:
    """Headers as they are stored; None where there are none, or where they are refused before they could be."""
    here = context()
    try:
        one = delivery(headers=headers)
    except InvalidMessage:
        return None
    (target,) = targets(here, here.cache.catalog, one)
    kept: str | None = new_row(0, one, target, 2)["headers"]
    return kept


def message(**changes: Any) -> Message:
    """A message as its handler sees it."""
    fields: dict[str, Any] = {
        "id": "e1",
        "source": SOURCE,
        "type": "paid",
        "version": 1,
        "data": {"order": 7},
        "body": b'{"order":7}',
        "headers": {},
        "key": None,
        "seq": 1,
        "attempt": 1,
        "received_at": moment(NOW),
        "consumer": SERVICE,
    }
    return Message(**{**fields, **changes})


def claimed(  # noqa: PLR0913 - the parts of a claim
    seq: int,
    by: Handler,
    *,
    key: int | None = None,
    token: int = 1,
    attempts: int = 0,
    age: float = 0.0,
    problem: Exception | None = None,
    place: int | None = None,
    sequence: int | None = None,
    stale: bool = False,
) -> Claimed:
    """A claimed message, or one that cannot be shown to its handler."""
    shown = message(seq=seq, id=f"e{seq}", type=by.type, consumer=by.consumer, outbox=Outgoing(SERVICE))
    return Claimed(
        seq=seq,
        worker=WORKER,
        token=token,
        key_hash=key,
        place=seq if place is None else place,
        sequence=sequence,
        attempts=attempts,
        age=age,
        handler=by,
        call=None if problem else Call(by, shown),
        problem=problem,
        stale=stale,
    )


def claim_row(seq: int, *, hashed: int | None = None, subscription: int = 1, **changes: Any) -> tuple[Any, ...]:
    """A row as the claim statements answer it; `hashed` is the number of its key."""
    fields: dict[str, Any] = {
        "place": seq,
        "sequence": None,
        "attempts": 0,
        "source": 2,
        "id": f"e{seq}",
        "type": "paid",
        "version": 1,
        "key": None,
        "headers": None,
        "body": b'{"order":7}',
        "destination": None,
        "key_from": None,
        "received_at": NOW,
        "age": 0.5,
    }
    assert changes.keys() <= fields.keys()
    return (seq, subscription, hashed, *{**fields, **changes}.values())


def outcomes(**by_message: Outcome | list[Outcome]) -> Callable[[Call], Outcome]:
    """What handlers do: `m3=[failed, fine]` is message 3, first and second time (the last stays); others are fine."""
    left = {name: list(some) if isinstance(some, list) else [some] for name, some in by_message.items()}

    def call(request: Call) -> Outcome:
        first = request.message[0] if request.handler.batch else request.message
        some = left.get(f"m{first.seq}", [Outcome(touched=True)])
        return some.pop(0) if len(some) > 1 else some[0]

    return call
