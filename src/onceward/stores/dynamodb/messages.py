"""Messages as reports show them: rows of a list, and everything about one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from onceward.flow import Flow
from onceward.message import microseconds, moment
from onceward.stores.dynamodb.cases import case_at
from onceward.stores.dynamodb.catalog import names_of
from onceward.stores.dynamodb.effects import effects_of
from onceward.stores.dynamodb.items import Item, Place
from onceward.stores.dynamodb.row import Row as Queued
from onceward.stores.dynamodb.rows import Table
from onceward.stores.moves.messages import (
    Action,
    Attempt,
    CaseRow,
    Listing,
    MismatchKind,
    Row,
    Sent,
    StoredEffect,
    StoredMessage,
)

HOW = {"discard": "discarded", "skip": "skipped"}


def first_of_keys(rows: Sequence[Queued]) -> set[int]:
    """Which messages, of all, nothing of their key comes before."""
    firsts: dict[int, Queued] = {}
    for row in rows:
        key = row.stands_in
        if key is not None and (key not in firsts or row.order < firsts[key].order):
            firsts[key] = row
    return {row.seq for row in rows if row.stands_in is None} | {row.seq for row in firsts.values()}


def listed_unfinished(table: Table, listing: Listing, rows: Sequence[Queued]) -> Flow[list[Row]]:
    """Those of these that match, newest first."""
    firsts, names = first_of_keys(rows), (yield from names_of(table))
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: -row.seq):
        if listing.fingerprint not in (None, row.fingerprint) or row.outgoing != listing.outgoing:
            continue
        (item,) = yield from table.get(row.ledger)
        shown = shown_unfinished(row, item or {}, names, status=row.status(table.now, is_first=row.seq in firsts))
        if _matches(listing, shown):
            found.append(shown)
        if len(found) >= listing.limit:
            break
    return found


def shown_unfinished(row: Queued, item: Item, names: Mapping[int, str], *, status: str) -> Row:
    """A row of a list."""
    return Row(
        seq=row.seq,
        status=status,
        source=names[row.source],
        id=item.get("id", ""),
        type=row.type,
        version=item.get("version", 0),
        key=row.key,
        consumer=names[row.consumer],
        attempts=row.attempts,
        crashes=row.crashes,
        received_at=moment(row.received_at),
        due_at=maybe(row.due_at),
        error=row.error,
    )


def shown_finished(done: Item, item: Item, names: Mapping[int, str]) -> Row:
    """A row of a list."""
    return Row(
        seq=done["seq"],
        status=HOW.get(done["how"], "done"),
        source=names[item["source"]],
        id=item.get("id", ""),
        type=item.get("type", ""),
        version=item.get("version", 0),
        key=item.get("key"),
        consumer=names[item["consumer"]],
        attempts=0,
        crashes=0,
        received_at=moment(item["at"]),
        due_at=None,
        error=None,
    )


def listed_finished(table: Table, listing: Listing, newest: Sequence[Item]) -> Flow[list[Row]]:
    """Those of these finished messages that match."""
    names, found = (yield from names_of(table)), []
    items = yield from table.get(*(Place(one["lpk"], one["lsk"]) for one in newest))
    for done, item in zip(newest, items, strict=True):
        if item is not None and item["seq"] == done["seq"] and listing.fingerprint is None:
            shown = shown_finished(done, item, names)
            if _matches(listing, shown):
                found.append(shown)
    return found


def _matches(listing: Listing, row: Row) -> bool:
    wanted = {"status": listing.status, "type": listing.type, "key": listing.key, "source": listing.source}
    at = microseconds(row.received_at)
    return (
        all(value is None or getattr(row, name) == value for name, value in wanted.items())
        and (listing.before is None or row.seq < listing.before)
        and (listing.since is None or at >= microseconds(listing.since))
        and (listing.until is None or at < microseconds(listing.until))
    )


def message_of(table: Table, seq: int) -> Flow[StoredMessage | None]:
    """Everything about one."""
    queued = yield from table.row(seq)
    (done,) = yield from table.get(table.layout.done(seq))
    done = done if done is not None and "done_at" in done else None
    if queued is None and done is None:
        return None
    (item,) = yield from table.get(queued.ledger if queued else Place((done or {})["lpk"], (done or {})["lsk"]))
    if item is None or item["seq"] != seq:
        return None
    names = yield from names_of(table)
    if queued is not None:
        earlier = [] if queued.stands_in is None else (yield from table.of_key(queued.stands_in, limit=1))
        is_first = not earlier or earlier[0].order >= queued.order
        row = shown_unfinished(queued, item, names, status=queued.status(table.now, is_first=is_first))
    else:
        row = shown_finished(done or {}, item, names)
    about = yield from table.query(table.layout.at("M", seq).pk)
    (copies,) = yield from table.get(table.layout.copies(seq))
    is_run = done is not None and done["how"] in ("done", "skip")
    return StoredMessage(
        seq=seq,
        source=row.source,
        stored_id=item["stored_id"],
        consumer=row.consumer,
        hash=item["hash"],
        received_at=row.received_at,
        id=item.get("id"),
        type=item.get("type"),
        version=item.get("version"),
        key=row.key,
        headers=item.get("headers"),
        body=item.get("body"),
        status=row.status,
        attempts=row.attempts,
        crashes=row.crashes,
        due_at=row.due_at,
        worker=queued.worker if queued else None,
        result=done.get("result") if done else None,
        duplicates=copies["copies"] if copies else 0,
        destination=item.get("destination"),
        cause=item.get("cause"),
        first_duplicate_at=maybe(copies["first_at"]) if copies else None,
        last_duplicate_at=maybe(copies["last_at"]) if copies else None,
        scheduled_at=maybe(item.get("due_at")),
        finished_at=moment(done["done_at"]) if done and is_run else None,
        finished_by=done.get("worker") if done and is_run else None,
        code_version=done.get("code_version") if done and is_run else None,
        history=tuple(_attempt(one) for one in about if one["sk"].startswith("a#")),
        actions=tuple(
            Action(moment(one["at"]), one["actor"], one["action"], one["reason"])
            for one in about
            if one["sk"].startswith("o#")
        ),
        cases=tuple((yield from _cases(table, seq, item, about))),
        sent=tuple(Sent(*one) for one in (done or {}).get("sent", ())),
        effects=tuple(effect_shown(one) for one in (yield from effects_of(table, seq))),
    )


def _attempt(item: Item) -> Attempt:
    names = ("attempt", "kind", "charged", "error", "traceback", "worker", "code_version", "fingerprint")
    return Attempt(**{name: item.get(name) for name in names}, at=moment(item["at"]))  # type: ignore[arg-type] # its fields


def _cases(table: Table, seq: int, first: Item, about: Sequence[Item]) -> Flow[list[CaseRow]]:
    items: list[Item | None] = []
    for one in about:
        if one["sk"].startswith("x#"):
            items += [(yield from case_at(table, one["case"]))]
    found = []
    for one in sorted((one for one in items if one is not None and one["seq"] == seq), key=lambda one: one["first_at"]):
        kind: MismatchKind = "type" if one["hash"] == first["hash"] else "body"
        times = moment(one["first_at"]), moment(one["last_at"])
        decided = one.get("resolution"), one.get("accepted")
        found += [CaseRow(one["case"], kind, one["type"], one["version"], one["copies"], *times, *decided)]
    return found


def effect_shown(one: Item) -> StoredEffect:
    """An external call."""
    times = moment(one["started_at"]), maybe(one.get("finished_at"))
    return StoredEffect(one["key"], one["seq"], one["name"], bool(one.get("done")), one.get("result"), *times)


def maybe(at: int | None) -> datetime | None:
    """A moment, where there is one."""
    return None if at is None else moment(at)
