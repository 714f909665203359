"""Fan-out: a message that came before its type had a consumer becomes one row for each consumer."""

from __future__ import annotations

from typing import Any

from onceward.domain import identity
from onceward.domain.schedule import LAST_PLACE
from onceward.flow import Flow
from onceward.stores.dynamodb.cases import CASE_BITS, case_at, case_slot, quarantine
from onceward.stores.dynamodb.catalog import names_of, unhandled, version_of
from onceward.stores.dynamodb.items import Item
from onceward.stores.dynamodb.ledger import accept, identity_of, look_again
from onceward.stores.dynamodb.row import Row
from onceward.stores.dynamodb.rows import Table
from onceward.stores.dynamodb.unit import Shared, Unit, repeated
from onceward.stores.moves.fan_out import FannedOut, FanOut, Placement, UnhandledRow, Wanted
from onceward.stores.moves.ledger import NewRow


class FanOuts:
    """Places messages that waited for their consumers."""

    def __init__(self, base: Shared) -> None:
        self._base = base

    def fan_out(self, fan_out: FanOut) -> Flow[FannedOut]:
        unit = Unit(self._base)
        waiting = yield from unhandled(unit)
        version = yield from version_of(unit)
        wanted = fan_out.wanted(waiting)
        outdated = bool(waiting) and fan_out.catalog != version["version"]
        if outdated or not (wanted.types or wanted.subscriptions):
            return FannedOut(waiting=len(waiting), outdated=outdated)
        marks = yield from unit.query(self._base.layout.at("U").pk)
        found = [mark for mark in marks if mark["seq"] not in fan_out.passed and _is_wanted(mark, wanted)]
        found = found[: fan_out.limit]
        names = yield from names_of(unit)
        for mark in found:
            yield from repeated(lambda seq=mark["seq"]: self._place(seq, fan_out, names))  # type: ignore[misc] # a call
        seqs = [mark["seq"] for mark in found]
        return FannedOut(seqs, seqs, waiting=len(waiting), at_end=len(found) < fan_out.limit)

    def _place(self, seq: int, fan_out: FanOut, names: dict[int, str]) -> Flow[None]:
        """Give every consumer its row, in one transaction; nothing where another process has done it."""
        table = Table(self._base)
        row = yield from table.row(seq)
        if row is None or row.state != "unhandled":
            unit = Unit(self._base)
            unit.remove(self._base.layout.unhandled(seq))
            yield from unit.commit()
            return
        (item,) = yield from table.get(row.ledger)
        if item is None:
            return
        placement = fan_out.place(_unhandled(row, item), names)
        heirs: list[int] = []
        for copy in placement.copies:
            heirs += [(yield from self._heir(table, placement, copy))]
        if placement.adoption is None:
            yield from _hand_on(table, row, heirs[0])
        else:
            adopted = placement.adoption
            state = "unhandled" if adopted.unplaced is not None else "ready" if adopted.due_at is None else "scheduled"
            row.change(
                state=state,
                due_at=adopted.due_at if state == "scheduled" else None,
                subscription=adopted.subscription,
                key_hash=adopted.key_hash,
                sequence=adopted.sequence,
                place=row.place if adopted.place is None else adopted.place,
                postponed=0,
                key=adopted.key,
                aggregate=adopted.aggregate,
            )
            table.set(row.ledger, {**item, "key": adopted.key, "aggregate": adopted.aggregate})
        yield from table.save()
        yield from table.commit()
        yield from look_again(self._base, placement.keys)

    def _heir(self, table: Table, placement: Placement, copy: NewRow) -> Flow[int]:
        """The row of another consumer: a new one, or the one that it has."""
        (known,) = yield from table.get(identity_of(table, copy))
        if known is None:
            return (yield from accept_placed(table, copy))
        mismatch, seq = placement.mismatch, int(known["seq"])
        row = yield from table.row(seq)
        if known["hash"] == identity.UNKNOWN_HASH:  # imported: a copy, whatever its bytes are
            return seq
        if (known["hash"], known["type_hash"]) != (mismatch["hash"], mismatch["type_hash"]):
            yield from quarantine(table, {**mismatch, "seq": seq})
        elif row is not None and row.state == "unhandled":
            # Another service has it too, and it may have come there later.
            since = min(row.seq if row.sequence is None else row.sequence, placement.seq)
            row.change(place=min(row.place, placement.place), sequence=since)
        return seq


def accept_placed(table: Table, row: NewRow) -> Flow[int]:
    """A new row that keeps the place of the message that it comes from; its key gets a head, if it has none."""
    number = None
    if row["key_hash"] is not None and row["place"] != LAST_PLACE:
        number = yield from table.enters(row["key_hash"])
    return (yield from accept(table, row, number)).seq


def _is_wanted(mark: Item, wanted: Wanted) -> bool:
    if "subscription" in mark:
        return mark["subscription"] in wanted.subscriptions
    return mark["type"] in wanted.types


def _unhandled(row: Row, item: Item) -> UnhandledRow:
    return UnhandledRow(
        seq=row.seq,
        source=item["source"],
        id=item["id"],
        type=item["type"],
        version=item["version"],
        key=item.get("key"),
        headers=item.get("headers"),
        body=item.get("body") or b"",
        consumer=item["consumer"],
        stored_id=item["stored_id"],
        hash=item["hash"],
        place=row.place,
        subscription=row.subscription,
        position=item.get("position"),
        key_hash=row.key_hash,
        due_at=row.scheduled_at,
    )


def _hand_on(table: Table, row: Row, heir: int) -> Flow[None]:
    """The service's own row goes; its copies, cases and audit lines belong to the row that replaces it."""
    layout = table.layout
    old, new = yield from table.get(layout.copies(row.seq), layout.copies(heir))
    if old is not None:
        kept: dict[str, Any] = {**(new or {"last_at": old["last_at"]}), "first_at": old["first_at"]}
        table.set(layout.copies(heir), {**kept, "copies": (new or {}).get("copies", 0) + old["copies"]})
        table.remove(layout.copies(row.seq))
    about = yield from table.query(layout.at("M", row.seq).pk)
    for one in about:
        kind, number = one["sk"].split("#", 1)
        if kind == "x":
            yield from _move_case(table, int(number), row.seq, heir)
        elif kind == "o":
            line = {**one, "seq": heir}
            table.set(layout.at("A", sk=number.zfill(19)), line)
            table.set(layout.about(heir, "o", number), line)
            table.remove(layout.about(row.seq, "o", number))
    table.remove(row.ledger)
    table.take_out(row)


def _move_case(table: Table, number: int, seq: int, heir: int) -> Flow[None]:
    case = yield from case_at(table, number)
    table.remove(table.layout.about(seq, "x", number))
    if case is None:
        return
    place = table.layout.case(number >> CASE_BITS)
    if case["seq"] != seq:
        table.set(place, {**case, "accepted": heir})
        table.set(table.layout.about(heir, "x", number), {"case": number})
        return
    moved = {**case, "seq": heir}
    slot = case_slot(moved)  # type: ignore[arg-type] # a mismatch and more
    again = slot << CASE_BITS | number % 2**CASE_BITS
    table.remove(place)
    table.set(table.layout.case(slot), {**moved, "case": again})
    table.set(table.layout.about(heir, "x", again), {"case": again})
