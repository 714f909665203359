"""Finishing and settling what was claimed, and processing inline: where effects and "done" become one change."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from onceward.errors import GuardFailed, StoreConflict
from onceward.flow import ROLLBACK, Flow
from onceward.stores.moves.inline import Applied, BeginDirect, Begun, FinishDirect, Placed, Requeue, StoreClaimed
from onceward.stores.moves.ledger import NewRow, Stored
from onceward.stores.moves.queue import AttemptRow, Finish, Finished, Hasten, Postpone, Relocate, Settle
from onceward.testing.memory.claims import take, unclaim, unplaced_of
from onceward.testing.memory.recorder import Recorded
from onceward.testing.memory.sessions import Apply, End, Memory, Open, Record, Savepoint, Undo, move
from onceward.testing.memory.tables import AttemptState, QueueRow, RunRow, Tables

Turn = Literal["now", "later", "stale"]


class Queue:
    """What workers do to messages that they have claimed."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    # The handler's transaction

    def begin(self, seconds: float, fence: str, *, savepoint: bool) -> Flow[None]:  # noqa: ARG002 - it holds nothing open
        yield (Open(), Savepoint()) if savepoint else Open()

    def savepoint(self) -> Flow[None]:
        yield Savepoint()

    def rollback_to_savepoint(self) -> Flow[None]:
        yield Undo()

    def finish(self, finish: Finish) -> Flow[Finished]:
        return (yield End(lambda tables: self._finish(tables, finish)))  # type: ignore[no-any-return] # as performed

    def _finish(self, tables: Tables, finish: Finish) -> Finished:
        rows = [_claimed(tables, seq, finish.worker, finish.token) for seq in finish.seqs]
        tables.advance(finish.applied)
        outgoing = any(row.outgoing for row in rows)
        run = RunRow(finish.worker, finish.code_version, tables.now, tuple(finish.seqs), outgoing)
        tables.runs[tables.number()] = run
        for seq in finish.seqs:
            del tables.queue[seq]
        tables.results.update(finish.results)
        for row in finish.outgoing:
            tables.store(row, outgoing=True)
        _forget_bodies(tables, *finish.forget_bodies)
        for seq, reason in finish.skipped:
            tables.say("skip", seq, "onceward", reason)
        for failure in finish.failures:
            _claimed(tables, failure.seq, finish.worker, finish.token)
            _settle(tables, failure)
        unclaim(tables, finish.worker, finish.token, finish.given_back)
        promoted = tables.promote(finish.keys)
        following = take(tables, finish.then, self._memory.keys) if finish.then is not None else None
        return Finished(following, promoted)

    # Without the effects of a handler

    @move
    def settle(self, tables: Tables, settle: Settle) -> bool:
        row = tables.queue.get(settle.seq)
        if row is None or not row.carries(settle.worker, settle.token):
            return False
        if settle.leaves_key is not None:
            tables.advance([settle.seq])
        _settle(tables, settle)
        tables.promote([settle.leaves_key])
        if settle.interrupted is not None:
            tables.say("interrupt", *settle.interrupted)
        return True

    @move
    def postpone(self, tables: Tables, postpone: Postpone) -> float | None:
        row = tables.queue.get(postpone.seq)
        most = float("inf") if postpone.most is None else postpone.most
        if row is None or not row.carries(postpone.worker, postpone.token) or row.postponed >= most:
            return None
        seconds: float = min(postpone.delay * 2 ** min(row.postponed, 20), postpone.longest)
        times = row.postponed + 1
        tables.queue[row.seq] = row.unclaimed(state="retry", postponed=times, due_at=tables.after(seconds))
        return seconds

    @move
    def put_off(self, tables: Tables, worker: int, token: int, seqs: Sequence[int], seconds: float) -> None:
        for row in [tables.queue[seq] for seq in seqs if seq in tables.queue]:
            if row.carries(worker, token):
                tables.queue[row.seq] = row.unclaimed(state="retry", due_at=tables.after(seconds))

    @move
    def relocate(self, tables: Tables, relocate: Relocate) -> bool:
        row = tables.queue.get(relocate.seq)
        if row is None or not row.carries(relocate.worker, relocate.token):
            return False
        place = row.place if relocate.sequence is None else relocate.sequence
        tables.queue[row.seq] = row.unclaimed(key_hash=relocate.key_hash, sequence=relocate.sequence, place=place)
        moved: NewRow = {**tables.bodies[row.seq], "key": relocate.key, "aggregate": relocate.aggregate}
        tables.bodies[row.seq] = {**moved, "key_from": "worker"}
        tables.promote([relocate.leaves, relocate.key_hash])
        tables.say("move", row.seq, "onceward", relocate.reason)
        return True

    @move
    def hasten(self, tables: Tables, hasten: Hasten) -> int:
        wanted = (hasten.destination is not None, hasten.destination)
        rows = [
            row
            for row in tables.queue.values()
            if row.status(tables.now) == "retrying"
            and row.isolation == 0
            and (row.outgoing, row.destination) == wanted
            and row.subscription in hasten.subscriptions
            and (last := tables.last_attempt(row.seq)) is not None
            and not last.row["error"].startswith("Retry:")
        ]
        rows = sorted(rows, key=lambda row: row.due_at or 0)[: hasten.limit]
        tables.queue.update({row.seq: row._replace(due_at=tables.now) for row in rows})
        return len(rows)


