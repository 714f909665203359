"""What operators do."""

from __future__ import annotations

from typing import Any, Literal

from onceward.flow import Flow
from onceward.stores.dynamodb.cases import CASE_BITS, case_at, keep_revision, ledger_of
from onceward.stores.dynamodb.catalog import names_of, version_of
from onceward.stores.dynamodb.effects import effect_at, may_run, remove_effect
from onceward.stores.dynamodb.items import Item
from onceward.stores.dynamodb.ledger import accept, blob_of, counted, identity_of, refuse_large
from onceward.stores.dynamodb.row import Row
from onceward.stores.dynamodb.rows import Table
from onceward.stores.dynamodb.unit import Shared, Unit, repeated
from onceward.stores.moves.operations import (
    Case,
    EffectDecision,
    KeyOf,
    Order,
    Redrive,
    Resolve,
    Resolved,
    Revise,
)


class Operations:
    """What operators do, each together with its line in the audit."""

    def __init__(self, base: Shared) -> None:
        self._base = base

    def key_of(self, seq: int) -> Flow[KeyOf | None]:
        table = Table(self._base)
        row = yield from table.row(seq)
        if row is None:
            return None
        names = yield from names_of(table)
        (item,) = yield from table.get(row.ledger)
        where = row.outgoing, (item or {}).get("destination"), row.sequence
        return KeyOf(row.key_hash, row.key, row.aggregate, names[row.consumer], *where)

    def redrive(self, redrive: Redrive) -> Flow[Literal["done", "not dead", "passed"]]:
        def work() -> Flow[Literal["done", "not dead", "passed"]]:
            table = Table(self._base)
            row = yield from table.row(redrive.order.seq)
            outcome = yield from _returned(table, row, redrive)
            if outcome == "done":
                table.say("redrive", *_told(redrive.order))
                yield from table.save()
                yield from table.commit()
            return outcome

        return (yield from repeated(work))

    def revise(self, revise: Revise) -> Flow[Literal["done", "not dead", "passed", "changed"]]:
        order = revise.redrive.order

        def work() -> Flow[Literal["done", "not dead", "passed", "changed"]]:
            table = Table(self._base)
            row = yield from table.row(order.seq)
            if row is None or row.token is not None or row.state not in ("dead", "retry"):
                return "not dead"
            (item,) = yield from table.get(row.ledger)
            item = item or {}
            if (bytes(item.get("body") or b""), item.get("headers")) != (revise.seen_body, revise.seen_headers):
                return "changed"
            if row.state == "retry":
                row.change(state="ready", attempts=0, crashes=0, postponed=0, due_at=None)
            elif (outcome := (yield from _returned(table, row, revise.redrive))) != "done":
                return outcome
            table.set(row.ledger, {**item, "body": revise.body, "headers": revise.headers})
            for before, headers in ((True, revise.seen_headers), (False, revise.headers)):
                if name := blob_of(headers):
                    place = table.layout.at("R", name)
                    table.remove(place) if before else table.set(place, {"seq": order.seq})
            for one in revise.kept:
                yield from keep_revision(table, one)
            table.say("edit", *_told(order))
            yield from table.save()
            yield from table.commit()
            return "done"

        refuse_large(str(order.seq), revise.body, revise.headers)
        return (yield from repeated(work))

    def discard(self, order: Order, *, scheduled: bool) -> Flow[bool]:
        def work() -> Flow[bool]:
            table = Table(self._base)
            row = yield from table.row(order.seq)
            if row is None or row.token is not None or not (yield from table.is_first(row)):
                return False
            if scheduled and row.state != "scheduled":
                return False
            if row.key_hash is not None:
                yield from table.advance([row])
            table.is_done(row, how="discard")
            table.take_out(row)
            table.say("discard", *_told(order))
            yield from table.save()
            yield from table.commit()
            return True

        return (yield from repeated(work))

    def make_due(self, order: Order) -> Flow[bool]:
        def work() -> Flow[bool]:
            table = Table(self._base)
            row = yield from table.row(order.seq)
            if row is None or row.status(table.now, is_first=True) not in ("retrying", "scheduled"):
                return False
            row.due_at = table.now
            if row.scheduled_at is not None:
                row.scheduled_at = table.now
                (item,) = yield from table.get(row.ledger)
                table.set(row.ledger, {**(item or {}), "due_at": table.now})
            table.say("hasten", *_told(order))
            yield from table.save()
            yield from table.commit()
            return True

        return (yield from repeated(work))

    def unblock(self, order: Order) -> Flow[bool]:
        def work() -> Flow[bool]:
            table = Table(self._base)
            if not (yield from table.leave_key(order.seq)):
                return False
            table.say("unblock", *_told(order))
            yield from table.save()
            yield from table.commit()
            return True

        return (yield from repeated(work))

    def settle_effect(self, decision: EffectDecision) -> Flow[bool]:
        def work() -> Flow[bool]:
            table = Table(self._base)
            place = effect_at(table, decision.key)
            (effect,) = yield from table.get(place)
            if effect is None or effect.get("done") or (yield from may_run(table, effect, decision.patience)):
                return False
            if decision.result is None:
                remove_effect(table, effect)
            else:
                table.set(place, {**effect, "done": True, "result": decision.result, "finished_at": table.now})
                table.remove(table.layout.at("G", sk=decision.key))
            happened = "effect did not happen" if decision.result is None else "effect happened"
            table.say(happened, *_told(decision.order))
            yield from table.commit()
            return True

        return (yield from repeated(work))

    def case(self, case: int) -> Flow[Case | None]:
        table = Table(self._base)
        item = yield from case_at(table, case)
        if item is None or "resolution" in item:
            return None
        return (yield from case_of(table, item))

    def resolve(self, resolve: Resolve) -> Flow[Resolved]:
        if resolve.row is not None:
            refuse_large(resolve.row["id"], resolve.row["body"], resolve.row["headers"])
        numbers = yield from counted(self._base, [resolve.row] if resolve.row else [])

        def work() -> Flow[Resolved]:
            table = Table(self._base)
            place = table.layout.case(resolve.case >> CASE_BITS)
            case = yield from case_at(table, resolve.case)
            version = yield from version_of(table)
            if resolve.row is not None and resolve.catalog != version["version"]:
                return Resolved("outdated")
            if case is None or "resolution" in case:
                return Resolved("closed")
            accepted = None
            if row := resolve.row:
                table.guard(table.layout.version)
                (known,) = yield from table.get(identity_of(table, row))
                stored = None if known else (yield from accept(table, row, numbers.get(row["ordinal"])))
                accepted = known["seq"] if known else stored.seq if stored else None
                table.set(table.layout.about(accepted or 0, "x", resolve.case), {"case": resolve.case})
            if resolve.resolution == "discard":
                table.remove(place)
                table.remove(table.layout.about(case["seq"], "x", resolve.case))
            else:
                table.set(place, {**case, "resolution": resolve.resolution, "accepted": accepted})
            action = "discard-mismatch" if resolve.resolution == "discard" else resolve.resolution
            table.say(action, *_told(resolve.order))
            yield from table.commit()
            return Resolved("resolved", accepted)

        return (yield from repeated(work))

    def keep_first(self, source: str, type: str, *told: Any) -> Flow[int]:  # noqa: A002 - as the move
        actor, reason, limit = told
        cases = yield from open_cases(Table(self._base))
        same = [one for one in cases if one.hash == one.first_hash and (one.source, one.type) == (source, type)]
        kept = 0
        for one in same[:limit]:
            resolved = yield from self.resolve(Resolve(one.case, "keep-first", Order(one.seq, actor, reason)))
            kept += resolved.state == "resolved"
        return kept

    def record_reading(self, order: Order) -> Flow[bool]:
        table = Table(self._base)
        if (yield from ledger_of(table, order.seq)) is None:
            return False
        table.say("read", *_told(order))
        yield from table.commit()
        return True

    def sign_out(self, session: str, seconds: float) -> Flow[None]:
        unit = Unit(self._base)
        expires = unit.now // 1_000_000 + int(seconds) + 60
        unit.set(self._base.layout.at("S", session), {"expires": expires})
        yield from unit.commit()

    def is_signed_out(self, session: str) -> Flow[bool]:
        (item,) = yield from Unit(self._base).get(self._base.layout.at("S", session))
        return item is not None


