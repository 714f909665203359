"""Reports: what operators see. They change nothing.

What is unfinished is read whole. Of what is finished the newest are looked at, so that a long history costs no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Literal

from onceward.flow import Flow
from onceward.message import moment
from onceward.registry import OUTBOX
from onceward.stores.dynamodb.catalog import everything, names_of, subscriptions_of
from onceward.stores.dynamodb.claims import held
from onceward.stores.dynamodb.effects import effect_at, effects_of
from onceward.stores.dynamodb.items import Item, Place, moment_of, numbered
from onceward.stores.dynamodb.messages import (
    effect_shown,
    first_of_keys,
    listed_finished,
    listed_unfinished,
    maybe,
    message_of,
)
from onceward.stores.dynamodb.operations import open_cases
from onceward.stores.dynamodb.row import Row
from onceward.stores.dynamodb.rows import Table, of_id
from onceward.stores.dynamodb.unit import Shared, Unit
from onceward.stores.moves import messages as told
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
    look_through,
)

MINUTE = 60_000_000
STATUSES = ("due", "waiting", "running", "retrying", "scheduled", "dead", "unhandled")
MOST = 10_000
"""Of what is finished so many are counted: the newest."""


class Reports:
    """What operators see."""

    def __init__(self, base: Shared) -> None:
        self._base = base

    # Messages

    def unfinished(self, listing: told.Listing) -> Flow[list[told.Row]]:
        table = Table(self._base)
        return (yield from listed_unfinished(table, listing, (yield from everything(table))))

    def finished(self, listing: told.Listing) -> Flow[list[told.Row]]:
        table = Table(self._base)
        found: list[told.Row] = []
        before = listing.before
        while len(found) < listing.limit:
            newest = yield from newest_done(table, 4 * listing.limit, before)
            wanted = [one for one in newest if bool(one.get("outgoing")) == listing.outgoing]
            found += yield from listed_finished(table, listing, wanted)
            if len(newest) < 4 * listing.limit:
                break
            before = newest[-1]["seq"]
        return found[: listing.limit]

    def message(self, seq: int) -> Flow[told.StoredMessage | None]:
        return (yield from message_of(Table(self._base), seq))

    def ahead(self, seq: int) -> Flow[told.Ahead | None]:
        table = Table(self._base)
        row = yield from table.row(seq)
        if row is None or row.stands_in is None:
            return None
        first = (yield from table.of_key(row.stands_in, limit=1))[0]
        if first.seq == seq or first.order > row.order:
            return None
        return told.Ahead(first.seq, "running" if first.token is not None else first.state, first.type)

    def find(self, source: str, consumer: str, *, from_id: bytes, below_id: bytes) -> Flow[list[int]]:  # noqa: ARG002 - every row has one
        unit = Unit(self._base)
        names = yield from names_of(unit)
        numbers = {name: number for number, name in names.items()}
        if source not in numbers:
            return []
        return (yield from of_id(unit, names, [numbers[source]], from_id, below_id))

    def find_anywhere(self, limit: int, *, from_id: bytes, below_id: bytes) -> Flow[list[int]]:
        unit = Unit(self._base)
        names = yield from names_of(unit)
        return (yield from of_id(unit, names, list(names), from_id, below_id))[:limit]

    def search(self, text: str, newest: int, limit: int) -> Flow[list[Hit]]:
        return (yield from look_through(self, text, newest, limit))

    def quarantined(self, limit: int) -> Flow[list[Case]]:
        return (yield from open_cases(Table(self._base), limit))

    def effects(self, seq: int | None, limit: int) -> Flow[list[told.StoredEffect]]:
        table = Table(self._base)
        if seq is not None:
            return [effect_shown(one) for one in (yield from effects_of(table, seq))][:limit]
        found: list[told.StoredEffect] = []
        for mark in (yield from table.query(table.layout.at("G").pk)):
            (one,) = yield from table.get(effect_at(table, mark["sk"]))
            row = None if one is None else (yield from table.row(one["seq"]))
            if one is not None and not one.get("done") and not (row and row.token is not None):
                found.append(effect_shown(one))
        return found[:limit]

    # The inbox as a whole

    def stats(self) -> Flow[Stats]:
        table = Table(self._base)
        rows = yield from everything(table)
        done = yield from newest_done(table, MOST)
        copies = yield from self._copies(table)
        workers = yield from table.query(table.layout.at("W").pk)
        failures = yield from table.query(table.layout.at("F").pk, limit=MOST, backwards=True)
        cases = yield from table.query(table.layout.at("Z").pk, only=lambda one: "resolution" not in one)
        polls = yield from table.query(table.layout.at("P").pk)
        firsts = first_of_keys(rows)
        statuses = [(row, row.status(table.now, is_first=row.seq in firsts)) for row in rows]
        counts = Counter(status for row, status in statuses if not row.outgoing)
        due = [row for row, status in statuses if status == "due" and not row.outgoing]
        since = [row.since if row.state == "ready" else row.due_at or 0 for row in due]
        own = Counter(one["how"] for one in done if not one.get("outgoing"))
        recent = [one for one in done if not one.get("outgoing") and one["how"] in ("done", "skip")]
        outbox = Counter(row.state == "dead" for row, status in statuses if row.outgoing and status != "scheduled")
        return Stats(
            **{name: counts[name] for name in STATUSES},
            quarantined=len(cases),
            done=own["done"],
            discarded=sum(one["how"] == "discard" for one in done),
            skipped=own["skip"],
            duplicates=sum(one["copies"] for one in copies),
            failures=sum(bool(one["charged"]) for one in failures),
            workers=sum(one["alive_until"] >= table.now for one in workers),
            oldest_due_seconds=(table.now - min(since, default=table.now)) / 1_000_000,
            done_last_minute=sum(one["done_at"] > table.now - MINUTE for one in recent),
            outbox_unsent=outbox[False],
            outbox_dead=outbox[True],
            outbox_sent=sum(bool(one.get("outgoing")) and one["how"] == "done" for one in done),
            polls_failing=sum(one["failures"] > 0 for one in polls),
        )

    def workers(self) -> Flow[list[WorkerRow]]:
        table = Table(self._base)
        holds = Counter(row.worker for row in (yield from held(table, None)))
        return [
            WorkerRow(
                one["worker"],
                *(one["process"], one["host"], one["pid"], one["code_version"], bool(one.get("inline"))),
                moment(one["started_at"]),
                (one["alive_until"] - table.now) / 1_000_000,
                *(holds[one["worker"]], one["lanes"], one["handles"], one.get("circuits", "")),
            )
            for one in sorted((yield from table.query(table.layout.at("W").pk)), key=lambda one: one["started_at"])
        ]

    def running(self, limit: int) -> Flow[list[Running]]:
        table = Table(self._base)
        names = yield from names_of(table)
        return [
            Running(row.seq, row.worker or 0, row.type, row.key, names[row.consumer], row.outgoing, row.attempts + 1)
            for row in (yield from held(table, None))[:limit]
        ]

    def dead_groups(self, limit: int) -> Flow[list[DeadGroup]]:
        table = Table(self._base)
        names = yield from names_of(table)
        groups: dict[tuple[str, str, str, bool], list[Row]] = {}
        for row in (yield from everything(table)):
            if row.state == "dead":
                which = (row.fingerprint or "", row.type, names[row.consumer], row.outgoing)
                groups.setdefault(which, []).append(row)
        found = [
            DeadGroup(
                *which,
                *(len(rows), rows[0].seq, rows[-1].seq),
                moment(min(row.received_at for row in rows)),
                moment(max(row.received_at for row in rows)),
                rows[-1].error or "",
            )
            for which, rows in groups.items()
        ]
        return sorted(found, key=lambda group: (-group.messages, group.first_seq))[:limit]

    def blocked_keys(self, limit: int) -> Flow[list[BlockedKey]]:
        table = Table(self._base)
        names = yield from names_of(table)
        rows = yield from everything(table)
        found = sorted(_blocked(rows, names), key=lambda one: (-one.behind, one.seq))
        return found[:limit]

    def failing(self, times: int, held: float, halted: Halted) -> Flow[Failing]:
        table = Table(self._base)
        rows = yield from everything(table)
        retries = [row for row in rows if row.state == "retry" and not halted.has(row.subscription, row.destination)]
        since = table.now - int(held * 1_000_000)
        keys = [row for row in retries if row.stands_in is not None and _behind(rows, row)]
        old = sum(row.failed_at is not None and row.failed_at <= since for row in keys)
        return Failing(sum(row.attempts >= times for row in retries), old)

    def sources(self, newest: int) -> Flow[list[SourceRow]]:
        table = Table(self._base)
        names = yield from names_of(table)
        windows = yield from table.query(table.layout.version.pk, first="win#", below="win$")
        late = {one["name"]: timedelta(seconds=float(one["seconds"])) for one in windows}
        copies = {int(one["sk"]): one["copies"] for one in (yield from self._copies(table))}
        recent = yield from self._newest(table, newest)
        found = []
        for number, name in sorted(names.items(), key=lambda one: one[1]):
            its = [one for one in recent if one["source"] == number]
            if its or name in late:
                last = moment(max(one["at"] for one in its)) if its else None
                again = sum(copies.get(one["seq"], 0) for one in its)
                found.append(SourceRow(name, late.get(name), len(its), last, again))
        return found

    def polls(self) -> Flow[list[StoredPoll]]:
        unit = Unit(self._base)
        names = yield from names_of(unit)
        return [
            StoredPoll(
                names[one["source"]],
                *(one.get("cursor"), one["number"], "token" in one, (one["due_at"] - unit.now) / 1_000_000),
                maybe(one.get("ended_at")),
                *(one["failures"], one.get("error")),
            )
            for one in (yield from unit.query(unit.layout.at("P").pk))
        ]

    def storage(self) -> Flow[Storage]:
        table = Table(self._base)
        rows = yield from everything(table)
        firsts: list[int] = [row.seq for row in rows[:1]]
        for shard in range(table.layout.shards):
            oldest = yield from table.query(
                table.layout.at("H", shard).pk, limit=1, only=lambda one: "done_at" in one, pages=5
            )
            firsts += [one["seq"] for one in oldest]
        since = moment(moment_of(min(firsts))) if firsts else None
        (turn,) = yield from table.get(table.layout.at("T", sk="prune"))
        sizes = (TableSize("queue", len(rows), None), TableSize("ledger", None, None))
        return Storage(sizes, since, since, maybe(turn["due_at"]) if turn else None)

    def pruning_due(self) -> Flow[datetime | None]:
        table = Table(self._base)
        (turn,) = yield from table.get(table.layout.at("T", sk="prune"))
        return maybe(turn["due_at"]) if turn else None

    def audit(self, before: int | None, limit: int) -> Flow[list[AuditLine]]:
        unit = Unit(self._base)
        below = "\U0010ffff" if before is None else f"{before - 1:019d}"
        lines = yield from unit.query(unit.layout.at("A").pk, below=below, limit=limit, backwards=True)
        return [
            AuditLine(one["number"], moment(one["at"]), one["actor"], one["action"], one["seq"], one["reason"])
            for one in lines
        ]

    def traffic(self, minutes: int, newest: int) -> Flow[list[Minute]]:
        table = Table(self._base)
        names = yield from names_of(table)
        received: Counter[int] = Counter()
        for one in (yield from self._newest(table, newest)):
            if names.get(one["consumer"]) != OUTBOX:
                received[(table.now - one["at"]) // MINUTE] += 1
        done: Counter[int] = Counter()
        for one in (yield from newest_done(table, newest)):
            if not one.get("outgoing") and one["how"] in ("done", "skip"):
                done[(table.now - one["done_at"]) // MINUTE] += 1
        failures = yield from table.query(table.layout.at("F").pk, limit=newest, backwards=True)
        failed = Counter((table.now - one["at"]) // MINUTE for one in failures)
        return [Minute(ago, received[ago], done[ago], failed[ago]) for ago in range(minutes - 1, -1, -1)]

    # What can be wrong

    def unserved(self) -> Flow[list[Unserved]]:
        table = Table(self._base)
        items = yield from table.query(table.layout.version.pk, first="sub#", below="sub$")
        subscriptions = {one.id: one for one in subscriptions_of(items)}
        rows = yield from everything(table)
        firsts = first_of_keys(rows)
        groups: dict[tuple[str, str, str | None], list[Row]] = {}
        for row in rows:
            if row.state != "retry" and row.status(table.now, is_first=row.seq in firsts) == "due":
                one = subscriptions[row.subscription or 0]
                groups.setdefault((one.type, one.consumer, row.destination), []).append(row)
        return [
            Unserved(*which, len(found), (table.now - found[0].since) / 1_000_000)
            for which, found in sorted(groups.items(), key=str)
        ]

    def refused(self) -> Flow[Refused]:
        unit = Unit(self._base)
        marks = yield from unit.query(unit.layout.at("U").pk, only=lambda one: bool(one.get("postponed")))
        seqs = [mark["seq"] for mark in marks]
        return Refused(len(seqs), min(seqs, default=None))

    def unreachable(self) -> Flow[int]:
        table = Table(self._base)
        claimed = yield from held(table, None)
        registered = {one["worker"] for one in (yield from table.query(table.layout.at("W").pk))}
        return sum(row.worker not in registered for row in claimed)

    def keyless(self, newest: int) -> Flow[list[Keyless]]:
        table = Table(self._base)
        items = yield from table.query(table.layout.version.pk, first="sub#", below="sub$")
        wanted = {(one.consumer_id, one.type): one for one in subscriptions_of(items)}
        found: Counter[tuple[str, str, str | None]] = Counter()
        for item in (yield from self._newest(table, newest)):
            one = wanted.get((item["consumer"], item.get("type", "")))
            row = yield from table.row(item["seq"])
            wants_key = one is not None and (one.key_path is not None or one.key_function)
            is_dead = row is not None and row.state == "dead"
            if one is not None and wants_key and "body" in item and "key" not in item and not is_dead:
                found[one.type, one.consumer, one.key_path] += 1
        return [Keyless(*which, count) for which, count in sorted(found.items(), key=str)]

    def apart(self) -> Flow[list[Apart]]:
        unit = Unit(self._base)
        items = yield from unit.query(unit.layout.version.pk, first="apart#", below="apart$")
        return [Apart(one["consumer"], one["type"]) for one in items if one["apart"]]

    def debris(self) -> Flow[list[str]]:
        yield from ()
        return [f"aws dynamodb delete-table --table-name {self._base.layout.table}"]

    def _copies(self, table: Table) -> Flow[list[Item]]:
        found: list[Item] = []
        for shard in range(table.layout.shards):
            found += yield from table.query(table.layout.at("D", shard).pk, limit=MOST, backwards=True)
        return found

    def _newest(self, table: Table, newest: int) -> Flow[list[Item]]:
        """The ledger items of the newest messages."""
        rows = yield from everything(table)
        done = yield from newest_done(table, newest)
        places = {row.seq: row.ledger for row in rows[-newest:]}
        places.update({one["seq"]: Place(one["lpk"], one["lsk"]) for one in done})
        chosen = sorted(places, reverse=True)[:newest]
        return [one for one in (yield from table.get(*(places[seq] for seq in chosen))) if one is not None]


def newest_done(table: Unit, limit: int, before: int | None = None) -> Flow[list[Item]]:
    """The newest finished messages, by their numbers."""
    found: list[Item] = []
    for shard in range(table.layout.shards):
        below = "\U0010ffff" if before is None else numbered(before - 1)
        found += yield from table.query(
            table.layout.at("H", shard).pk,
            below=below,
            limit=limit,
            backwards=True,
            only=lambda one: "done_at" in one,
            pages=20,
        )
    return sorted(found, key=lambda one: -one["seq"])[:limit]


def _behind(rows: Sequence[Row], row: Row) -> list[Row]:
    return [one for one in rows if one.stands_in == row.stands_in and one.order > row.order]


def _blocked(rows: Sequence[Row], names: dict[int, str]) -> Iterator[BlockedKey]:
    for row in rows:
        if row.stands_in is None or row.state not in ("dead", "unhandled"):
            continue
        behind = sorted(_behind(rows, row), key=lambda one: one.order)
        if row.state == "dead" or any(one.state != "unhandled" for one in behind):
            first = behind[0].seq if behind else None
            state: Literal["dead", "unhandled"] = "dead" if row.state == "dead" else "unhandled"
            about = row.type, row.key, names[row.consumer], row.outgoing
            yield BlockedKey(row.seq, *about, moment(row.received_at), len(behind), first, state)