class Inline:
    """What a process does that handles messages as they come.

    Messages are not stored before their handlers have run: that is recorded, as what these write is. Of two copies that
    run at the same time one is stored, and the other finds that it is known and goes with everything it wrote.
    """

    def begin_direct(self, begin: BeginDirect) -> Flow[Begun]:
        keyed = [row for row in begin.rows if row["key_hash"] is not None and row["ordinal"] in begin.runs]
        held = yield Open([row["key_hash"] for row in keyed if row["key_hash"] is not None])
        begun: Begun = yield Apply(lambda tables: _begun(tables, begin, keyed, held))
        if not begun.stored:
            yield ROLLBACK
            return begun
        rows = {row["ordinal"]: row for row in begin.rows}
        for ordinal, (seq, _) in begun.stored.items():
            received = partial(_received, row=rows[ordinal], seq=seq)
            yield Record(Recorded(f"receive {rows[ordinal]['id']!r}", received))
        if begin.savepoint:
            yield Savepoint()
        return begun

    def finish_direct(self, finish: FinishDirect) -> Flow[None]:
        yield End(lambda tables: _finish_direct(tables, finish))

    @move
    def requeue_own(self, tables: Tables, messages: Sequence[Requeue]) -> dict[int, int]:  # noqa: ARG002
        return {}  # no handler can commit on its own: what it writes is applied with "done"

    @move
    def store_claimed(self, tables: Tables, claimed: StoreClaimed) -> Placed:
        row = claimed.row
        unkeyed = row["key_hash"] is None and not claimed.keyless
        ours = unkeyed or (not claimed.after_crash and _turn(tables, row, keyless=claimed.keyless) == "now")
        if not ours:
            return Placed(claimed=False, stored=tables.store(row, claimed.catalog))
        if claimed.worker not in tables.workers:
            return Placed(claimed=True, stored=None)
        claim = {"worker": claimed.worker, "token": claimed.token, "isolation": claimed.isolation}
        return Placed(claimed=True, stored=tables.store(row, claimed.catalog, **claim))


def add_attempt(tables: Tables, attempt: AttemptRow) -> None:
    """Add a failed attempt to the history of its message."""
    tables.attempts[tables.number()] = AttemptState(attempt, tables.now)


def _claimed(tables: Tables, seq: int, worker: int, token: int) -> QueueRow:
    """The guard of every finish: the row still carries the claim."""
    row = tables.queue.get(seq)
    if row is None or not row.carries(worker, token):
        raise GuardFailed(f"message {seq} is not claimed by worker {worker} any more")
    return row


