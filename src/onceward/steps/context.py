"""What every step knows: settings, the handlers of this process, what the database was last seen to contain."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from onceward.flow import COMMIT, Begin, Flow, Query, Request
from onceward.registry import Registry, Subscription
from onceward.settings import Settings


@dataclass(slots=True)
class Catalog:
    """A cached copy of names and subscriptions; receiving is guarded by its version, so a stale one is noticed."""

    version: int = -1
    names: dict[str, int] = field(default_factory=dict)
    numbers: dict[int, str] = field(default_factory=dict)
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    by_type: dict[str, list[Subscription]] = field(default_factory=dict)
    careful_until: float = 0.0

    def copy(self) -> Catalog:
        """A copy for work inside somebody else's transaction, which may roll back what it reads."""
        return replace(self, names=dict(self.names), numbers=dict(self.numbers))

    def learn(self, rows: Iterable[tuple[int, str]]) -> None:
        """Take over the names as they were read."""
        self.numbers = dict(rows)
        self.names = {name: number for number, name in self.numbers.items()}


@dataclass(slots=True)
class Context:
    """One inbox in one process."""

    service: str
    prefix: str
    code_version: str
    settings: Settings
    registry: Registry
    catalog: Catalog = field(default_factory=Catalog)
    clock: Callable[[], float] = time.monotonic

    def short(self) -> Begin:
        """A transaction of onceward's own statements only."""
        limit = self.settings.statement_limit.total_seconds()
        return Begin(limit, self.settings.lock_wait.total_seconds(), limit * 2)

    def long(self, seconds: float, mark: str) -> Begin:
        """A transaction in which a handler runs for up to so many seconds."""
        return Begin(seconds, seconds, seconds + 15, mark)


def once(context: Context, *requests: Request) -> Flow[tuple[list[Any], ...]]:
    """Run statements in a short transaction of their own; they travel together."""
    answers = yield (context.short(), *requests, COMMIT)
    return tuple(answers[1:-1])


def load_catalog(context: Context, catalog: Catalog) -> Flow[None]:
    """Read names and subscriptions anew."""
    version, names, subscriptions = yield from once(context, Query("catalog"), Query("names"), Query("subscriptions"))
    (catalog.version, since_crash) = version[0]
    catalog.learn(names)
    known = [Subscription(i, name, c, t, path, bool(f)) for i, name, c, t, path, f in subscriptions]
    catalog.subscriptions = {subscription.id: subscription for subscription in known}
    catalog.by_type = {}
    for subscription in known:
        catalog.by_type.setdefault(subscription.type, []).append(subscription)
    left = context.settings.careful.total_seconds() - since_crash
    catalog.careful_until = context.clock() + left


def know_names(context: Context, catalog: Catalog, names: Iterable[str]) -> Flow[None]:
    """Make sure that consumers and sources have their numbers."""
    if catalog.version < 0:
        yield from load_catalog(context, catalog)
    unknown = sorted(set(names) - catalog.names.keys())
    if unknown:
        yield from once(context, *(Query("add_name", {"name": name}) for name in unknown))
        yield from load_catalog(context, catalog)


def know_numbers(catalog: Catalog, numbers: Iterable[int]) -> Flow[None]:
    """Make sure that the names behind numbers are known, inside the transaction that is open."""
    if not catalog.numbers.keys() >= set(numbers):
        rows = yield Query("names")
        catalog.learn(rows)
