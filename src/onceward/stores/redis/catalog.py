"""The catalog and receiving: names, subscriptions, and what is known of a delivery."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from onceward.domain import identity, payload
from onceward.domain.marks import Mark
from onceward.domain.pauses import KEPT_SECONDS, PauseRow
from onceward.flow import Flow
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
from onceward.stores.redis.requests import Ask, asked, both, constant, done, mismatch_given, row_given, rows_raw, whole


class Catalog:
    """Who wants what."""

    def load_catalog(self) -> Flow[CatalogRows]:
        found = yield from asked("catalog")
        return CatalogRows(
            int(found["version"]),
            found["since_crash"],
            names_of(found["names"]),
            [_subscription(one) for one in found["subscriptions"] or ()],
            [Unhandled(*one) for one in found["unhandled"] or ()],
            [_pause(one) for one in found["pauses"] or ()],
            int(found["now"]),
        )

    def catalog_version(self) -> Flow[int]:
        return int((yield from asked("version")))

    def names(self) -> Flow[Mapping[int, str]]:
        return names_of((yield from asked("names")))

    def add_names(self, names: Sequence[str]) -> Flow[None]:
        yield from done("add_names", {"names": list(names)})

    def hold_catalog(self) -> Flow[bool]:
        """There is no transaction of a caller's to hold it."""
        return (yield from constant(value=False))

    def subscribe(self, subscriptions: Sequence[NewSubscription], wait: float) -> Flow[bool]:
        del wait  # none holds it
        given = [{"consumer_id": one["consumer"], **dict(one)} for one in subscriptions]
        yield from done("subscribe", {"subscriptions": given})
        return True

    def holders(self) -> Flow[list[Holder]]:
        """As `hold_catalog`."""
        return (yield from constant([]))

    def subscribed(self, consumer: str, type: str | None) -> Flow[list[Subscribed]]:  # noqa: A002 - as the move
        found = yield from asked("subscribed", {"consumer": consumer, "type": type})
        return [Subscribed(**one) for one in found or ()]

    def retire(self, retire: Retire) -> Flow[Retired | None]:
        given = {"consumer": retire.consumer, "type": retire.type, "discard": retire.discard_unfinished}
        ended = yield from done("retire", {**given, "actor": retire.actor, "reason": retire.reason})
        return Retired([one["id"] for one in ended["found"] or ()], ended["unfinished"])

    def unfinished_of(self, subscriptions: Sequence[int], after: int, limit: int) -> Flow[list[int]]:
        given = {"subscriptions": list(subscriptions), "after": after, "limit": limit}
        return list((yield from asked("unfinished_of", given)) or ())

    def declare_sources(self, windows: Mapping[str, float]) -> Flow[dict[str, float]]:
        found = yield from done("declare_sources", {"windows": {name: repr(one) for name, one in windows.items()}})
        return latest(found)

    def pause(self, order: PauseOrder) -> Flow[bool]:
        return bool((yield from done("pause", {**order._asdict(), "line": order.line})))

    def resume(self, order: PauseOrder) -> Flow[bool]:
        return bool((yield from done("resume", {**order._asdict(), "line": order.line, "keep": KEPT_SECONDS})))

    def record_use(self, consumer: str, type: str, *, apart: bool) -> Flow[None]:  # noqa: A002 - as the move
        yield from done("record_use", {"consumer": consumer, "type": type, "apart": apart})


