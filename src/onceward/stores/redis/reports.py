"""Reports: what operators see. They change nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from onceward.flow import Flow
from onceward.message import microseconds, moment
from onceward.stores.moves.messages import (
    Action,
    Ahead,
    Attempt,
    CaseRow,
    Listing,
    Row,
    Sent,
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
    look_through,
)
from onceward.stores.redis.operations import case_of
from onceward.stores.redis.requests import Ask, asked, both, constant


class Reports:
    """What operators see."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    # Messages

    def unfinished(self, listing: Listing) -> Flow[list[Row]]:
        return [_row(one) for one in (yield from asked("unfinished", _listing(listing))) or ()]

    def finished(self, listing: Listing) -> Flow[list[Row]]:
        return [_row(one) for one in (yield from asked("finished", _listing(listing))) or ()]

    def message(self, seq: int) -> Flow[StoredMessage | None]:
        found, parts = yield from both(Ask("message", {"seq": seq}, reads=True))
        return None if found is None else _message(found, *parts)

    def ahead(self, seq: int) -> Flow[Ahead | None]:
        found = yield from asked("ahead", {"seq": seq})
        return None if found is None else Ahead(*found)

    def find(self, source: str, consumer: str, *, from_id: bytes, below_id: bytes) -> Flow[list[int]]:
        del consumer, below_id  # every row has one, and destinations are looked for one by one
        return list((yield from asked("find", {"source": source}, [from_id])) or ())

    def find_anywhere(self, limit: int, *, from_id: bytes, below_id: bytes) -> Flow[list[int]]:
        del below_id
        return list((yield from asked("find_anywhere", {"limit": limit}, [from_id])) or ())

    def search(self, text: str, newest: int, limit: int) -> Flow[list[Hit]]:
        return (yield from look_through(self, text, newest, limit))

    def quarantined(self, limit: int) -> Flow[list[Case]]:
        found, parts = yield from both(Ask("quarantined", {"limit": limit}, reads=True))
        return [case_of(one, parts[5 * at : 5 * at + 5]) for at, one in enumerate(found or ())]

    def effects(self, seq: int | None, limit: int) -> Flow[list[StoredEffect]]:
        found = yield from asked("effects", {"seq": seq, "limit": limit})
        return [_effect(one) for one in found or ()][:limit]

    # The inbox as a whole

    def stats(self) -> Flow[Stats]:
        return Stats(**(yield from asked("stats")))

    def workers(self) -> Flow[list[WorkerRow]]:
        return [
            WorkerRow(
                int(one["worker"]),
                *(one["process"], one["host"], one["pid"], one["code_version"], bool(one["inline"])),
                _at(one["started_at"]),
                *(one["lease_seconds"], one["holds"], one["lanes"], one["handles"], one.get("circuits", "")),
            )
            for one in (yield from asked("workers")) or ()
        ]

    def running(self, limit: int) -> Flow[list[Running]]:
        return [
            Running(
                one["seq"], int(one["worker"]), one["type"], one.get("key"), one["consumer"], bool(one["o"]), one["a"]
            )
            for one in (yield from asked("running", {"limit": limit})) or ()
        ]

    def dead_groups(self, limit: int) -> Flow[list[DeadGroup]]:
        found = [
            DeadGroup(
                *(one["fingerprint"], one["type"], one["consumer"], bool(one["o"]), one["messages"]),
                *(one["first_seq"], one["last_seq"], _at(one["first_at"]), _at(one["last_at"]), one["error"]),
            )
            for one in (yield from asked("dead_groups")) or ()
        ]
        return sorted(found, key=lambda group: (-group.messages, group.first_seq))[:limit]

    def blocked_keys(self, limit: int) -> Flow[list[BlockedKey]]:
        found = [
            BlockedKey(
                *(one["seq"], one["type"], one.get("key"), one["consumer"], bool(one["o"])),
                *(_at(one["received_at"]), one["behind"], one.get("next"), one["state"]),
            )
            for one in (yield from asked("blocked_keys")) or ()
        ]
        return sorted(found, key=lambda one: (-one.behind, one.seq))[:limit]

    def failing(self, times: int, held: float, halted: Halted) -> Flow[Failing]:
        without = {"subscriptions": sorted(halted.subscriptions), "destinations": sorted(halted.destinations)}
        return Failing(*(yield from asked("failing", {"times": times, "held": held, **without})))

    def sources(self, newest: int) -> Flow[list[SourceRow]]:
        answer = yield from asked("sources", {"newest": newest})
        windows, found = answer["windows"] or {}, []
        for name in sorted({*answer["found"], *windows}):
            one = (answer["found"] or {}).get(name)
            late = timedelta(seconds=float(windows[name])) if name in windows else None
            last = None if one is None else _at(one["last"])
            found.append(SourceRow(name, late, one["recent"] if one else 0, last, one["copies"] if one else 0))
        return found

    def polls(self) -> Flow[list[StoredPoll]]:
        return [
            StoredPoll(
                *(one["source"], one.get("cursor"), one["number"], one["running"], one["due"]),
                *(_maybe(one.get("ended")), one["failures"], one.get("error")),
            )
            for one in (yield from asked("polls")) or ()
        ]

    def storage(self) -> Flow[Storage]:
        found = yield from asked("storage")
        sizes = tuple(TableSize(name, rows, None) for name, rows in found["sizes"])
        return Storage(sizes, *(_maybe(found.get(name)) for name in ("ledger", "bodies", "due")))

    def pruning_due(self) -> Flow[datetime | None]:
        return _maybe((yield from asked("storage")).get("due"))

    def audit(self, before: int | None, limit: int) -> Flow[list[AuditLine]]:
        found = yield from asked("audit", {"before": before, "limit": limit})
        return [AuditLine(number, _at(at), *rest) for number, at, *rest in found or ()]

    def traffic(self, minutes: int, newest: int) -> Flow[list[Minute]]:
        del newest  # so much is logged and no more
        found = yield from asked("traffic", {"minutes": minutes})
        kinds = [found[name] or {} for name in ("received", "done", "failed")]
        return [Minute(ago, *(kind.get(str(ago), 0) for kind in kinds)) for ago in range(minutes - 1, -1, -1)]

    # What can be wrong

    def unserved(self) -> Flow[list[Unserved]]:
        found = (yield from asked("unserved")) or ()
        rows = [Unserved(kind, consumer, where or None, *rest) for kind, consumer, where, *rest in found]
        return sorted(rows, key=lambda row: str(row[:3]))

    def refused(self) -> Flow[Refused]:
        """The server refuses no row."""
        return (yield from constant(Refused(0, None)))

    def unreachable(self) -> Flow[int]:
        return int((yield from asked("unreachable")))

    def keyless(self, newest: int) -> Flow[list[Keyless]]:
        found = (yield from asked("keyless", {"newest": newest})) or {}
        rows: list[tuple[Any, ...]] = [(*json.loads(which), count) for which, count in sorted(found.items())]
        return [Keyless(*row) for row in rows]

    def apart(self) -> Flow[list[Apart]]:
        return [Apart(*which) for which in (yield from asked("apart")) or ()]

    def debris(self) -> Flow[list[str]]:
        return (yield from constant([f"redis-cli --scan --pattern '{self._prefix}*' | xargs redis-cli UNLINK"]))


