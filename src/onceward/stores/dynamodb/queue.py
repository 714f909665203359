"""Finishing and settling what was claimed: the effects of handlers and "done" are one transaction."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from onceward.domain import payload
from onceward.errors import ContractViolation
from onceward.flow import ROLLBACK, Flow
from onceward.stores.dynamodb.claims import take, unclaim
from onceward.stores.dynamodb.ledger import LARGEST, accept, counted, identity_of, refuse_large
from onceward.stores.dynamodb.row import Row
from onceward.stores.dynamodb.rows import Table
from onceward.stores.dynamodb.unit import Shared, repeated
from onceward.stores.moves.ledger import NewRow
from onceward.stores.moves.queue import Finish, Finished, Hasten, Postpone, Relocate, Settle
from onceward.stores.recording import Open, Savepoint, Undo


class Queue:
    """What workers do to messages that they have claimed."""

    def __init__(self, base: Shared) -> None:
        self._base = base

    # The handler's transaction

    def begin(self, seconds: float, fence: str, *, savepoint: bool) -> Flow[None]:  # noqa: ARG002 - it holds nothing open
        yield (Open(), Savepoint()) if savepoint else Open()

    def savepoint(self) -> Flow[None]:
        yield Savepoint()

    def rollback_to_savepoint(self) -> Flow[None]:
        yield Undo()

    def finish(self, finish: Finish) -> Flow[Finished]:
        for row in finish.outgoing:
            refuse_large(row["id"], row["body"], row["headers"])
        for result in finish.results.values():
            refuse_large_result(result)
        numbers = yield from counted(self._base, finish.outgoing)
        tries = itertools.count()

        def work() -> Flow[None]:
            if next(tries) and (yield from self._is_finished(finish)):
                yield ROLLBACK  # nothing more is to be written
            else:
                yield from self._finish(finish, numbers)

        yield from repeated(work)
        for seq in finish.seqs:
            self._base.places.pop(seq, None)
        return Finished((yield from take(self._base, finish.then)) if finish.then is not None else None)

    def _is_finished(self, finish: Finish) -> Flow[bool]:
        """Whether a try has done it whose answer was lost, and whose token DynamoDB has forgotten meanwhile."""
        table = Table(self._base)
        done = yield from table.get(*(table.layout.done(seq) for seq in finish.seqs))
        return bool(done) and all(one is not None and one.get("worker") == finish.worker for one in done)

    def _finish(self, finish: Finish, numbers: dict[int, int]) -> Flow[None]:
        table = Table(self._base)
        rows = {}
        for seq in finish.seqs:
            rows[seq] = yield from table.claimed(seq, finish.worker, finish.token)
        failed = {}
        for failure in finish.failures:
            failed[failure.seq] = yield from table.claimed(failure.seq, finish.worker, finish.token)
        yield from table.advance({**rows, **failed}[seq] for seq in finish.applied)
        reasons = dict(finish.skipped)
        sent = yield from outgoing(table, finish.outgoing, numbers)
        for seq, row in rows.items():
            how = "skip" if seq in reasons else "done"
            about = {"worker": finish.worker, "code_version": finish.code_version}
            table.is_done(row, how=how, result=finish.results.get(seq), sent=sent.get(seq), **about)
            if seq in reasons:
                table.say("skip", seq, "onceward", reasons[seq])
            table.take_out(row)
        yield from forget_bodies(table, [rows[seq] for seq in finish.forget_bodies])
        for failure in finish.failures:
            settled(table, failed[failure.seq], failure)
        yield from unclaim(table, finish.worker, finish.token, finish.given_back)
        yield from table.save()
        yield from table.commit(ends_tx=True)

    # Without the effects of a handler

    def settle(self, settle: Settle) -> Flow[bool]:
        def work() -> Flow[bool]:
            table = Table(self._base)
            row = yield from table.row(settle.seq)
            if row is None or not row.carries(settle.worker, settle.token):
                return False
            if settle.leaves_key is not None:
                yield from table.advance([row])
            settled(table, row, settle)
            if settle.interrupted is not None:
                table.say("interrupt", *settle.interrupted)
            yield from table.save()
            yield from table.commit()
            return True

        return (yield from repeated(work))

    def postpone(self, postpone: Postpone) -> Flow[float | None]:
        def work() -> Flow[float | None]:
            table = Table(self._base)
            row = yield from table.row(postpone.seq)
            most = float("inf") if postpone.most is None else postpone.most
            if row is None or not row.carries(postpone.worker, postpone.token) or row.postponed >= most:
                return None
            seconds: float = min(postpone.delay * 2 ** min(row.postponed, 20), postpone.longest)
            due = table.now + int(seconds * 1_000_000)
            row.unclaim(state="retry", postponed=row.postponed + 1, due_at=due)
            yield from table.save()
            yield from table.commit()
            return seconds

        return (yield from repeated(work))

    def put_off(self, worker: int, token: int, seqs: Sequence[int], seconds: float) -> Flow[None]:
        def work() -> Flow[None]:
            table = Table(self._base)
            for row in (yield from table.find(seqs)).values():
                if row.carries(worker, token):
                    row.unclaim(state="retry", due_at=table.now + int(seconds * 1_000_000))
            yield from table.save()
            yield from table.commit()

        yield from repeated(work)

    def relocate(self, relocate: Relocate) -> Flow[bool]:
        def work() -> Flow[bool]:
            table = Table(self._base)
            row = yield from table.row(relocate.seq)
            if row is None or not row.carries(relocate.worker, relocate.token):
                return False
            place = row.place if relocate.sequence is None else relocate.sequence
            row.unclaim(key_hash=relocate.key_hash, sequence=relocate.sequence, place=place)
            row.change(key=relocate.key, aggregate=relocate.aggregate)
            (item,) = yield from table.get(row.ledger)
            moved = {"key": relocate.key, "aggregate": relocate.aggregate, "key_from": "worker"}
            table.set(row.ledger, {**(item or {}), **moved})
            table.say("move", row.seq, "onceward", relocate.reason)
            yield from table.save()
            yield from table.commit()
            return True

        return (yield from repeated(work))

    def hasten(self, hasten: Hasten) -> Flow[int]:
        table = Table(self._base)
        rows = [row for row in (yield from backing_off(table)) if _is_hastened(row, hasten, table.now)]
        made = 0
        for row in sorted(rows, key=lambda row: row.due_at or 0)[: hasten.limit]:
            made += yield from repeated(lambda row=row: self._hasten(row.seq, hasten))  # type: ignore[misc] # a call
        return made

    def _hasten(self, seq: int, hasten: Hasten) -> Flow[int]:
        table = Table(self._base)
        row = yield from table.row(seq)
        if row is None or not _is_hastened(row, hasten, table.now):
            return 0
        row.due_at = table.now
        yield from table.save()
        yield from table.commit()
        return 1


def _is_hastened(row: Row, hasten: Hasten, now: int) -> bool:
    return (
        row.state == "retry"
        and row.token is None
        and (row.due_at or 0) > now
        and row.isolation == 0
        and (row.outgoing, row.destination) == (hasten.destination is not None, hasten.destination)
        and row.subscription in hasten.subscriptions
        and row.error is not None
        and not row.error.startswith("Retry:")
    )


def backing_off(table: Table) -> Flow[list[Row]]:
    """The messages that wait for their time."""
    for shard in range(table.layout.shards):
        pk = table.layout.at("Q", shard).pk
        for item in (yield from table.query(pk, first="t#", below="t$")):
            yield from table.adopt(item)
        for item in (yield from table.query(pk, first="k", below="l", only=lambda one: "worker" not in one)):
            yield from table.of_key(item["key_hash"], limit=1)
    return [row for row in table.rows.values() if row.state == "retry"]


def refuse_large_result(result: str | None) -> None:
    """What no item can hold."""
    if result is not None and len(result) > LARGEST:
        raise ContractViolation(
            f"the handler returned {type(payload.decode_text(result)).__name__} of {len(result)} characters, and "
            f"DynamoDB keeps results of at most {LARGEST}; return less, or write it through tx and return where it is"
        )


def outgoing(table: Table, rows: Sequence[NewRow], numbers: dict[int, int]) -> Flow[dict[int, list[list[object]]]]:
    """Store what handlers sent and that is not known; and what each message has sent."""
    there = yield from table.get(*(identity_of(table, row) for row in rows))
    sent: dict[int, list[list[object]]] = {}
    for row, known in zip(rows, there, strict=True):
        if known is None:
            stored = yield from accept(table, row, numbers.get(row["ordinal"]), outgoing=True)
            sent.setdefault(row["cause"] or 0, []).append([stored.seq, row["id"], row["type"], row["destination"]])
    return sent


def settled(table: Table, row: Row, settle: Settle) -> None:
    """Charge a message with a failed attempt."""
    row.unclaim(
        state=settle.state,
        due_at=None if settle.delay is None else table.now + int(settle.delay * 1_000_000),
        attempts=row.attempts + 1,
        isolation=row.isolation if row.crashes else 0,
        key_hash=row.key_hash if settle.leaves_key is None else None,
    )
    table.add_attempt(row, settle.attempt)


def forget_bodies(table: Table, rows: Sequence[Row]) -> Flow[None]:
    """Remove the bodies of messages that are done."""
    items = yield from table.get(*(row.ledger for row in rows))
    for row, item in zip(rows, items, strict=True):
        if item is not None:
            table.set(row.ledger, {**item, "body": None, "forgotten": True})
