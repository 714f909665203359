"""Reports: what operators see. They change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Literal

from onceward.message import moment
from onceward.registry import OUTBOX
from onceward.stores.moves.messages import (
    Ahead,
    Listing,
    Row,
    StoredEffect,
    StoredMessage,
)
from onceward.stores.moves.operations import Case
from onceward.stores.moves.reports import (
    Apart,
    AuditLine,
    BlockedKey,
    DeadGroup,
    Failing,
    Halted,
    Hit,
    Keyless,
    Minute,
    Refused,
    Running,
    SourceRow,
    Stats,
    Storage,
    StoredPoll,
    TableSize,
    Unserved,
    WorkerRow,
)
from onceward.testing.memory.messages import effects_of, listed, maybe, message_of
from onceward.testing.memory.operations import open_cases
from onceward.testing.memory.sessions import move
from onceward.testing.memory.tables import QueueRow, Tables

MINUTE = 60_000_000
COUNTED = ("ledger", "bodies", "queue", "runs", "results", "attempts", "copies", "cases", "effects", "audit")


class Reports:
    """What operators see."""

    # Messages

    @move
    def unfinished(self, tables: Tables, listing: Listing) -> list[Row]:
        return listed(tables, listing, [seq for seq, row in tables.queue.items() if row.outgoing == listing.outgoing])

    @move
    def finished(self, tables: Tables, listing: Listing) -> list[Row]:
        relay = tables.names.get(OUTBOX)
        kept = ((seq, row) for seq, row in tables.ledger.items() if seq not in tables.queue)
        return listed(tables, listing, [seq for seq, row in kept if (row.consumer == relay) == listing.outgoing])

    @move
    def message(self, tables: Tables, seq: int) -> StoredMessage | None:
        return message_of(tables, seq) if seq in tables.ledger else None

    @move
    def ahead(self, tables: Tables, seq: int) -> Ahead | None:
        row = tables.queue.get(seq)
        first = tables.of_key(row.key_hash)[0] if row is not None and row.key_hash is not None else row
        if row is None or first is None or first.seq == seq:
            return None
        return Ahead(first.seq, "running" if first.token is not None else first.state, tables.bodies[first.seq]["type"])

    @move
    def find(self, tables: Tables, source: str, consumer: str, *, from_id: bytes, below_id: bytes) -> list[int]:  # noqa: ARG002 - every row has one
        number = tables.names.get(source)
        return [seq for seq in _of_id(tables, from_id, below_id) if tables.ledger[seq].source == number]

    @move
    def find_anywhere(self, tables: Tables, limit: int, *, from_id: bytes, below_id: bytes) -> list[int]:
        return _of_id(tables, from_id, below_id)[:limit]

    @move
    def search(self, tables: Tables, text: str, newest: int, limit: int) -> list[Hit]:
        wanted = text.encode(errors="replace")
        bodies = [seq for seq in [*tables.bodies][-newest:] if wanted in (tables.bodies[seq]["body"] or b"")]
        found = {seq: Hit(seq, "payload") for seq in bodies}
        failures = [one.row for one in [*tables.attempts.values()][-newest:]]
        errors = [one["seq"] for one in failures if text in one["error"]]
        found |= {seq: Hit(seq, "error") for seq in errors}
        return [found[seq] for seq in sorted(found, reverse=True)[:limit]]

    @move
    def quarantined(self, tables: Tables, limit: int) -> list[Case]:
        return open_cases(tables)[:limit]

    @move
    def effects(self, tables: Tables, seq: int | None, limit: int) -> list[StoredEffect]:
        return effects_of(tables, seq)[:limit]

    # The inbox as a whole

    @move
    def stats(self, tables: Tables) -> Stats:
        return _stats(tables)

    @move
    def workers(self, tables: Tables) -> list[WorkerRow]:
        held = Counter(row.worker for row in tables.queue.values() if row.token is not None)
        return [
            WorkerRow(
                number,
                *(one.new.process, one.new.host, one.new.pid, one.new.code_version, one.inline),
                moment(one.started_at),
                -tables.since(one.alive_until),
                *(held[number], one.new.lanes, one.new.handles, one.circuits),
            )
            for number, one in tables.workers.items()
        ]

    @move
    def running(self, tables: Tables, limit: int) -> list[Running]:
        claimed = sorted(row for row in tables.queue.values() if row.token is not None)[:limit]
        return [
            Running(row.seq, row.worker or 0, *_what(tables, row), row.outgoing, row.attempts + 1) for row in claimed
        ]

    @move
    def dead_groups(self, tables: Tables, limit: int) -> list[DeadGroup]:
        groups: dict[tuple[str, str, str, bool], list[int]] = {}
        for row in sorted(row for row in tables.queue.values() if row.state == "dead"):
            kind, _, consumer = _what(tables, row)
            last = tables.last_attempt(row.seq)
            groups.setdefault((last.row["fingerprint"] if last else "", kind, consumer, row.outgoing), []).append(
                row.seq
            )
        found = []
        for which, seqs in groups.items():
            times = [moment(tables.ledger[seq].received_at) for seq in seqs]
            last = tables.last_attempt(seqs[-1])
            error = last.row["error"] if last else ""
            found.append(DeadGroup(*which, len(seqs), seqs[0], seqs[-1], min(times), max(times), error))
        return sorted(found, key=lambda group: (-group.messages, group.first_seq))[:limit]

    @move
    def blocked_keys(self, tables: Tables, limit: int) -> list[BlockedKey]:
        found = sorted(_blocked(tables), key=lambda one: (-one.behind, one.seq))
        return found[:limit]

    @move
    def failing(self, tables: Tables, times: int, held: float, halted: Halted) -> Failing:
        retries = [
            row
            for row in tables.queue.values()
            if row.state == "retry" and not halted.has(row.subscription, row.destination)
        ]
        keys = [row for row in retries if row.key_hash is not None and tables.in_key(row.key_hash)[-1] != row]
        since = tables.now - int(held * 1_000_000)
        old = {one.row["seq"] for one in tables.attempts.values() if one.at <= since}
        return Failing(sum(row.attempts >= times for row in retries), sum(row.seq in old for row in keys))

    @move
    def sources(self, tables: Tables, newest: int) -> list[SourceRow]:
        recent = [*tables.ledger.items()][-newest:]
        found = []
        for name, number in sorted(tables.names.items()):
            its = [(seq, row.received_at) for seq, row in recent if row.source == number]
            if its or name in tables.windows:
                late = timedelta(seconds=tables.windows[name]) if name in tables.windows else None
                copies = sum(tables.copies[seq].copies for seq, _ in its if seq in tables.copies)
                last = moment(max(at for _, at in its)) if its else None
                found.append(SourceRow(name, late, len(its), last, copies))
        return found

    @move
    def polls(self, tables: Tables) -> list[StoredPoll]:
        return [
            StoredPoll(
                tables.name(number),
                *(poll.state.cursor, poll.state.number, poll.token is not None, -tables.since(poll.due_at)),
                maybe(poll.ended_at),
                *(poll.state.failures, poll.error),
            )
            for number, poll in tables.polls.items()
        ]

    @move
    def storage(self, tables: Tables) -> Storage:
        sizes = tuple(TableSize(name, len(getattr(tables, name)), None) for name in COUNTED)
        first, body = next(iter(tables.ledger), None), next(iter(tables.bodies), None)
        since = [None if seq is None else moment(tables.ledger[seq].received_at) for seq in (first, body)]
        return Storage(sizes, since[0], since[1], maybe(tables.turns.get("prune")))

    @move
    def pruning_due(self, tables: Tables) -> datetime | None:
        return maybe(tables.turns.get("prune"))

    @move
    def audit(self, tables: Tables, before: int | None, limit: int) -> list[AuditLine]:
        lines = [(number, line) for number, line in tables.audit.items() if before is None or number < before]
        return [
            AuditLine(number, moment(line.at), line.actor, line.action, line.seq, line.reason)
            for number, line in reversed(lines[-limit:])
        ]

    @move
    def traffic(self, tables: Tables, minutes: int, newest: int) -> list[Minute]:
        relay = tables.names.get(OUTBOX)
        ledger, runs = [*tables.ledger.values()][-newest:], [*tables.runs.values()][-newest:]
        received = Counter(_ago(tables, row.received_at) for row in ledger if row.consumer != relay)
        done: Counter[int] = Counter()
        for run in runs:
            done[_ago(tables, run.finished_at)] += 0 if run.outgoing else len(run.seqs)
        failed = Counter(_ago(tables, one.at) for one in [*tables.attempts.values()][-newest:])
        return [Minute(ago, received[ago], done[ago], failed[ago]) for ago in range(minutes - 1, -1, -1)]

    # What can be wrong

    @move
    def unserved(self, tables: Tables) -> list[Unserved]:
        groups: dict[tuple[str, str, str | None], list[int]] = {}
        due = (row for row in tables.queue.values() if row.state != "retry" and row.status(tables.now) == "due")
        for row in sorted(due):
            subscription = tables.subscriptions[row.subscription or 0]
            groups.setdefault((subscription.type, subscription.consumer, row.destination), []).append(row.seq)
        return [
            Unserved(*which, len(seqs), tables.since(tables.since_due(seqs[0])))
            for which, seqs in sorted(groups.items(), key=str)
        ]

    @move
    def refused(self, tables: Tables) -> Refused:
        seqs = [row.seq for row in tables.queue.values() if row.state == "unhandled" and row.postponed]
        return Refused(len(seqs), min(seqs, default=None))

    @move
    def unreachable(self, tables: Tables) -> int:
        stuck = 0
        for row in tables.queue.values():
            key = [] if row.key_hash is None else tables.in_key(row.key_hash)
            moved = any(one.state != "waiting" or one.due_at is not None for one in key)
            stuck += (row.state == "waiting" and not moved) or (
                row.token is not None and row.worker not in tables.workers
            )
        return stuck

    @move
    def keyless(self, tables: Tables, newest: int) -> list[Keyless]:
        found: Counter[tuple[str, str, str | None]] = Counter()
        wanted = {(one.consumer_id, one.type): one for one in tables.subscriptions.values()}
        for seq in [*tables.ledger][-newest:]:
            body, row = tables.bodies.get(seq), tables.queue.get(seq)
            one = wanted.get((body["consumer"], body["type"])) if body and body["body"] is not None else None
            has_key = one is None or not (one.key_path is not None or one.key_function)
            if one is not None and body and not has_key and body["key"] is None and not (row and row.state == "dead"):
                found[one.type, one.consumer, one.key_path] += 1
        return [Keyless(*which, count) for which, count in sorted(found.items(), key=str)]

    @move
    def apart(self, tables: Tables) -> list[Apart]:
        return [Apart(*which) for which, is_apart in tables.apart.items() if is_apart]

    @move
    def debris(self, tables: Tables) -> list[str]:  # noqa: ARG002 - it goes with the process
        return []


def _stats(tables: Tables) -> Stats:
    rows = [(row, row.status(tables.now)) for row in tables.queue.values()]
    counts = Counter(status for row, status in rows if not row.outgoing)
    due = [row for row, status in rows if status == "due" and not row.outgoing]
    since = [tables.since_due(row.seq) if row.state == "ready" else row.due_at or 0 for row in due]
    done = [run for run in tables.runs.values() if not run.outgoing]
    skipped = sum(line.action == "skip" for line in tables.audit.values())
    outgoing = Counter(row.state == "dead" for row, status in rows if row.outgoing and status != "scheduled")
    return Stats(
        **{name: counts[name] for name in ("due", "waiting", "running", "retrying", "scheduled", "dead", "unhandled")},
        quarantined=len(open_cases(tables)),
        done=sum(len(run.seqs) for run in done) - skipped,
        discarded=sum(line.action == "discard" for line in tables.audit.values()),
        skipped=skipped,
        duplicates=sum(one.copies for one in tables.copies.values()),
        failures=sum(one.row["charged"] for one in tables.attempts.values()),
        workers=sum(one.alive_until >= tables.now for one in tables.workers.values()),
        oldest_due_seconds=tables.since(min(since, default=tables.now)),
        done_last_minute=sum(len(run.seqs) for run in done if run.finished_at > tables.now - MINUTE),
        outbox_unsent=outgoing[False],
        outbox_dead=outgoing[True],
        outbox_sent=sum(len(run.seqs) for run in tables.runs.values() if run.outgoing),
        polls_failing=sum(poll.state.failures > 0 for poll in tables.polls.values()),
    )


def _blocked(tables: Tables) -> Iterator[BlockedKey]:
    for row in tables.queue.values():
        if row.key_hash is None or row.state not in ("dead", "unhandled"):
            continue
        behind = [one for one in tables.in_key(row.key_hash) if one.order > row.order]
        if row.state == "dead" or any(one.state != "unhandled" for one in behind):
            kind, key, consumer = _what(tables, row)
            at, first = moment(tables.ledger[row.seq].received_at), behind[0].seq if behind else None
            state: Literal["dead", "unhandled"] = "dead" if row.state == "dead" else "unhandled"
            yield BlockedKey(row.seq, kind, key, consumer, row.outgoing, at, len(behind), first, state)


def _what(tables: Tables, row: QueueRow) -> tuple[str, str | None, str]:
    body = tables.bodies[row.seq]
    return body["type"], body["key"], tables.name(body["consumer"])


def _of_id(tables: Tables, from_id: bytes, below_id: bytes) -> list[int]:
    return [seq for seq, row in tables.ledger.items() if from_id <= row.stored_id < below_id]


def _ago(tables: Tables, at: int) -> int:
    return (tables.now - at) // MINUTE
