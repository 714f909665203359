"""What every step knows: settings, the handlers of this process, what the database was last seen to contain."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from onceward.blobs.bodies import LargeBodies
from onceward.domain.activity import Activity
from onceward.domain.pauses import Pauses
from onceward.flow import COMMIT, Begin, Flow, Request
from onceward.registry import OUTBOX, Handler, Registry, Subscription
from onceward.settings import Settings
from onceward.stores.moves import Moves

MOST_PLACED = 100
"""So many unhandled messages are placed in one transaction."""
UNKNOWN = "MODULE:ATTR"
"""What stands for the inbox in a command while it is not known how the program calls it."""
LOOK_SECONDS = 0.5
"""How often a process that claims, or reads sources, looks whether the catalog has changed: what is paused is in it."""
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
    store_first_until: float = 0.0
    unplaced: frozenset[str] = frozenset()
    """Types that have consumers, and messages that came before those and are not placed yet."""
    read_at: float = 0.0
    pauses: Pauses = Pauses()
    """What operators have paused."""

    def learned(self, numbers: Mapping[int, str]) -> Catalog:
        """The same with these names."""
        return self._replace(numbers=numbers, names={name: number for number, name in numbers.items()})


class Try(NamedTuple):
    """When a try of a call was that failed, by the clock: where an answer was lost, what it stored it stored then."""

    began: float
    ended: float
    stored: frozenset[int] | None = None
    """The numbers of what it has stored, where no answer was lost: it met another transaction, and was undone."""
    only: frozenset[int] | None = None
    """Where an answer was lost: what it can have stored, where their numbers are known."""


@dataclass(slots=True)
class Cache:
    """Holds the newest catalog. It is replaced as a whole, so a thread that took it sees one version of everything.

    Threads read it anew beside each other. What one has just added is in every read that begins afterwards, and must
    not get lost by one that began before and ends later.
    """

    catalog: Catalog = field(default_factory=Catalog)
    _reads: int = field(default=0, init=False)
    _newest: int = field(default=0, init=False)
    """The read that the catalog is of."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def begin_read(self) -> int:
        """Count a read of the catalog that begins now."""
        with self._lock:
            self._reads += 1
            return self._reads

    def put(self, catalog: Catalog, read: int) -> None:
        """Take what was read, unless a read that began later has ended already."""
        with self._lock:
            if read > self._newest:
                self.catalog, self._newest = catalog, read

    def learn(self, numbers: Mapping[int, str]) -> Catalog:
        """Take names that were read by themselves."""
        with self._lock:
            self.catalog = self.catalog.learned({**self.catalog.numbers, **numbers})
            return self.catalog


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
    moves: Moves
    """What the store can do."""
    cache: Cache = field(default_factory=Cache)
    introduction: Introduction = field(default_factory=Introduction)
    command: str = "onceward"
    """How the command line is started;"""
    program: str = UNKNOWN
    """and what it calls this inbox, where it knows: MODULE:ATTR, or --store URL."""
    placing_at: float = float("-inf")
    """When a lane may fan out next because a message waits for it."""
    placing_limit: int = MOST_PLACED
    """How many are placed in one transaction: fewer after one that was not answered in time."""
    unplaceable: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Unhandled messages whose placing the database refused: how often, and when each is tried again."""
    look_at: float = float("inf")
    """When this process looks again whether the catalog has changed; never before it was read."""
    current_at: float = float("-inf")
    """What had changed in it by then is known."""
    clock: Callable[[], float] = time.monotonic
    large: LargeBodies = field(default_factory=LargeBodies)
    """Where bodies are that are too large for a row."""
    activity: Activity = field(default_factory=Activity)
    """What this process has seen happen and not yet written into the history."""
    stores_first: set[Handler] = field(default_factory=set)
    """Handlers whose messages are stored before they run inline: they call `message.once`, and there is one writer."""
    calls_once: set[Handler] = field(default_factory=set)
    """Handlers that were found to call `message.once`: their messages share no transaction."""

    def hint(self, verb: str, *rest: object) -> str:
        """A command about this inbox, to copy and run."""
        inbox = UNKNOWN if verb == "run" and self.program.startswith("-") else self.program  # a store has no handlers
        return " ".join(map(str, (self.command, verb, inbox, *rest)))

    def forget(self) -> None:
        """What was known of the database, as after a start: it is another one."""
        self.cache, self.introduction = Cache(), Introduction()

    def short(self, *, durable: bool = True, by_index: bool = True) -> Begin:
        """A transaction of onceward's own statements only.

        It need not be durable where nothing that outlives a crash of the database relies on it.
        """
        limit = self.settings.statement_limit.total_seconds()
        return Begin(limit, self.settings.lock_wait.total_seconds(), limit * 2, durable=durable, by_index=by_index)

    def long(self, seconds: float, fence: str, *, savepoint: bool = False) -> Begin:
        """A transaction in which a handler runs for up to so many seconds."""
        # The watch over the handler is the first to notice; the server's own limits are for a process that is stuck.
        return Begin(seconds + 5, seconds + 5, seconds + 15, fence, savepoint=savepoint)


def in_transaction(context: Context, *requests: Request, durable: bool = True) -> Flow[tuple[list[Any], ...]]:
    """Run statements in a short transaction of their own; they travel together."""
    answers = yield (context.short(durable=durable), *requests, COMMIT)
    return tuple(answers[1:-1])


def load_catalog(context: Context, cache: Cache) -> Flow[None]:
    """Read names and subscriptions anew."""
    read, began = cache.begin_read(), context.clock()
    rows = yield from context.moves.catalog.load_catalog()
    by_type: dict[str, list[Subscription]] = {}
    for subscription in rows.subscriptions:
        if subscription.consumer != OUTBOX and not subscription.retired:
            by_type.setdefault(subscription.type, []).append(subscription)
    left = context.settings.store_first_for.total_seconds() - rows.since_crash
    catalog = Catalog(
        version=rows.version,
        subscriptions={subscription.id: subscription for subscription in rows.subscriptions},
        by_type=by_type,
        relay=next((one for one in rows.subscriptions if one.consumer == OUTBOX), None),
        store_first_until=context.clock() + left,
        # No more can come while the version stays: see `hold_catalog` in `receive`.
        unplaced=frozenset(one.type for one in rows.unhandled if one.subscription is None and one.type in by_type),
        read_at=context.clock(),
        pauses=Pauses(rows.pauses, rows.now, context.clock()),
    )
    cache.put(catalog.learned(rows.names), read)
    context.look_at, context.current_at = context.clock() + LOOK_SECONDS, began


def stay_current(context: Context) -> Flow[None]:
    """Read the catalog again, if it has changed; asked for when the time to look has come (`look_at`)."""
    began = context.clock()
    context.look_at = began + LOOK_SECONDS
    version = yield from context.moves.catalog.catalog_version()
    if version != context.cache.catalog.version:
        yield from load_catalog(context, context.cache)
    context.current_at = began


def catalog_wait(context: Context, current_at: float, woken_at: float) -> float:
    """In how many seconds the catalog is to be looked at: what woke a lane may be there, and not be known yet."""
    return max(0.0, context.look_at - context.clock()) if current_at < woken_at else float("inf")


def know_names(context: Context, cache: Cache, names: Iterable[str]) -> Flow[None]:
    """Make sure that consumers and sources have their numbers; look now and then whether all is placed by now."""
    catalog = cache.catalog
    if catalog.version < 0 or (catalog.unplaced and context.clock() >= catalog.read_at + LOOK_AGAIN):
        yield from load_catalog(context, cache)
    unknown = set(names) - cache.catalog.names.keys()
    if unknown:
        yield from context.moves.catalog.add_names(sorted(unknown))
        yield from load_catalog(context, cache)