def _at(text: str) -> datetime:
    return moment(int(text))


def _maybe(text: str | None) -> datetime | None:
    return None if text is None else _at(text)


def _listing(listing: Listing) -> dict[str, Any]:
    given = listing._asdict()
    for name in ("since", "until"):
        given[name] = None if given[name] is None else str(microseconds(given[name]))
    return given


def _row(found: Mapping[str, Any]) -> Row:
    return Row(
        seq=found["seq"],
        status=found["status"],
        source=found["source"],
        id=found["id"],
        type=found["type"],
        version=found["version"],
        key=found.get("key"),
        consumer=found["consumer"],
        attempts=found["attempts"],
        crashes=found["crashes"],
        received_at=_at(found["received_at"]),
        due_at=_maybe(found.get("due_at") or None),
        error=found.get("error") or None,
    )


def _effect(found: Mapping[str, Any]) -> StoredEffect:
    times = _at(found["started"]), _maybe(found.get("finished") or None)
    return StoredEffect(found["key"], found["seq"], found["name"], found["done"], found.get("result"), *times)


def _case(found: Mapping[str, Any]) -> CaseRow:
    times = _at(found["first"]), _at(found["last"])
    decided = found.get("resolution"), found.get("accepted")
    return CaseRow(found["case"], found["kind"], found["type"], found["version"], found["copies"], *times, *decided)


def _attempt(found: Mapping[str, Any]) -> Attempt:
    names = ("attempt", "kind", "charged", "error", "traceback", "code_version", "fingerprint")
    known = {name: found.get(name) for name in names}
    worker = found.get("worker")
    return Attempt(**known, worker=None if worker is None else int(worker), at=_at(found["at"]))  # type: ignore[arg-type] # its fields


def _message(found: Mapping[str, Any], stored_id: bytes, hash_: bytes, body: bytes) -> StoredMessage:
    row, about = _row(found["row"]), found.get("described") or {}
    worker, finished_by = found.get("worker"), found.get("finished_by")
    return StoredMessage(
        seq=row.seq,
        source=row.source,
        stored_id=bytes(stored_id),
        consumer=row.consumer,
        hash=bytes(hash_),
        received_at=row.received_at,
        id=about.get("id"),
        type=about.get("type"),
        version=about.get("version"),
        key=row.key,
        headers=about.get("headers"),
        body=bytes(body) if found["has_body"] else None,
        status=row.status,
        attempts=row.attempts,
        crashes=row.crashes,
        due_at=row.due_at,
        worker=int(worker) if worker else None,
        result=found.get("result"),
        duplicates=found["duplicates"],
        destination=about.get("destination"),
        cause=about.get("cause"),
        first_duplicate_at=_maybe(found.get("first_copy") or None),
        last_duplicate_at=_maybe(found.get("last_copy") or None),
        scheduled_at=_maybe(found.get("scheduled_at")),
        finished_at=_maybe(found.get("finished_at") or None),
        finished_by=int(finished_by) if finished_by else None,
        code_version=found.get("code_version") or None,
        history=tuple(_attempt(one) for one in found["attempts"] or ()),
        actions=tuple(Action(_at(at), *rest) for at, *rest in found["actions"] or ()),
        cases=tuple(_case(one) for one in found["cases"] or ()),
        sent=tuple(Sent(*one) for one in found["sent"] or ()),
        effects=tuple(_effect(one) for one in found["effects"] or ()),
    )
