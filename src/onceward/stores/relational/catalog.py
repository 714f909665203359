"""The catalog, as statements.

Invariant: a change of who wants what is made under a lock that waits for callers' transactions which have received
under the catalog as it was, and moves the version, which every plain receive compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onceward.domain.pauses import KEPT_SECONDS, PauseRow
from onceward.errors import StoreUnavailable
from onceward.flow import COMMIT, ROLLBACK, Begin, Flow, Query
from onceward.registry import Subscription
from onceward.stores.moves.catalog import (
    CatalogRows,
    Holder,
    NewSubscription,
    PauseOrder,
    Retire,
    Retired,
    Subscribed,
    Unhandled,
)
from onceward.stores.relational.queue import audit
from onceward.stores.relational.transaction import Transactions


class Catalog:
    """Who wants what."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions, self._run, self._read = transactions, transactions.run, transactions.read

    def load_catalog(self) -> Flow[CatalogRows]:
        asked = ("catalog", "names", "subscriptions", "unhandled_types", "pauses")
        ((version, since_crash),), names, subscriptions, unhandled, pauses = yield from self._read(
            *map(Query, asked), by_index=True
        )
        known = [Subscription(*(*row[:5], bool(row[5]), *row[6:9], bool(row[9]))) for row in subscriptions]
        waiting, rows = [Unhandled(*row) for row in unhandled], [PauseRow(*row[:-1]) for row in pauses]
        return CatalogRows(version, since_crash, dict(names), known, waiting, rows, pauses[0][-1] if pauses else 0)

    def catalog_version(self) -> Flow[int]:
        (((version, _),),) = yield from self._read(Query("catalog"), by_index=True)
        return int(version)

    def names(self) -> Flow[Mapping[int, str]]:
        (rows,) = yield from self._read(Query("names"), by_index=True)
        return dict(rows)

    def add_names(self, names: Sequence[str]) -> Flow[None]:
        yield from self._run(*(Query("add_name", {"name": name}) for name in names), touched())

    def hold_catalog(self) -> Flow[bool]:
        (((keeps_view,),),) = yield from self._run(Query("hold_catalog"))
        return bool(keeps_view)

    def subscribe(self, subscriptions: Sequence[NewSubscription], wait: float) -> Flow[bool]:
        if not (yield from self._lock(wait)):
            return False
        for subscription in subscriptions:
            yield Query("subscribe", subscription)
        yield touched()
        yield COMMIT
        return True

    def holders(self) -> Flow[list[Holder]]:
        (rows,) = yield from self._run(Query("catalog_holders"))
        return [Holder(*row) for row in rows]

    def subscribed(self, consumer: str, type: str | None) -> Flow[list[Subscribed]]:  # noqa: A002 - as the move
        (rows,) = yield from self._read(_subscribed(consumer, type))
        return _as_subscribed(rows)

    def retire(self, retire: Retire) -> Flow[Retired | None]:
        if not (yield from self._lock(retire.wait)):
            return None
        found = _as_subscribed((yield _subscribed(retire.consumer, retire.type)))
        ended = Retired([one.id for one in found], sum(one.unfinished for one in found))
        if ended.unfinished and not retire.discard_unfinished:
            yield ROLLBACK
            return ended
        if (yield Query("retire", {"subscriptions": [*ended.subscriptions]})):
            names = ", ".join(sorted(one.type for one in found if not one.retired))
            yield audit("unsubscribe", 0, retire.actor, f"{retire.consumer}: {names}. {retire.reason}")
            yield touched()
        yield COMMIT
        return ended

    def unfinished_of(self, subscriptions: Sequence[int], after: int, limit: int) -> Flow[list[int]]:
        which = {"subscriptions": list(subscriptions), "after": after, "limit": limit}
        (rows,) = yield from self._run(Query("unfinished_of", which))
        return [seq for (seq,) in rows]

    def declare_sources(self, windows: Mapping[str, float]) -> Flow[dict[str, float]]:
        declared = [Query("declare_source", {"name": name, "seconds": window}) for name, window in windows.items()]
        *_, latest = yield from self._run(*declared, Query("latest_source"))
        return dict(latest)

    def pause(self, order: PauseOrder) -> Flow[bool]:
        return (yield from self._change_pause(order, "pause", is_paused=False))

    def resume(self, order: PauseOrder) -> Flow[bool]:
        return (yield from self._change_pause(order, "resume", is_paused=True))

    def _change_pause(self, order: PauseOrder, action: str, *, is_paused: bool) -> Flow[bool]:
        """Begin or end a pause; of two operators the second waits for the row of the catalog, and finds it changed."""
        which = {"kind": order.kind, "name": order.name}
        yield (self._transactions.short(), touched())
        if bool((yield Query("paused", which))) != is_paused:
            yield ROLLBACK
            return False
        if is_paused:
            yield (Query("resume", which), Query("forget_pauses", {"keep": KEPT_SECONDS}))
        else:
            yield Query("pause", {**which, "actor": order.actor, "reason": order.reason})
        yield (audit(action, 0, order.actor, order.line), COMMIT)
        return True

    def record_use(self, consumer: str, type: str, *, apart: bool) -> Flow[None]:  # noqa: A002 - as the move
        yield from self._run(Query("record_use", {"consumer": consumer, "type": type, "apart": apart}))

    def _lock(self, wait: float) -> Flow[bool]:
        """Begin a transaction that may change who wants what; False, without one, while callers' are in the way."""
        statement = self._transactions.limits.statement
        yield Begin(statement, wait, statement)
        try:
            yield Query("lock_catalog")
        except StoreUnavailable:
            yield ROLLBACK  # fails where it was not the lock
            return False
        return True


def touched(*, crash: bool = False) -> Query:
    """The statement that tells every receiver to read the catalog again."""
    return Query("touch_catalog", {"crash": crash})


def _subscribed(consumer: str, kind: str | None) -> Query:
    return Query("subscribed", {"consumer": consumer, "type": kind})


def _as_subscribed(rows: Sequence[tuple[Any, ...]]) -> list[Subscribed]:
    return [Subscribed(kind, unfinished, bool(retired), number) for kind, unfinished, retired, number in rows]
