"""The guarantee that is truly in force for each handler, from the store, the retention and the sources.

Invariant: it is the weakest that is true. A program that declares more than that (`guarantee=`) does not start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from onceward.domain.text import long
from onceward.errors import ConfigurationError
from onceward.registry import Handler, Promise
from onceward.runtime.runner import perform
from onceward.steps.context import Context
from onceward.stores.protocol import LACKS, Store

log = logging.getLogger("onceward")

LEVELS: tuple[Promise, ...] = ("weaker", "at-least-once", "exactly-once")
"""From the weakest to the strongest."""
APART = "effects not in the transaction"
MEANINGS: dict[Promise, str] = {
    "exactly-once": "effects through tx are applied exactly once; calls elsewhere at least once, under one key",
    "at-least-once": "published at least once, always under the same id",
    "weaker": "a message can be lost, or take effect again",
}


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What holds for a handler, and why not more."""

    handler: str
    consumer: str
    type: str
    level: Promise
    declared: Promise | None
    reasons: tuple[str, ...]
    is_observed: bool = False
    """It is less than it could be only because of what the handler was seen to do: reported, no reason not to start."""

    @property
    def is_broken(self) -> bool:
        """Whether the program declares more than is true."""
        if self.is_observed:
            return False
        return self.declared is not None and LEVELS.index(self.level) < LEVELS.index(self.declared)


def in_force(context: Context, store: Store) -> list[Guarantee]:
    """Return what holds for each handler of this process."""
    common = [*_store(store), *_retention(context, store)]
    apart = {(one.consumer, one.type) for one in perform(store, context.moves.reports.apart)}
    recorded = (
        [] if "interactive transactions" in store.capabilities else [f"the store {LACKS['interactive transactions']}"]
    )
    return [_of(handler, common, apart, [] if handler.external else recorded) for handler in context.registry]


def check(context: Context, store: Store) -> None:
    """Log what holds; raise where a handler declares more."""
    found = in_force(context, store)
    for one in found:
        why = f" ({'; '.join(one.reasons)})" if one.reasons else ""
        level = logging.WARNING if one.level == "weaker" or one.is_observed else logging.INFO
        log.log(level, "%s of %s for %s: %s%s", one.handler, one.type, one.consumer, one.level, why)
    broken = [one for one in found if one.is_broken]
    if broken:
        first = broken[0]
        raise ConfigurationError(
            f"{first.handler} declares guarantee={first.declared!r}, and only {first.level!r} is in force: "
            f"{'; '.join(first.reasons)}. Correct that, or declare less. Every handler: {context.hint('doctor')}"
        )


def _of(handler: Handler, common: list[str], apart: set[tuple[str, str]], recorded: list[str]) -> Guarantee:
    level: Promise = "at-least-once" if handler.external else "exactly-once"
    reasons = ["its effect is outside of the database"] if handler.external else []
    seen, told = handler.use.is_apart, (handler.consumer, handler.type) in apart
    is_observed = not handler.external and not common and (told if seen is None else seen)
    if is_observed:
        level = "at-least-once"
        reasons = [f"{APART}: it finishes messages without a statement through tx, and a crash repeats what it did"]
    if common:
        level = "weaker"
    name = "the relay" if handler.external else handler.name
    why = (*common, *reasons, *recorded)
    return Guarantee(name, handler.consumer, handler.type, level, handler.guarantee, why, is_observed)


def _store(store: Store) -> Iterator[str]:
    """Whether what was committed stays."""
    if "durability" not in store.capabilities:
        yield f"the store {LACKS['durability']}"
    for level, what, _ in store.findings():
        if level == "error":
            yield what


def _retention(context: Context, store: Store) -> Iterator[str]:
    """Whether a copy is recognised for as long as one may come."""
    kept = context.settings.dedupe_retention
    latest = perform(store, context.moves.retention.latest_sources)
    windows = [(name, timedelta(seconds=seconds)) for name, seconds in latest.items()]
    windows += context.registry.sources.items()
    for name, window in windows:
        if window > kept:
            yield f"{name} may redeliver for up to {long(window)}, and ids are remembered for {long(kept)}"
            return
