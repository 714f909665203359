"""The catalog and receiving: names, subscriptions, and what is known of a delivery."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from onceward.domain import identity, payload
from onceward.domain.marks import Mark
from onceward.domain.pauses import KEPT_SECONDS, PauseRow
from onceward.domain.reference import split
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
from onceward.stores.moves.ledger import Decided, FirstSeen, ImportedId, Known, Mismatch, NewRow, Stored
from onceward.testing.memory.sessions import move
from onceward.testing.memory.tables import CaseState, CopiesState, LedgerRow, Tables

NEVER = 1e9
"""Seconds since what has not happened."""


class Catalog:
    """Who wants what."""

    @move
    def load_catalog(self, tables: Tables) -> CatalogRows:
        since_crash = NEVER if tables.crashed_at is None else tables.since(tables.crashed_at)
        names = {number: name for name, number in tables.names.items()}
        known, waiting = [*tables.subscriptions.values()], unhandled(tables)
        return CatalogRows(tables.version, since_crash, names, known, waiting, tables.pauses, tables.now)

    @move
    def catalog_version(self, tables: Tables) -> int:
        return tables.version

    @move
    def names(self, tables: Tables) -> Mapping[int, str]:
        return {number: name for name, number in tables.names.items()}

    @move
    def add_names(self, tables: Tables, names: Sequence[str]) -> None:
        for name in names:
            tables.names.setdefault(name, len(tables.names) + 1)
        tables.touch()

    @move
    def hold_catalog(self, tables: Tables) -> bool:  # noqa: ARG002 - there is no transaction of a caller's to hold it
        return False

    @move
    def subscribe(self, tables: Tables, subscriptions: Sequence[NewSubscription], wait: float) -> bool:  # noqa: ARG002 - none holds it
        for new in subscriptions:
            where = new["consumer"], new["type"]
            known = (one for one in tables.subscriptions.values() if (one.consumer_id, one.type) == where)
            number = next((one.id for one in known), len(tables.subscriptions) + 1)
            consumer = tables.name(new["consumer"])
            key = new["key_path"], new["key_function"], new["sequence"], new["on_dead"], new["aggregate"]
            tables.subscriptions[number] = Subscription(number, consumer, new["consumer"], new["type"], *key)
        tables.touch()
        return True

    @move
    def holders(self, tables: Tables) -> list[Holder]:  # noqa: ARG002 - as `hold_catalog`
        return []

    @move
    def subscribed(self, tables: Tables, consumer: str, type: str | None) -> list[Subscribed]:  # noqa: A002 - as the move
        return _subscribed(tables, consumer, type)

    @move
    def retire(self, tables: Tables, retire: Retire) -> Retired | None:
        found = _subscribed(tables, retire.consumer, retire.type)
        ended = Retired([one.id for one in found], sum(one.unfinished for one in found))
        fresh = [one for one in found if not one.retired]
        if fresh and (retire.discard_unfinished or not ended.unfinished):
            for one in fresh:
                tables.subscriptions[one.id] = tables.subscriptions[one.id]._replace(retired=True)
            names = ", ".join(sorted(one.type for one in fresh))
            tables.say("unsubscribe", 0, retire.actor, f"{retire.consumer}: {names}. {retire.reason}")
            tables.touch()
        return ended

    @move
    def unfinished_of(self, tables: Tables, subscriptions: Sequence[int], after: int, limit: int) -> list[int]:
        found = (row.seq for row in tables.queue.values() if row.subscription in subscriptions and row.seq > after)
        return sorted(found)[:limit]

    @move
    def declare_sources(self, tables: Tables, windows: Mapping[str, float]) -> dict[str, float]:
        tables.windows.update(windows)
        return latest_sources(tables)

    @move
    def pause(self, tables: Tables, order: PauseOrder) -> bool:
        if _pause_of(tables, order) is not None:
            return False
        begun = PauseRow(order.kind, order.name, tables.now, None, order.actor, order.reason)
        tables.pauses = (*tables.pauses, begun)
        tables.say("pause", 0, order.actor, order.line)
        tables.touch()
        return True

    @move
    def resume(self, tables: Tables, order: PauseOrder) -> bool:
        found = _pause_of(tables, order)
        if found is None:
            return False
        ended = (one._replace(ended_at=tables.now) if one is found else one for one in tables.pauses)
        tables.pauses = tuple(one for one in ended if one.ended_at is None or tables.since(one.ended_at) < KEPT_SECONDS)
        tables.say("resume", 0, order.actor, order.line)
        tables.touch()
        return True

    @move
    def record_use(self, tables: Tables, consumer: str, type: str, *, apart: bool) -> None:  # noqa: A002 - as the move
        # That a handler uses its transaction is never taken back.
        if tables.apart.get((consumer, type), True):
            tables.apart[consumer, type] = apart


class Ledger:
    """What receivers do."""

    @move
    def keep_positions(self, tables: Tables, marks: Sequence[Mark]) -> None:
        tables.keep(marks)

    @move
    def positions(self, tables: Tables, source: str) -> dict[str, str]:
        return {part: position for (name, part), position in tables.positions.items() if name == source}

    @move
    def receive(
        self, tables: Tables, rows: Sequence[NewRow], catalog: int, marks: Sequence[Mark] = ()
    ) -> dict[int, Stored]:
        tables.keep(marks)
        return _stored(rows, [tables.store(row, catalog) for row in rows])

    @move
    def send(self, tables: Tables, rows: Sequence[NewRow], *, notify: bool) -> dict[int, Stored]:  # noqa: ARG002 - the caller notifies
        return _stored(rows, [tables.store(row, outgoing=True) for row in rows])

    @move
    def look_up(self, tables: Tables, rows: Sequence[NewRow], unplaced: Collection[str]) -> dict[int, Known]:
        found: dict[int, Known] = {}
        for row in rows:
            seq = tables.ids.get((row["consumer"], row["source"], row["stored_id"]))
            if seq is None and row["type"] in unplaced:
                seq = _unplaced(tables, row)
            if seq is not None:
                found[row["ordinal"]] = known(tables, seq)
        return found

    @move
    def import_ids(self, tables: Tables, rows: Sequence[ImportedId]) -> int:
        before = len(tables.ids)
        for row in rows:
            who = row["consumer"], row["source"], row["stored_id"]
            if who not in tables.ids:  # what is known stays as it is
                tables.ids[who] = seq = tables.number()
                tables.ledger[seq] = LedgerRow(*who, identity.UNKNOWN_HASH, 0, tables.now - row["age"])
        return len(tables.ids) - before

    @move
    def count_known(self, tables: Tables, rows: Sequence[ImportedId]) -> int:
        return sum((row["consumer"], row["source"], row["stored_id"]) in tables.ids for row in rows)

    @move
    def ages(self, tables: Tables, seqs: Sequence[int]) -> dict[int, float]:
        return {seq: tables.since(tables.ledger[seq].received_at) for seq in seqs if seq in tables.ledger}

    @move
    def count_copies(self, tables: Tables, copies: Mapping[int, int]) -> None:
        for seq, count in copies.items():
            before = tables.copies.get(seq, CopiesState(0, tables.now, tables.now))
            tables.copies[seq] = before._replace(copies=before.copies + count, last_at=tables.now)

    @move
    def quarantine(self, tables: Tables, mismatch: Mismatch) -> Decided | None:
        return quarantine(tables, mismatch)

    @move
    def first_seen(self, tables: Tables, bodies: Sequence[FirstSeen]) -> list[str]:
        first = []
        for body in bodies:
            where, oldest = (body.source, body.hash), tables.now - int(body.window * 1_000_000)
            if where not in tables.first_seen or tables.first_seen[where][1] < oldest:
                tables.first_seen[where] = body.id, tables.now
            first.append(tables.first_seen[where][0])
            over = [one for one, (_, at) in tables.first_seen.items() if one[0] == body.source and at < oldest]
            for one in over[:10]:
                del tables.first_seen[one]
        return first

    @move
    def referred(self, tables: Tables, blobs: Sequence[str]) -> set[str]:
        return set(blobs) & {blob_of(row) for row in tables.bodies.values()}

    @move
    def blob_folder(self, tables: Tables) -> str:
        return tables.folder


def unhandled(tables: Tables) -> list[Unhandled]:
    """The types that wait for a consumer, and those of a subscription that wait for its key function."""
    waiting = ((row.type, row.subscription) for row in tables.queue.values() if row.state == "unhandled")
    return [Unhandled(kind, number) for kind, number in dict.fromkeys(waiting) if kind is not None]


def known(tables: Tables, seq: int) -> Known:
    """What is known of a message."""
    row, result = tables.ledger[seq], tables.results.get(seq)
    value = payload.decode_text(result) if result else None
    return Known(seq, row.hash, row.type_hash, tables.is_finished(seq), value, tables.since(row.received_at))


def quarantine(tables: Tables, mismatch: Mismatch) -> Decided | None:
    """Keep a mismatch; None where the message whose id it has is gone."""
    if mismatch["seq"] not in tables.ledger:
        return None
    same = ("seq", "hash", "type_hash")
    for number, case in tables.cases.items():
        if all(case.mismatch[name] == mismatch[name] for name in same):  # type: ignore[literal-required] # as its keys
            tables.cases[number] = case._replace(copies=case.copies + 1, last_at=tables.now)
            accepted = None if case.accepted not in tables.ledger else known(tables, case.accepted or 0)
            return Decided(case.resolution, accepted)
    due: Mismatch = {**mismatch, "due_at": tables.due(mismatch), "due_in": None}
    tables.cases[tables.number()] = CaseState(due, 1, tables.now, tables.now)
    return Decided(None, None)


def keep_revision(tables: Tables, mismatch: Mismatch) -> None:
    """Remember a body as the message's own: whatever has it is a copy. What was decided about it stays."""
    quarantine(tables, mismatch)
    same = ("seq", "hash", "type_hash")
    for number, case in tables.cases.items():
        if all(case.mismatch[name] == mismatch[name] for name in same):  # type: ignore[literal-required] # as its keys
            decided = case.resolution or "revision"
            tables.cases[number] = case._replace(copies=case.copies - 1, resolution=decided)


