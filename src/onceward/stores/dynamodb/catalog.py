"""The catalog: names, subscriptions and sources. Every change of it changes the item of its version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onceward.domain import identity
from onceward.domain.pauses import KEPT_SECONDS, PauseRow
from onceward.flow import Flow
from onceward.registry import Subscription
from onceward.stores.dynamodb.items import Item, Place
from onceward.stores.dynamodb.row import Row
from onceward.stores.dynamodb.rows import Table
from onceward.stores.dynamodb.unit import Shared, Unit, repeated
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

NEVER = 1e9
"""Seconds since what has not happened."""
KEPT = ("key_path", "key_function", "sequence", "on_dead", "aggregate")


class Catalog:
    """Who wants what."""

    def __init__(self, base: Shared) -> None:
        self._base = base

    def load_catalog(self) -> Flow[CatalogRows]:
        unit = Unit(self._base)
        version = yield from version_of(unit)  # before the rest: what is newer than it is read again
        items = yield from unit.query(self._base.layout.version.pk)
        crashed = version.get("crashed_at")
        since_crash = NEVER if crashed is None else (unit.now - crashed) / 1_000_000
        waiting = yield from unhandled(unit)
        known = subscriptions_of(items)
        pauses = [_pause(item) for item in items if item["sk"].startswith("pause#")]
        return CatalogRows(version["version"], since_crash, _names(items), known, waiting, pauses, unit.now)

    def catalog_version(self) -> Flow[int]:
        return (yield from version_of(Unit(self._base)))["version"]  # type: ignore[no-any-return] # as stored

    def names(self) -> Flow[Mapping[int, str]]:
        return (yield from names_of(Unit(self._base)))

    def add_names(self, names: Sequence[str]) -> Flow[None]:
        def work() -> Flow[None]:
            unit = Unit(self._base)
            yield from version_of(unit)
            known = yield from unit.query(self._base.layout.version.pk, first="name#", below="name$")
            there = {item["name"] for item in known}
            for number, name in enumerate([one for one in dict.fromkeys(names) if one not in there], len(there) + 1):
                unit.seen.setdefault(self._at("name", name), None)
                unit.set(self._at("name", name), {"name": name, "number": number})
            touch(unit)
            yield from unit.commit()

        yield from repeated(work)

    def hold_catalog(self) -> Flow[bool]:
        """There is no transaction of a caller's to hold it."""
        yield from ()
        return False

    def subscribe(self, subscriptions: Sequence[NewSubscription], wait: float) -> Flow[bool]:  # noqa: ARG002 - none holds it
        def work() -> Flow[bool]:
            unit = Unit(self._base)
            yield from version_of(unit)
            items = yield from unit.query(self._base.layout.version.pk)
            names, known = _names(items), subscriptions_of(items)
            places = {(one.consumer_id, one.type): one.id for one in known}
            for new in subscriptions:
                where = new["consumer"], new["type"]
                number = places.setdefault(where, len(places) + 1)
                kept = {name: new[name] for name in KEPT}  # type: ignore[literal-required] # its keys
                whose = {"id": number, "consumer": names[where[0]], "consumer_id": where[0], "type": where[1]}
                unit.set(self._at("sub", f"{number:06d}"), {**whose, **kept})
            touch(unit)
            yield from unit.commit()
            return True

        return (yield from repeated(work))

    def holders(self) -> Flow[list[Holder]]:
        """As `hold_catalog`."""
        yield from ()
        return []

    def subscribed(self, consumer: str, type: str | None) -> Flow[list[Subscribed]]:  # noqa: A002 - as the move
        return (yield from self._subscribed(Table(self._base), consumer, type))

    def retire(self, retire: Retire) -> Flow[Retired | None]:
        def work() -> Flow[Retired]:
            table = Table(self._base)
            yield from version_of(table)
            found = yield from self._subscribed(table, retire.consumer, retire.type)
            ended = Retired([one.id for one in found], sum(one.unfinished for one in found))
            fresh = [one for one in found if not one.retired]
            if fresh and (retire.discard_unfinished or not ended.unfinished):
                for one in fresh:
                    place = self._at("sub", f"{one.id:06d}")
                    table.set(place, {**(table.item(place) or {}), "retired": True})
                names = ", ".join(sorted(one.type for one in fresh))
                table.say("unsubscribe", 0, retire.actor, f"{retire.consumer}: {names}. {retire.reason}")
                touch(table)
                yield from table.commit()
            return ended

        return (yield from repeated(work))

    def unfinished_of(self, subscriptions: Sequence[int], after: int, limit: int) -> Flow[list[int]]:
        rows = yield from everything(Table(self._base))
        return sorted(row.seq for row in rows if row.subscription in subscriptions and row.seq > after)[:limit]

    def declare_sources(self, windows: Mapping[str, float]) -> Flow[dict[str, float]]:
        unit = Unit(self._base)
        for name, seconds in windows.items():
            unit.set(self._at("win", name), {"name": name, "seconds": float(seconds)})
        yield from unit.commit()
        return (yield from latest_sources(Unit(self._base)))

    def pause(self, order: PauseOrder) -> Flow[bool]:
        def work() -> Flow[bool]:
            table = Table(self._base)
            yield from version_of(table)
            if any(item.get("ended_at") is None for item in (yield from self._pauses(table, order))):
                return False
            begun = {"kind": order.kind, "name": order.name, "began_at": table.now}
            place = self._at("pause", order.kind, order.name, f"{table.now:020d}")
            table.set(place, {**begun, "actor": order.actor, "reason": order.reason})
            table.say("pause", 0, order.actor, order.line)
            touch(table)
            yield from table.commit()
            return True

        return (yield from repeated(work))

    def resume(self, order: PauseOrder) -> Flow[bool]:
        def work() -> Flow[bool]:
            table = Table(self._base)
            yield from version_of(table)
            found = yield from self._pauses(table, order)
            if all(item.get("ended_at") is not None for item in found):
                return False
            for item in found:
                place = self._base.layout.at("C", sk=item["sk"])
                ended = item.get("ended_at")
                if ended is None:
                    table.set(place, {**(table.item(place) or {}), "ended_at": table.now})
                elif table.now - ended > KEPT_SECONDS * 1_000_000:
                    table.remove(place)
            table.say("resume", 0, order.actor, order.line)
            touch(table)
            yield from table.commit()
            return True

        return (yield from repeated(work))

    def _pauses(self, unit: Unit, order: PauseOrder) -> Flow[list[Item]]:
        """The pauses of one thing; the version, which was read before, guards them all."""
        first = f"pause#{order.kind}#{order.name}#"
        found = yield from unit.query(self._base.layout.version.pk, first=first, below=first + ":")
        return [item for item in found if item["name"] == order.name]

    def record_use(self, consumer: str, type: str, *, apart: bool) -> Flow[None]:  # noqa: A002 - as the move
        def work() -> Flow[None]:
            unit, place = Unit(self._base), self._at("apart", consumer, type)
            (known,) = yield from unit.get(place)
            if known is None or known["apart"]:  # that a handler uses its transaction is never taken back
                unit.set(place, {"consumer": consumer, "type": type, "apart": apart})
            yield from unit.commit()

        yield from repeated(work)

    def _at(self, *parts: str) -> Place:
        return self._base.layout.at("C", sk="#".join(parts))

    def _subscribed(self, table: Table, consumer: str, kind: str | None) -> Flow[list[Subscribed]]:
        items = yield from table.query(self._base.layout.version.pk)
        found = [one for one in subscriptions_of(items) if one.consumer == consumer and kind in (None, one.type)]
        rows = (yield from everything(table)) if found else []
        return sorted(
            Subscribed(one.type, sum(row.subscription == one.id for row in rows), one.retired, one.id) for one in found
        )