def _settle(tables: Tables, settle: Settle) -> None:
    row = tables.queue[settle.seq]
    tables.queue[settle.seq] = row.unclaimed(
        state=settle.state,
        due_at=tables.after(settle.delay),
        attempts=row.attempts + 1,
        isolation=row.isolation if row.crashes else 0,
        key_hash=row.key_hash if settle.leaves_key is None else None,
    )
    add_attempt(tables, settle.attempt)


def _forget_bodies(tables: Tables, *seqs: int) -> None:
    for seq in seqs:
        tables.bodies[seq] = {**tables.bodies[seq], "body": None}  # type: ignore[typeddict-item] # forgotten


def _turn(tables: Tables, row: NewRow, *, keyless: bool) -> Turn:
    """Whether it is this message's turn within its key."""
    if row["key_hash"] is None:
        return "later" if keyless else "now"
    if tables.in_key(row["key_hash"]) or any(unplaced_of(tables, row["consumer"])):
        return "later"
    if row["sequence"] is None:
        return "now"
    wanted = tables.progress.get((row["consumer"], row["aggregate"] or "", row["key"] or ""), 0) + 1
    if row["sequence"] < wanted:
        return "stale"
    return "now" if row["sequence"] == wanted else "later"


def _begun(tables: Tables, begin: BeginDirect, keyed: Sequence[NewRow], held: set[int]) -> Begun:
    if begin.catalog != tables.version:
        return Begun({})
    fresh = [row for row in begin.rows if (row["consumer"], row["source"], row["stored_id"]) not in tables.ids]
    stored = {row["ordinal"]: Stored(tables.number(), tables.now) for row in fresh}
    busy = {
        key
        for row in keyed
        if (key := row["key_hash"]) is not None
        and (key not in held or tables.in_key(key) or any(unplaced_of(tables, row["consumer"])))
    }
    counted = [(row["consumer"], row["aggregate"] or "", row["key"] or "") for row in keyed]
    return Begun(stored, busy, {key: tables.progress[key] for key in counted if key in tables.progress})


def _received(tables: Tables, row: NewRow, seq: int) -> None:
    if tables.accept(row, seq=seq) is None:
        raise StoreConflict(f"message {row['id']!r} was stored while a copy of it was processed")


def _finish_direct(tables: Tables, finish: FinishDirect) -> None:
    for seq, reason in finish.skipped:
        tables.say("skip", seq, "onceward", reason)
    for applied in finish.applied:
        _apply(tables, applied)
    for row in finish.outgoing:
        tables.store(row, outgoing=True)
    _forget_bodies(tables, *finish.forget_bodies)
    tables.results.update(finish.results)
    for one in finish.queued:
        where = (one["subscription"], one["key_hash"], one["place"], one["sequence"])
        state = one["state"] if one["unplaced"] is None else "unhandled"
        due = None if one["after"] is None else tables.now + one["after"]
        queued = QueueRow(one["seq"], *where, outgoing=False, destination=None, state=state, due_at=due)
        tables.queue[one["seq"]] = queued._replace(attempts=one["attempts"], type=one["unplaced"])
    for attempt in finish.attempts:
        add_attempt(tables, attempt)
    for key, effect in list(tables.effects.items()):
        if effect.seq in finish.effects:
            tables.effects[key] = effect._replace(seq=finish.effects[effect.seq])
    tables.promote(finish.leaves)
    tables.keep(finish.marks)
    if finish.seqs:
        run = RunRow(finish.worker, finish.code_version, tables.now, tuple(finish.seqs), outgoing=False)
        tables.runs[tables.number()] = run


def _apply(tables: Tables, applied: Applied) -> None:
    keys = applied.consumer, applied.aggregate, applied.key or ""
    tables.progress[keys] = max(tables.progress.get(keys, 0), applied.sequence)
