"""What is known of a message by its number, and mismatches: what came under its id and is not the same."""

from __future__ import annotations

from onceward.domain import identity, payload
from onceward.flow import Flow
from onceward.stores.dynamodb.items import Item, Place
from onceward.stores.dynamodb.row import Row, due_of
from onceward.stores.dynamodb.rows import Table
from onceward.stores.dynamodb.unit import Unit
from onceward.stores.moves.ledger import Decided, Known, Mismatch

CASE_BITS = 12
"""Of the number of a case, so many are drawn: a body that was discarded and comes again is another case."""


def known(table: Table, item: Item) -> Flow[Known]:
    """What is known of a message."""
    (done,) = yield from table.get(table.layout.done(item["seq"]))
    is_finished = done is not None and done.get("how") in ("done", "skip", "imported")
    result = done.get("result") if done is not None else None
    value = payload.decode_text(result) if result else None
    age = (table.now - item["at"]) / 1_000_000
    return Known(item["seq"], item["hash"], item["type_hash"], is_finished, value, age)


def quarantine(table: Table, mismatch: Mismatch) -> Flow[Decided | None]:
    """Keep a mismatch; None where the message whose id it has is gone."""
    first = yield from ledger_of(table, mismatch["seq"])
    if first is None:
        return None
    table.guard(Place(first["pk"], first["sk"]))  # it may be forgotten meanwhile
    place = table.layout.case(case_slot(mismatch))
    (case,) = yield from table.get(place)
    if case is None:
        number = case_slot(mismatch) << CASE_BITS | identity.new_number() % 2**CASE_BITS
        kept = {**mismatch, "due_at": due_of(mismatch, table.now), "due_in": None}
        table.set(place, {**kept, "case": number, "copies": 1, "first_at": table.now, "last_at": table.now})
        table.set(table.layout.about(mismatch["seq"], "x", number), {"case": number})
        return Decided(None, None)
    table.set(place, {**case, "copies": case["copies"] + 1, "last_at": table.now})
    accepted = None
    if "accepted" in case and (item := (yield from ledger_of(table, case["accepted"]))) is not None:
        accepted = yield from known(table, item)
    return Decided(case.get("resolution"), accepted)


def keep_revision(table: Table, mismatch: Mismatch) -> Flow[None]:
    """Remember a body as the message's own: whatever has it is a copy. What was decided about it stays."""
    yield from quarantine(table, mismatch)
    place = table.layout.case(case_slot(mismatch))
    case = table.item(place) or {}
    decided = case.get("resolution") or "revision"
    table.set(place, {**case, "copies": case["copies"] - 1, "resolution": decided})


def case_slot(mismatch: Mismatch) -> int:
    """Where a case is: at one place for one body under one id, so that copies find it."""
    text = f"{mismatch['seq']} {mismatch['hash'].hex()} {mismatch['type_hash']}"
    return int.from_bytes(identity.body_hash(text.encode())[:5], "big")


def case_at(unit: Unit, number: int) -> Flow[Item | None]:
    """A case by its number."""
    (item,) = yield from unit.get(unit.layout.case(number >> CASE_BITS))
    return item if item is not None and item["case"] == number else None


def ledger_of(table: Table, seq: int) -> Flow[Item | None]:
    """The ledger item of a message, finished or not."""
    row: Row | None = yield from table.row(seq)
    if row is not None:
        place = row.ledger
    else:
        (done,) = yield from table.get(table.layout.done(seq))
        if done is None or "lpk" not in done:
            return None
        place = Place(done["lpk"], done["lsk"])
    (item,) = yield from table.get(place)
    return item if item is not None and item["seq"] == seq else None