def _returned(table: Table, row: Row | None, redrive: Redrive) -> Flow[Literal["done", "not dead", "passed"]]:
    """Make a dead message ready."""
    _, key_hash, seen_key, is_counted = redrive
    if row is None or row.state != "dead" or row.key_hash != seen_key:
        return "not dead"
    if is_counted:
        running = [one for one in (yield from table.of_key(key_hash or 0)) if one.token is not None]
        applied = yield from table.applied(row.consumer, row.aggregate, row.key)
        if row.key is None or applied != row.sequence or running:
            return "passed"
        table.set(table.progress(row.consumer, row.aggregate, row.key), {"applied": applied - 1})
    row.change(state="ready", attempts=0, crashes=0, postponed=0, key_hash=key_hash, due_at=None)
    return "done"


def open_cases(table: Table, limit: int | None = None) -> Flow[list[Case]]:
    """The mismatches that wait for a decision, the first first."""
    items = yield from table.query(table.layout.at("Z").pk, only=lambda one: "resolution" not in one)
    items.sort(key=lambda one: (one["first_at"], one["case"]))
    cases: list[Case] = []
    for item in items[:limit]:
        cases += [(yield from case_of(table, item))]
    return cases


def case_of(table: Table, item: Item) -> Flow[Case]:
    """A mismatch, beside the message whose id it has."""
    names = yield from names_of(table)
    first = (yield from ledger_of(table, item["seq"])) or {}
    return Case(
        case=item["case"],
        seq=item["seq"],
        hash=item["hash"],
        type=item["type"],
        version=item["version"],
        headers=item.get("headers"),
        body=item.get("body") or b"",
        copies=item["copies"],
        first_at=item["first_at"],
        last_at=item["last_at"],
        source=names[first["source"]],
        stored_id=first["stored_id"],
        first_hash=first["hash"],
        first_body=first.get("body"),
        consumer=names[first["consumer"]],
        first_id=first.get("id"),
        key=item.get("key"),
        first_headers=first.get("headers"),
        first_type=first.get("type"),
        first_version=first.get("version"),
        position=item.get("position"),
        due_at=item.get("due_at"),
    )


def _told(order: Order) -> tuple[int, str, str]:
    return order.seq, order.actor, order.reason
