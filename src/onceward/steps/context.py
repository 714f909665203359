"""What every step knows: settings, the handlers of this process, what the database was last seen to contain."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from onceward.blobs.bodies import LargeBodies
from onceward.flow import COMMIT, Begin, Flow, Query, Request
from onceward.registry import OUTBOX, Handler, Registry, Subscription
from onceward.settings import Settings

MOST_PLACED = 100
"""So many unhandled messages are placed in one transaction."""
LOOK_AGAIN = 1.0
"""After so many seconds a process looks again whether messages wait to be placed."""
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Catalog(NamedTuple):
    """Names and subscriptions as they were read. Receiving is guarded by the version, so a stale one is noticed."""

    version: int = -1
    names: Mapping[str, int] = _NOTHING
    numbers: Mapping[int, str] = _NOTHING
    subscriptions: Mapping[int, Subscription] = _NOTHING
    by_type: Mapping[str, Sequence[Subscription]] = _NOTHING
    relay: Subscription | None = None
    """The subscription of outgoing messages; None until a process has introduced itself."""
    careful_until: float = 0.0
    unplaced: frozenset[str] = frozenset()
    """Types that have consumers, and messages that came before those and are not placed yet."""
    read_at: float = 0.0

    def knows(self, numbers: Iterable[int]) -> bool:
        """Whether it has the names behind all of them."""
        return self.numbers.keys() >= set(numbers)

    def learned(self, rows: Iterable[tuple[int, str]]) -> Catalog:
        """The same with the names as they are now."""
        numbers = dict(rows)
        return self._replace(numbers=numbers, names={name: number for number, name in numbers.items()})


class Try(NamedTuple):
    """When the first try of a call was whose answer was lost, by the clock: what it stored, it stored then."""

    began: float
    ended: float


@dataclass(slots=True)
class Cache:
    """Holds the newest catalog. It is replaced as a whole, so a thread that took it sees one version of everything."""

    catalog: Catalog = field(default_factory=Catalog)


@dataclass(slots=True)
class Introduction:
    """How far this process has told the database what it handles."""

    declared: int = 0
    """How much of the registry was told."""
    pending: frozenset[tuple[str, str]] = frozenset()
    """The consumers and types that are not written yet, because a transaction of a caller's holds the catalog."""
    tries: int = 0
    """How often that was tried in vain."""
    before: set[int] = field(default_factory=set)
    """The versions of the catalog that lacked what this process then wrote. None comes back but by a failover."""
    again_at: float = 0.0


@dataclass(slots=True)
class Context:
    """One inbox in one process."""

    service: str
    prefix: str
    code_version: str
    settings: Settings
    registry: Registry
    cache: Cache = field(default_factory=Cache)
    introduction: Introduction = field(default_factory=Introduction)
    program: str = "MODULE:ATTR"
    """What the command line calls this inbox, where it knows."""
    placing_at: float = float("-inf")
    """When a lane may fan out next because a message waits for it."""
    placing_limit: int = MOST_PLACED
    """How many are placed in one transaction: fewer after one that was not answered in time."""
    unplaceable: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Unhandled messages whose placing the database refused: how often, and when each is tried again."""
    clock: Callable[[], float] = time.monotonic
    large: LargeBodies = field(default_factory=LargeBodies)
    """Where bodies are that are too large for a row."""
    stores_first: set[Handler] = field(default_factory=set)
    """Handlers whose messages are stored before they run inline: they call `message.once`, and there is one writer."""

    def short(self, *, durable: bool = True, by_index: bool = True) -> Begin:
        """A transaction of onceward's own statements only.

        It need not be durable where nothing that outlives a crash of the database relies on it.
        """
        limit = self.settings.statement_limit.total_seconds()
        return Begin(limit, self.settings.lock_wait.total_seconds(), limit * 2, durable=durable, by_index=by_index)

    def long(self, seconds: float, mark: str, *, savepoint: bool = False) -> Begin:
        """A transaction in which a handler runs for up to so many seconds."""
        # The watch over the handler is the first to notice; the server's own limits are for a process that is stuck.
        return Begin(seconds + 5, seconds + 5, seconds + 15, mark, savepoint=savepoint)

    def inline(self, seconds: float, mark: str, *, forgets: bool) -> Begin:
        """As `long`, for a message that comes with it: a copy waits for the first one's transaction for `lock_wait`."""
        wait = self.settings.lock_wait.total_seconds()
        # Whoever waits for an answer and will come again need not wait for the writer as long as a worker does.
        return replace(self.long(seconds, mark), lock_limit=wait, writer_limit=wait if forgets else None)


def once(context: Context, *requests: Request, durable: bool = True) -> Flow[tuple[list[Any], ...]]:
    """Run statements in a short transaction of their own; they travel together."""
    answers = yield (context.short(durable=durable), *requests, COMMIT)
    return tuple(answers[1:-1])


def look(context: Context, *requests: Request) -> Flow[tuple[list[Any], ...]]:
    """As `once`, for people: what reads much is planned as the database likes."""
    answers = yield (context.short(by_index=False), *requests, COMMIT)
    return tuple(answers[1:-1])


def load_catalog(context: Context, cache: Cache) -> Flow[None]:
    """Read names and subscriptions anew."""
    requests = (Query("catalog"), Query("names"), Query("subscriptions"), Query("unhandled_types"))
    version, names, subscriptions, waiting = yield from once(context, *requests)
    number, since_crash = version[0]
    known = [Subscription(*(*row[:5], bool(row[5]), *row[6:9], bool(row[9]))) for row in subscriptions]
    by_type: dict[str, list[Subscription]] = {}
    for subscription in known:
        if subscription.consumer != OUTBOX and not subscription.retired:
            by_type.setdefault(subscription.type, []).append(subscription)
    careful = context.settings.careful.total_seconds() - since_crash
    catalog = Catalog(
        version=number,
        subscriptions={subscription.id: subscription for subscription in known},
        by_type=by_type,
        relay=next((subscription for subscription in known if subscription.consumer == OUTBOX), None),
        careful_until=context.clock() + careful,
        # No more can come while the version stays: see `hold_catalog` in `receive`.
        unplaced=frozenset(kind for kind, subscription in waiting if subscription is None and kind in by_type),
        read_at=context.clock(),
    )
    cache.catalog = catalog.learned(names)


def know_names(context: Context, cache: Cache, names: Iterable[str]) -> Flow[None]:
    """Make sure that consumers and sources have their numbers; look now and then whether all is placed by now."""
    catalog = cache.catalog
    if catalog.version < 0 or (catalog.unplaced and context.clock() >= catalog.read_at + LOOK_AGAIN):
        yield from load_catalog(context, cache)
    unknown = sorted(set(names) - cache.catalog.names.keys())
    if unknown:
        added = [Query("add_name", {"name": name}) for name in unknown]
        yield from once(context, *added, Query("touch_catalog", {"crash": False}))
        yield from load_catalog(context, cache)


def know_numbers(cache: Cache, numbers: Iterable[int]) -> Flow[None]:
    """Make sure that the names behind numbers are known, inside the transaction that is open."""
    if not cache.catalog.knows(numbers):
        rows = yield Query("names")
        cache.catalog = cache.catalog.learned(rows)