def _pause_of(tables: Tables, order: PauseOrder) -> PauseRow | None:
    """The pause that goes on."""
    of_it = (one for one in tables.pauses if (one.kind, one.name) == (order.kind, order.name))
    return next((one for one in of_it if one.ended_at is None), None)


def latest_sources(tables: Tables) -> dict[str, float]:
    """The source that may redeliver longest."""
    return dict(sorted(tables.windows.items(), key=lambda one: (-one[1], one[0]))[:1])


def blob_of(row: NewRow) -> str | None:
    """The blob that a row refers to."""
    reference = split(row["headers"])[1]
    return None if reference is None else reference.name


def _stored(rows: Sequence[NewRow], answers: Sequence[Stored | None]) -> dict[int, Stored]:
    return {row["ordinal"]: one for row, one in zip(rows, answers, strict=True) if one is not None}


def _unplaced(tables: Tables, row: NewRow) -> int | None:
    """The first message of an id that came before its type had a consumer, whichever service stored it."""
    for waiting in tables.queue.values():
        one = tables.ledger[waiting.seq]
        same = (one.source, one.stored_id) == (row["source"], row["stored_id"])
        if same and (waiting.state, waiting.subscription, waiting.type) == ("unhandled", None, row["type"]):
            return waiting.seq
    return None


def _subscribed(tables: Tables, consumer: str, kind: str | None) -> list[Subscribed]:
    found = (one for one in tables.subscriptions.values() if one.consumer == consumer and kind in (None, one.type))
    return sorted(
        Subscribed(one.type, sum(row.subscription == one.id for row in tables.queue.values()), one.retired, one.id)
        for one in found
    )
