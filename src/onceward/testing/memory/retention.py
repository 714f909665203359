"""Retention: what is old goes, beside live traffic; personal data can be erased."""

from __future__ import annotations

from collections.abc import Sequence

from onceward.stores.moves.ledger import Mismatch
from onceward.stores.moves.operations import Order
from onceward.stores.moves.retention import Archivable, PruneBatch, PrunedBatch, StoredBody, StoredCase
from onceward.testing.memory.catalog import blob_of, latest_sources
from onceward.testing.memory.sessions import move
from onceward.testing.memory.tables import AttemptState, Tables


class Retention:
    """What keeps the tables small, and what erases."""

    @move
    def take_turn(self, tables: Tables, task: str, every: float) -> bool:
        if tables.turns.get(task, 0) > tables.now:
            return False
        tables.turns[task] = tables.now + int(every * 1_000_000)
        return True

    @move
    def give_turn(self, tables: Tables, task: str) -> None:
        tables.turns[task] = tables.now

    @move
    def latest_sources(self, tables: Tables) -> dict[str, float]:
        return latest_sources(tables)

    @move
    def rotate_partition(self, tables: Tables, seconds: float) -> None:
        """There are none: bodies go one by one."""

    @move
    def old_partitions(self, tables: Tables, keep: float) -> list[int]:  # noqa: ARG002 - as `rotate_partition`
        return []

    @move
    def drop_partition(self, tables: Tables, partition: int, lock_wait: float, *, archive_first: bool) -> bool:  # noqa: ARG002 - as above
        return False

    @move
    def prune_batch(self, tables: Tables, batch: PruneBatch) -> PrunedBatch:
        since = tables.now - int(batch.keep * 1_000_000)
        times = {
            "bodies": {seq: tables.ledger[seq].received_at for seq in tables.bodies},
            "messages": {seq: row.received_at for seq, row in tables.ledger.items()},
            "runs": {number: run.finished_at for number, run in tables.runs.items()},
        }[batch.what]
        looked_at = sorted(number for number in times if number > batch.after)[: batch.limit]
        old = [number for number in looked_at if times[number] < since]
        gone = [number for number in old if _remove(tables, batch, number, since)]
        at_end = len(looked_at) < batch.limit or not old
        return PrunedBatch(None if at_end else looked_at[-1], len(gone))

    @move
    def forget_effects(self, tables: Tables, keep: float) -> None:
        since, first = tables.now - int(keep * 1_000_000), min(tables.ledger, default=None)
        for key, one in list(tables.effects.items()):
            if one.done and (one.finished_at or 0) < since and (first is None or one.seq < first):
                del tables.effects[key]

    @move
    def bodies_after(self, tables: Tables, seq: int, limit: int) -> list[StoredBody]:
        found = sorted(number for number in tables.bodies if number > seq)[:limit]
        return [
            StoredBody(
                number,
                *(body["type"], tables.name(body["source"]), body["key"], body["headers"], body["body"]),
                _status(tables, number),
            )
            for number in found
            for body in [tables.bodies[number]]
        ]

    @move
    def cases_after(self, tables: Tables, case: int, limit: int) -> list[StoredCase]:
        found = sorted(number for number in tables.cases if number > case)[:limit]
        return [
            StoredCase(
                number,
                *(other["seq"], other["type"], tables.name(tables.ledger[other["seq"]].source)),
                *(other["key"], other["headers"], other["body"]),
                _status(tables, other["seq"]),
            )
            for number in found
            for other in [tables.cases[number].mismatch]
        ]

    @move
    def same_id(self, tables: Tables, source: str, from_id: bytes, below_id: bytes) -> list[int]:
        number = tables.names.get(source)
        named = {
            seq for seq, row in tables.ledger.items() if row.source == number and from_id <= row.stored_id < below_id
        }
        return sorted(named | {seq for seq, body in tables.bodies.items() if body["cause"] in named})

    @move
    def erase(self, tables: Tables, order: Order) -> list[str] | None:
        seq = order.seq
        if seq not in tables.ledger or seq in tables.queue:
            return None
        blob = blob_of(tables.bodies[seq]) if seq in tables.bodies else None
        if seq in tables.bodies:
            tables.bodies[seq] = {**tables.bodies[seq], "body": None, "headers": None, "key": None}  # type: ignore[typeddict-item] # erased
        tables.results.pop(seq, None)
        for number, (attempt, at) in list(tables.attempts.items()):
            if attempt["seq"] == seq:
                erased = {**attempt, "error": "(erased)", "traceback": None}
                tables.attempts[number] = AttemptState(erased, at)  # type: ignore[arg-type] # the same fields
        for key, one in list(tables.effects.items()):
            if one.seq == seq:
                tables.effects[key] = one._replace(result=None)
        for number, case in list(tables.cases.items()):
            if seq in (case.mismatch["seq"], case.accepted):
                other: Mismatch = {**case.mismatch, "body": b"", "headers": None, "key": None}
                tables.cases[number] = case._replace(mismatch=other, resolution=case.resolution or "keep-first")
        tables.say("erase", seq, order.actor, order.reason)
        return [] if blob is None else [blob]

    @move
    def archivable(self, tables: Tables, after: int, keep: float, limit: int) -> list[Archivable]:
        since = tables.now - int(keep * 1_000_000)
        old = (seq for seq in sorted(tables.bodies) if seq > after and tables.ledger[seq].received_at < since)
        return [_archivable(tables, seq) for seq in old if _is_settled(tables, seq)][:limit]

    @move
    def drop_bodies(self, tables: Tables, seqs: Sequence[int]) -> int:
        gone = [seq for seq in seqs if seq in tables.bodies and _is_settled(tables, seq)]
        for seq in gone:
            del tables.bodies[seq]
        return len(gone)


