"""Membership, take-over of the dead, and fan-out of messages that came before their handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onceward.domain import identity
from onceward.stores.moves.fan_out import FannedOut, FanOut, Placement, UnhandledRow
from onceward.stores.moves.ledger import NewRow
from onceward.stores.moves.membership import Charge, Crash, Heartbeat, Member, NewWorker
from onceward.testing.memory.catalog import quarantine, unhandled
from onceward.testing.memory.queue import add_attempt
from onceward.testing.memory.sessions import move
from onceward.testing.memory.tables import QueueRow, Tables, WorkerState

APART, ALONE = 2, 1
"""Levels at which isolated messages run one by one, and with nothing beside them in the process."""


class Membership:
    """What processes do."""

    @move
    def register(self, tables: Tables, worker: NewWorker, cause: Callable[[Member], str], charge: Charge) -> bool:
        for member in _named(tables, worker.process):
            _take_over(tables, member, cause(member), charge)
        until = tables.now + int(worker.lease * 1_000_000)
        tables.workers[worker.worker] = WorkerState(worker, tables.now, until, worker.inline)
        return True

    @move
    def heartbeat(self, tables: Tables, heartbeat: Heartbeat) -> bool:
        known = tables.workers.get(heartbeat.worker)
        if known is None or known.new.process != heartbeat.process:
            return False
        until, inline = tables.now + int(heartbeat.lease * 1_000_000), known.inline or heartbeat.inline
        now = known._replace(alive_until=until, inline=inline, circuits=heartbeat.circuits)
        tables.workers[heartbeat.worker] = now
        return True

    @move
    def members_named(self, tables: Tables, process: str) -> list[Member]:
        return _named(tables, process)

    @move
    def take_over_lapsed(self, tables: Tables, worker: int, cause: Callable[[Member], str], charge: Charge) -> int:
        lapsed = [
            _member(number, one)
            for number, one in tables.workers.items()
            if one.alive_until < tables.now and number != worker
        ]
        for member in lapsed:
            _take_over(tables, member, cause(member), charge)
        return len(lapsed)

    @move
    def take_over_process(self, tables: Tables, process: str, cause: str, charge: Charge) -> int:
        dead = _named(tables, process)
        for member in dead:
            _take_over(tables, member, cause, charge)
        return len(dead)

    @move
    def deregister(self, tables: Tables, worker: int) -> None:
        for row in _held(tables, worker):
            tables.queue[row.seq] = row.unclaimed()
        tables.workers.pop(worker, None)

    @move
    def tokens(self, tables: Tables, worker: int) -> set[int]:
        return {row.token for row in _held(tables, worker) if row.token is not None}


class FanOuts:
    """Places messages that waited for their consumers."""

    @move
    def fan_out(self, tables: Tables, fan_out: FanOut) -> FannedOut:
        waiting = unhandled(tables)
        wanted = fan_out.wanted(waiting)
        outdated = bool(waiting) and fan_out.catalog != tables.version
        if outdated or not (wanted.types or wanted.subscriptions):
            return FannedOut(waiting=len(waiting), outdated=outdated)
        rows = [row for row in tables.queue.values() if row.state == "unhandled" and row.seq not in fan_out.passed]
        found = sorted(row for row in rows if _is_wanted(row, wanted.types, wanted.subscriptions))[: fan_out.limit]
        names = {number: name for name, number in tables.names.items()}
        for row in found:
            placement = fan_out.place(_unhandled(tables, row), names)
            _place(tables, row, placement)
            tables.promote(placement.keys)
        seqs = [row.seq for row in found]
        return FannedOut(seqs, seqs, waiting=len(waiting), at_end=len(found) < fan_out.limit)


def _member(number: int, state: WorkerState) -> Member:
    return Member(number, state.inline, state.new.pid, state.new.host)


def _named(tables: Tables, process: str) -> list[Member]:
    """Under a name, and those that registered again after they had been declared dead."""
    return [
        _member(number, one)
        for number, one in tables.workers.items()
        if one.new.process == process or one.new.process.startswith(f"{process}#")
    ]


def _held(tables: Tables, worker: int) -> list[QueueRow]:
    return sorted(row for row in tables.queue.values() if row.worker == worker and row.token is not None)


def _take_over(tables: Tables, member: Member, cause: str, charge: Charge) -> None:
    """Claims off and the worker gone, in one change; a crash is charged to what was the only one that it held."""
    held = _held(tables, member.worker)
    first_level = max(1, [row.isolation for row in held].count(0) // 2) + 1
    for row in held:
        alone = len(held) == 1
        crashes, level = row.crashes + alone, _level(row.isolation, first_level, alone=alone)
        spent = crashes >= charge.limit
        state, due = ("dead", None) if spent else (row.state, row.due_at)
        tables.queue[row.seq] = row.unclaimed(isolation=level, crashes=crashes, state=state, due_at=due)
        crash = Crash(row.seq, row.attempts, row.crashes, member.worker, cause, len(held), level)
        add_attempt(tables, charge.attempt(crash))
        subscription = tables.subscriptions[row.subscription or 0]
        if spent and subscription.on_dead == "continue":
            tables.leave_key(row.seq)
    del tables.workers[member.worker]
    if member.inline:  # perhaps a message without a claim was the cause: store first for a while
        tables.crashed_at = tables.now
        tables.touch()


def _level(before: int, first: int, *, alone: bool) -> int:
    if alone or before in (ALONE, APART):
        return ALONE
    return APART if before else first


def _is_wanted(row: QueueRow, types: Sequence[str], subscriptions: Sequence[int]) -> bool:
    return row.type in types if row.subscription is None else row.subscription in subscriptions


def _unhandled(tables: Tables, row: QueueRow) -> UnhandledRow:
    body, known = tables.bodies[row.seq], tables.ledger[row.seq]
    return UnhandledRow(
        seq=row.seq,
        source=body["source"],
        id=body["id"],
        type=body["type"],
        version=body["version"],
        key=body["key"],
        headers=body["headers"],
        body=body["body"],
        consumer=known.consumer,
        stored_id=known.stored_id,
        hash=known.hash,
        place=row.place,
        subscription=row.subscription,
        position=body["position"],
        key_hash=row.key_hash,
        due_at=body["due_at"],
    )


def _place(tables: Tables, row: QueueRow, placement: Placement) -> None:
    """Give every consumer its row."""
    heirs = [_heir(tables, placement, copy) for copy in placement.copies]
    adopted = placement.adoption
    if adopted is None:
        _hand_on(tables, row.seq, heirs[0])
        return
    state = "unhandled" if adopted.unplaced is not None else "ready" if adopted.due_at is None else "scheduled"
    tables.queue[row.seq] = row._replace(
        state=state,
        type=adopted.unplaced,
        subscription=adopted.subscription,
        key_hash=adopted.key_hash,
        sequence=adopted.sequence,
        place=row.place if adopted.place is None else adopted.place,
        due_at=adopted.due_at if state == "scheduled" else None,
        postponed=0,
    )
    tables.bodies[row.seq] = {**tables.bodies[row.seq], "key": adopted.key, "aggregate": adopted.aggregate}


def _heir(tables: Tables, placement: Placement, copy: NewRow) -> int:
    """The row of another consumer: a new one, or the one that it has."""
    stored = tables.store(copy)
    if stored is not None:
        return stored.seq
    seq = tables.ids[copy["consumer"], copy["source"], copy["stored_id"]]
    known, mismatch, row = tables.ledger[seq], placement.mismatch, tables.queue.get(seq)
    if known.hash == identity.UNKNOWN_HASH:  # imported: a copy, whatever its bytes are
        return seq
    if (known.hash, known.type_hash) != (mismatch["hash"], mismatch["type_hash"]):
        quarantine(tables, {**mismatch, "seq": seq})
    elif row is not None and row.state == "unhandled":
        # Another service has it too, and it may have come there later.
        since = min(row.seq if row.sequence is None else row.sequence, placement.seq)
        tables.queue[seq] = row._replace(place=min(row.place, placement.place), sequence=since)
    return seq


def _hand_on(tables: Tables, seq: int, heir: int) -> None:
    """The service's own row goes; its copies, cases and audit lines belong to the row that replaces it."""
    if copies := tables.copies.pop(seq, None):
        known = tables.copies.get(heir, copies._replace(copies=0))
        tables.copies[heir] = known._replace(copies=known.copies + copies.copies, first_at=copies.first_at)
    for number, case in list(tables.cases.items()):
        accepted = heir if case.accepted == seq else case.accepted
        its = heir if case.mismatch["seq"] == seq else case.mismatch["seq"]
        tables.cases[number] = case._replace(mismatch={**case.mismatch, "seq": its}, accepted=accepted)
    for number, line in list(tables.audit.items()):
        if line.seq == seq:
            tables.audit[number] = line._replace(seq=heir)
    del tables.ids[tables.ledger.pop(seq).identity], tables.bodies[seq], tables.queue[seq]
