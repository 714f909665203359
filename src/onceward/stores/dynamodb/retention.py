"""Retention: what is old goes, beside live traffic; personal data can be erased."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onceward.flow import Flow
from onceward.stores.dynamodb.cases import CASE_BITS, case_at, ledger_of
from onceward.stores.dynamodb.catalog import everything, latest_sources, names_of
from onceward.stores.dynamodb.effects import effect_at, effects_of, remove_effect
from onceward.stores.dynamodb.items import Item, Place, moment_of, numbered
from onceward.stores.dynamodb.ledger import blob_of
from onceward.stores.dynamodb.rows import Table, of_id
from onceward.stores.dynamodb.unit import Shared, Unit, repeated
from onceward.stores.moves.operations import Order
from onceward.stores.moves.retention import Archivable, PruneBatch, PrunedBatch, StoredBody, StoredCase


class Retention:
    """What keeps the tables small, and what erases."""

    def __init__(self, base: Shared) -> None:
        self._base = base

    def take_turn(self, task: str, every: float) -> Flow[bool]:
        def work() -> Flow[bool]:
            unit, place = Unit(self._base), self._base.layout.at("T", sk=task)
            (turn,) = yield from unit.get(place)
            if turn is not None and turn["due_at"] > unit.now:
                return False
            unit.set(place, {"due_at": unit.now + int(every * 1_000_000)})
            yield from unit.commit()
            return True

        return (yield from repeated(work))

    def give_turn(self, task: str) -> Flow[None]:
        unit = Unit(self._base)
        unit.set(self._base.layout.at("T", sk=task), {"due_at": unit.now})
        yield from unit.commit()

    def latest_sources(self) -> Flow[dict[str, float]]:
        return (yield from latest_sources(Unit(self._base)))

    def rotate_partition(self, seconds: float) -> Flow[None]:  # noqa: ARG002 - bodies go one by one
        """There are none."""
        yield from ()

    def old_partitions(self, keep: float) -> Flow[list[int]]:  # noqa: ARG002 - as `rotate_partition`
        yield from ()
        return []

    def drop_partition(self, partition: int, lock_wait: float, *, archive_first: bool) -> Flow[bool]:  # noqa: ARG002 - none
        yield from ()
        return False

    def prune_batch(self, batch: PruneBatch) -> Flow[PrunedBatch]:
        if batch.what == "runs":  # what is known of the end of a message goes with it
            return PrunedBatch(None, 0)
        unit = Unit(self._base)
        since = unit.now - int(batch.keep * 1_000_000)
        oldest = yield from self._oldest(unit, batch.after, batch.limit)
        old = [one for one in oldest if moment_of(one["seq"]) < since or one["how"] == "imported"]
        gone = 0
        for one in old:
            gone += yield from repeated(lambda seq=one["seq"]: self._remove(batch, seq, since))  # type: ignore[misc] # a call
        at_end = len(oldest) < batch.limit or not old
        return PrunedBatch(None if at_end else oldest[-1]["seq"], gone)

    def forget_effects(self, keep: float) -> Flow[None]:  # noqa: ARG002 - as below
        """They go with their messages."""
        yield from ()

    def bodies_after(self, seq: int, limit: int) -> Flow[list[StoredBody]]:
        table = Table(self._base)
        names = yield from names_of(table)
        rows = {row.seq: row for row in (yield from everything(table))}
        done = yield from self._oldest(table, seq, limit)
        places = {one["seq"]: Place(one["lpk"], one["lsk"]) for one in done}
        places.update({number: row.ledger for number, row in rows.items() if number > seq})
        found = []
        for number in sorted(places)[:limit]:
            (item,) = yield from table.get(places[number])
            if item is not None and "type" in item:
                what = item["type"], names[item["source"]], item.get("key"), item.get("headers"), item.get("body")
                found.append(StoredBody(number, *what, _status(rows.get(number))))
        return found

    def cases_after(self, case: int, limit: int) -> Flow[list[StoredCase]]:
        table = Table(self._base)
        names = yield from names_of(table)
        items = yield from table.query(
            table.layout.at("Z").pk, first=table.layout.case((case >> CASE_BITS) + 1 if case else 0).sk, limit=limit
        )
        found = []
        for one in items:
            row = yield from table.row(one["seq"])
            first = (yield from ledger_of(table, one["seq"])) or {"source": 0}
            what = one["seq"], one["type"], names.get(first["source"], ""), one.get("key"), one.get("headers")
            found.append(StoredCase(one["case"], *what, one.get("body"), _status(row)))
        return found

    def same_id(self, source: str, from_id: bytes, below_id: bytes) -> Flow[list[int]]:
        unit = Unit(self._base)
        names = yield from names_of(unit)
        numbers = {name: number for number, name in names.items()}
        if source not in numbers:
            return []
        named = yield from of_id(unit, names, [numbers[source]], from_id, below_id)
        sent = []
        for seq in named:
            (done,) = yield from unit.get(unit.layout.done(seq))
            sent += [one[0] for one in (done or {}).get("sent", ())]
        return sorted({*named, *sent})

    def erase(self, order: Order) -> Flow[list[str] | None]:
        def work() -> Flow[list[str] | None]:
            table, seq = Table(self._base), order.seq
            item = yield from ledger_of(table, seq)
            if item is None or (yield from table.row(seq)) is not None:
                return None
            blob = blob_of(item.get("headers"))
            place = Place(item["pk"], item["sk"])
            table.set(place, {**item, "body": None, "headers": None, "key": None, "forgotten": True})
            (done,) = yield from table.get(table.layout.done(seq))
            table.set(table.layout.done(seq), {**(done or {}), "result": None})
            yield from self._erase_beside(table, seq)
            if blob:
                table.remove(table.layout.at("R", blob))
            table.say("erase", seq, order.actor, order.reason)
            yield from table.commit()
            return [] if blob is None else [blob]

        return (yield from repeated(work))

    def _erase_beside(self, table: Table, seq: int) -> Flow[None]:
        for one in (yield from table.query(table.layout.at("M", seq).pk)):
            kind, place = one["sk"].partition("#")[0], Place(one["pk"], one["sk"])
            if kind == "a":
                table.set(place, {**one, "error": "(erased)", "traceback": None})
            elif kind == "x":
                at = table.layout.case(one["case"] >> CASE_BITS)
                case = yield from case_at(table, one["case"])
                if case is not None:
                    gone: dict[str, Any] = {"body": b"", "headers": None, "key": None}
                    table.set(at, {**case, **gone, "resolution": case.get("resolution") or "keep-first"})
        for effect in (yield from effects_of(table, seq)):
            table.set(effect_at(table, effect["key"]), {**effect, "result": None})

    def archivable(self, after: int, keep: float, limit: int) -> Flow[list[Archivable]]:
        table = Table(self._base)
        names = yield from names_of(table)
        since = table.now - int(keep * 1_000_000)
        found: list[Archivable] = []
        for done in (yield from self._oldest(table, after, 10 * limit)):
            (item,) = yield from table.get(Place(done["lpk"], done["lsk"]))
            if item is None or "id" not in item or "archived" in item or item["at"] >= since or len(found) >= limit:
                continue
            if (yield from self._is_settled(table, done["seq"])):
                found.append(_archivable(done, item, names))
        return found

    def drop_bodies(self, seqs: Sequence[int]) -> Flow[int]:
        gone = 0
        for seq in seqs:
            gone += yield from repeated(lambda seq=seq: self._drop_body(seq))  # type: ignore[misc] # a call
        return gone

    def _oldest(self, unit: Unit, after: int, limit: int) -> Flow[list[Item]]:
        """Finished messages by their numbers, the oldest first."""
        found: list[Item] = []
        for shard in range(unit.layout.shards):
            found += yield from unit.query(
                unit.layout.at("H", shard).pk,
                first=numbered(after + 1),
                limit=limit,
                only=lambda one: "done_at" in one,
            )
        return sorted(found, key=lambda one: one["seq"])[:limit]

    def _remove(self, batch: PruneBatch, seq: int, since: int) -> Flow[bool]:
        """Remove one, if nothing speaks against it."""
        if batch.what == "bodies":
            return (yield from self._drop_body(seq))
        table = Table(self._base)
        (done,) = yield from table.get(table.layout.done(seq))
        if done is None or done["done_at"] >= since or not (yield from self._is_settled(table, seq)):
            return False
        (item,) = yield from table.get(Place(done["lpk"], done["lsk"]))
        about = yield from table.query(table.layout.at("M", seq).pk)
        effects = yield from effects_of(table, seq)
        keeps = (
            any(one["sk"].startswith("o#") and one["at"] >= since for one in about),
            batch.archive_first and item is not None and "body" in item,
            any(not one.get("done") for one in effects),
        )
        if any(keeps) or (yield from self._is_accepted(table, about)):
            return False
        for effect in effects:
            remove_effect(table, effect)
        for one in about:
            if one["sk"].startswith("x#"):
                table.remove(table.layout.case(one["case"] >> CASE_BITS))
            if one.get("action") != "erase":
                table.remove(Place(one["pk"], one["sk"]))
            if one["sk"].startswith("o#") and one["action"] != "erase":
                table.remove(table.layout.at("A", sk=f"{one['number']:019d}"))
        for place in (Place(done["lpk"], done["lsk"]), table.layout.done(seq), table.layout.copies(seq)):
            table.remove(place)
        yield from table.commit()
        return True

    def _is_accepted(self, table: Table, about: Sequence[Item]) -> Flow[bool]:
        """Whether a mismatch of it is a message of its own, which is still there."""
        for one in about:
            if one["sk"].startswith("x#"):
                case = yield from case_at(table, one["case"])
                if case is not None and "accepted" in case and (yield from ledger_of(table, case["accepted"])):
                    return True
        return False

    def _drop_body(self, seq: int) -> Flow[bool]:
        table = Table(self._base)
        item = yield from ledger_of(table, seq)
        if item is None or "id" not in item or not (yield from self._is_settled(table, seq)):
            return False
        kept = ("consumer", "source", "stored_id", "hash", "type_hash", "seq", "at")
        table.set(Place(item["pk"], item["sk"]), {name: item[name] for name in kept})
        if blob := blob_of(item.get("headers")):
            table.remove(table.layout.at("R", blob))
        yield from table.commit()
        return True

    def _is_settled(self, table: Table, seq: int) -> Flow[bool]:
        """Nothing unfinished, dead or in an open mismatch."""
        if (yield from table.row(seq)) is not None:
            return False
        pointers = yield from table.query(table.layout.at("M", seq).pk, first="x#", below="x$")
        for one in pointers:
            case = yield from case_at(table, one["case"])
            if case is not None and "resolution" not in case and case["seq"] == seq:
                return False
        return True


def _status(row: Any) -> str:
    if row is None:
        return "finished"
    return "running" if row.token is not None else str(row.state)


def _archivable(done: Item, item: Item, names: dict[int, str]) -> Archivable:
    return Archivable(
        seq=done["seq"],
        source=names[item["source"]],
        consumer=names[item["consumer"]],
        id=item["id"],
        type=item["type"],
        version=item["version"],
        key=item.get("key"),
        key_from=item.get("key_from"),
        position=item.get("position"),
        headers=item.get("headers"),
        body=item.get("body"),
        sha256=item["hash"].hex(),
        destination=item.get("destination"),
        cause=item.get("cause"),
        received_at=item["at"],
        result=done.get("result"),
    )
