"""The record of external calls."""

from __future__ import annotations

from onceward.flow import Flow
from onceward.stores.dynamodb.cases import ledger_of
from onceward.stores.dynamodb.items import Item, Place
from onceward.stores.dynamodb.rows import Table
from onceward.stores.dynamodb.unit import Shared, Unit, repeated
from onceward.stores.moves.effects import Earlier, Intend


class Effects:
    """External calls: their intents and their results."""

    def __init__(self, base: Shared) -> None:
        self._base = base

    def intend(self, intent: Intend) -> Flow[Earlier | None]:
        def work() -> Flow[Earlier | None]:
            table = Table(self._base)
            place = effect_at(table, intent.key)
            (known,) = yield from table.get(place)
            if known is None:
                kept = {"key": intent.key, "seq": intent.seq, "name": intent.name, "worker": intent.worker}
                table.set(place, {**kept, "started_at": table.now})
                table.set(table.layout.at("G", sk=intent.key), {"seq": intent.seq})
                table.set(table.layout.about(intent.seq, "e", intent.key), {"key": intent.key})
                yield from table.commit()
                return None
            # It belongs to the message that asks now: the attempt that began it may have been undone with its number.
            _point_to(table, known, intent.seq)
            yield from table.commit()
            age = (table.now - known["started_at"]) / 1_000_000
            return Earlier(bool(known.get("done")), known.get("result"), age)

        return (yield from repeated(work))

    def record_effect(self, key: str, result: str) -> Flow[None]:
        def work() -> Flow[None]:
            table = Table(self._base)
            (known,) = yield from table.get(effect_at(table, key))
            if known is not None and not known.get("done"):
                table.set(effect_at(table, key), {**known, "done": True, "result": result, "finished_at": table.now})
                table.remove(table.layout.at("G", sk=key))
                yield from table.commit()

        yield from repeated(work)

    def forget_intent(self, key: str) -> Flow[None]:
        def work() -> Flow[None]:
            table = Table(self._base)
            (known,) = yield from table.get(effect_at(table, key))
            if known is not None and not known.get("done"):
                remove_effect(table, known)
                yield from table.commit()

        yield from repeated(work)


def effect_at(table: Unit, key: str) -> Place:
    """Where an external call is."""
    return table.layout.at("E", key)


def remove_effect(table: Unit, effect: Item) -> None:
    """It was not made, or is forgotten."""
    table.remove(effect_at(table, effect["key"]))
    table.remove(table.layout.at("G", sk=effect["key"]))
    table.remove(table.layout.about(effect["seq"], "e", effect["key"]))


def _point_to(table: Unit, effect: Item, seq: int) -> None:
    """It belongs to another message now."""
    if effect["seq"] != seq:
        table.set(effect_at(table, effect["key"]), {**effect, "seq": seq})
        table.remove(table.layout.about(effect["seq"], "e", effect["key"]))
        table.set(table.layout.about(seq, "e", effect["key"]), {"key": effect["key"]})


def effects_of(table: Unit, seq: int) -> Flow[list[Item]]:
    """The external calls of a message."""
    pointers = yield from table.query(table.layout.at("M", seq).pk, first="e#", below="e$")
    found = yield from table.get(*(effect_at(table, one["key"]) for one in pointers))
    return [one for one in found if one is not None]


def move_effects(table: Unit, seq: int, to: int) -> Flow[None]:
    """The number of a message that was undone is another now."""
    for effect in (yield from effects_of(table, seq)):
        _point_to(table, effect, to)


def may_run(table: Table, effect: Item, patience: float) -> Flow[bool]:
    """Whether its message is running; one that is processed inline is not stored yet."""
    row = yield from table.row(effect["seq"])
    if row is not None:
        return row.token is not None
    if (yield from ledger_of(table, effect["seq"])) is not None:
        return False
    (worker,) = yield from table.get(table.layout.worker(effect["worker"]))
    return worker is not None and (table.now - effect["started_at"]) / 1_000_000 < patience