def version_of(unit: Unit) -> Flow[Item]:
    """The item that changes with the catalog."""
    (item,) = yield from unit.get(unit.layout.version)
    return item or {"version": 0}


def touch(unit: Unit, **changes: object) -> None:
    """Tell receivers to read the catalog again; the version was read before."""
    place = unit.layout.version
    unit.set(place, {**(unit.item(place) or {}), "version": identity.new_number(), **changes})


def names_of(unit: Unit) -> Flow[dict[int, str]]:
    """The names by their numbers."""
    return _names((yield from unit.query(unit.layout.version.pk, first="name#", below="name$")))


def latest_sources(unit: Unit) -> Flow[dict[str, float]]:
    """The source that may redeliver longest."""
    found = yield from unit.query(unit.layout.version.pk, first="win#", below="win$")
    windows = {item["name"]: float(item["seconds"]) for item in found}
    return dict(sorted(windows.items(), key=lambda one: (-one[1], one[0]))[:1])


def unhandled(unit: Unit) -> Flow[list[Unhandled]]:
    """The types that wait for a consumer, and those of a subscription that wait for its key function."""
    items = yield from unit.query(unit.layout.at("U").pk)
    return [Unhandled(*one) for one in dict.fromkeys((item["type"], item.get("subscription")) for item in items)]


def everything(table: Table) -> Flow[list[Row]]:
    """All unfinished messages."""
    layout = table.layout
    for shard in range(layout.shards):
        for item in (yield from table.query(layout.at("X", shard).pk)):
            yield from table.adopt(item)
        for item in (yield from table.query(layout.at("Q", shard).pk)):
            if item["sk"].startswith("k#"):
                yield from table.of_key(item["key_hash"])
            else:
                yield from table.adopt(item)
    return sorted(table.rows.values(), key=lambda row: row.seq)


def subscriptions_of(items: Sequence[Item]) -> list[Subscription]:
    """The subscriptions among the items of the catalog."""
    return [
        Subscription(
            item["id"],
            item["consumer"],
            item["consumer_id"],
            item["type"],
            item.get("key_path"),
            item["key_function"],
            item.get("sequence"),
            item["on_dead"],
            item.get("aggregate"),
            bool(item.get("retired")),
        )
        for item in items
        if item["sk"].startswith("sub#")
    ]


def _pause(item: Item) -> PauseRow:
    return PauseRow(item["kind"], item["name"], item["began_at"], item.get("ended_at"), item["actor"], item["reason"])


def _names(items: Sequence[Item]) -> dict[int, str]:
    return {item["number"]: item["name"] for item in items if item["sk"].startswith("name#")}