def _remove(tables: Tables, batch: PruneBatch, number: int, since: int) -> bool:
    """Remove one, if nothing speaks against it."""
    if batch.what == "runs":
        gone = not any(seq in tables.ledger for seq in tables.runs[number].seqs)
        if gone:
            del tables.runs[number]
        return gone
    if not _is_settled(tables, number):
        return False
    if batch.what == "bodies":
        del tables.bodies[number]
        return True
    return _forget(tables, number, since, archive_first=batch.archive_first)


def _is_settled(tables: Tables, seq: int) -> bool:
    """Nothing unfinished, dead or in an open mismatch."""
    cases = (case for case in tables.cases.values() if case.mismatch["seq"] == seq)
    return seq not in tables.queue and not any(case.resolution is None for case in cases)


def _forget(tables: Tables, seq: int, since: int, *, archive_first: bool) -> bool:
    """Forget a message and everything about it, but for lines about erasure."""
    run = tables.run_of(seq)
    keeps = (
        run is not None and run.finished_at >= since,
        any(line.seq == seq and line.at >= since for line in tables.audit.values()),
        archive_first and seq in tables.bodies,
        any(one.seq == seq and not one.done for one in tables.effects.values()),
        any(case.mismatch["seq"] == seq and case.accepted in tables.ledger for case in tables.cases.values()),
    )
    if any(keeps):
        return False
    del tables.ids[tables.ledger.pop(seq).identity]
    for kept in (tables.bodies, tables.results, tables.copies):
        kept.pop(seq, None)
    tables.attempts = {number: one for number, one in tables.attempts.items() if one.row["seq"] != seq}
    tables.cases = {number: one for number, one in tables.cases.items() if one.mismatch["seq"] != seq}
    tables.effects = {key: one for key, one in tables.effects.items() if one.seq != seq}
    tables.audit = {number: one for number, one in tables.audit.items() if one.seq != seq or one.action == "erase"}
    return True


def _archivable(tables: Tables, seq: int) -> Archivable:
    body, known = tables.bodies[seq], tables.ledger[seq]
    return Archivable(
        seq=seq,
        source=tables.name(known.source),
        consumer=tables.name(known.consumer),
        id=body["id"],
        type=body["type"],
        version=body["version"],
        key=body["key"],
        key_from=body["key_from"],
        position=body["position"],
        headers=body["headers"],
        body=body["body"],
        sha256=known.hash.hex(),
        destination=body["destination"],
        cause=body["cause"],
        received_at=known.received_at,
        result=tables.results.get(seq),
    )


def _status(tables: Tables, seq: int) -> str:
    if seq not in tables.queue:
        return "finished"
    row = tables.queue[seq]
    return "running" if row.token is not None else row.state