class Ledger:
    """What receivers do."""

    def receive(self, rows: Sequence[NewRow], catalog: int, marks: Sequence[Mark] = ()) -> Flow[dict[int, Stored]]:
        return (yield from _store(rows, str(catalog), marks))

    def keep_positions(self, marks: Sequence[Mark]) -> Flow[None]:
        yield from done("keep_positions", {"marks": [mark._asdict() for mark in marks]})

    def positions(self, source: str) -> Flow[dict[str, str]]:
        return dict((yield from asked("positions", {"source": source})) or ())

    def send(self, rows: Sequence[NewRow], *, notify: bool) -> Flow[dict[int, Stored]]:
        del notify  # the caller does
        return (yield from _store(rows, None))

    def look_up(self, rows: Sequence[NewRow], unplaced: Collection[str]) -> Flow[dict[int, Known]]:
        given = [{**_who(row), "type": row["type"], "unplaced": row["type"] in unplaced} for row in rows]
        ask = Ask("look_up", {"rows": given}, [row["stored_id"] for row in rows], reads=True)
        found, hashes = yield from both(ask)
        return {one["n"]: known_of(one, hash_) for one, hash_ in zip(found or (), hashes, strict=True)}

    def import_ids(self, rows: Sequence[ImportedId]) -> Flow[int]:
        shown = [{**_who(row), "age": str(row["age"])} for row in rows]
        given = {"rows": shown, "unknown": identity.UNKNOWN_HASH.decode()}
        count: int = yield from done("import_ids", given, [row["stored_id"] for row in rows])
        return count

    def count_known(self, rows: Sequence[ImportedId]) -> Flow[int]:
        raw = [row["stored_id"] for row in rows]
        count: int = yield from asked("count_known", {"rows": [_who(row) for row in rows]}, raw)
        return count

    def ages(self, seqs: Sequence[int]) -> Flow[dict[int, float]]:
        return dict((yield from asked("ages", {"seqs": list(seqs)})) or ())

    def count_copies(self, copies: Mapping[int, int]) -> Flow[None]:
        yield from done("count_copies", {"copies": [list(one) for one in copies.items()]})

    def quarantine(self, mismatch: Mismatch) -> Flow[Decided | None]:
        found, hashes = yield from both(
            Ask("quarantine", mismatch_given(mismatch), [mismatch["hash"], mismatch["body"]])
        )
        if found is None:
            return None
        accepted = found.get("accepted")
        return Decided(found.get("resolution"), known_of(accepted, hashes[0]) if accepted else None)

    def first_seen(self, bodies: Sequence[FirstSeen]) -> Flow[list[str]]:
        given = [{"source": body.source, "id": body.id, "window": body.window} for body in bodies]
        return list((yield from done("first_seen", {"bodies": given}, [body.hash for body in bodies])) or ())

    def referred(self, blobs: Sequence[str]) -> Flow[set[str]]:
        return set((yield from asked("referred", {"blobs": list(blobs)})) or ())

    def blob_folder(self) -> Flow[str]:
        return str((yield from asked("folder")))


def names_of(found: Mapping[str, str]) -> dict[int, str]:
    """Names by their numbers."""
    return {int(number): name for number, name in found.items()}


def known_of(found: Mapping[str, Any], hash_: bytes) -> Known:
    """What is known of a message; of an imported one, nothing."""
    result = found.get("result")
    value = payload.decode_text(result) if result else None
    return Known(found["seq"], hash_ or identity.UNKNOWN_HASH, int(found["th"]), found["finished"], value, found["age"])


def latest(found: Mapping[str, str] | None) -> dict[str, float]:
    """The source that may redeliver longest."""
    windows = {name: float(seconds) for name, seconds in (found or {}).items()}
    return dict(sorted(windows.items(), key=lambda one: (-one[1], one[0]))[:1])


def _pause(found: Mapping[str, Any]) -> PauseRow:
    ended = whole(found.get("ended_at"))
    return PauseRow(found["kind"], found["name"], int(found["began_at"]), ended, found["actor"], found["reason"])


def _subscription(found: Mapping[str, Any]) -> Subscription:
    names = ("id", "consumer", "consumer_id", "type", "key_path", "key_function", "sequence", "on_dead", "aggregate")
    known: dict[str, Any] = {name: found.get(name) for name in names}
    return Subscription(**known, retired=bool(found.get("retired")))


def _who(row: NewRow | ImportedId) -> dict[str, Any]:
    return {"n": row["ordinal"], "c": row["consumer"], "s": row["source"]}


def _store(rows: Sequence[NewRow], catalog: str | None, marks: Sequence[Mark] = ()) -> Flow[dict[int, Stored]]:
    given = {
        "rows": [row_given(row, outgoing=catalog is None) for row in rows],
        "catalog": catalog,
        "marks": [mark._asdict() for mark in marks],
    }
    found = yield from done("receive", given, rows_raw(rows))
    return {ordinal: Stored(seq, int(found["now"])) for ordinal, seq in found["stored"] or ()}
