"""Receiving, as statements.

Invariant: an insert that changed nothing is the only sign of a duplicate; what was not inserted is looked up, never
guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from onceward.domain import payload
from onceward.domain.marks import Mark
from onceward.flow import COMMIT, Each, Flow, Query
from onceward.stores.moves.ledger import Decided, FirstSeen, ImportedId, Known, Mismatch, NewRow, Stored
from onceward.stores.relational.transaction import Transactions

READY: dict[str, Any] = {
    "state": "ready",
    "delay": None,
    "attempts": 0,
    "worker": None,
    "token": None,
    "isolation": 0,
    "outgoing": False,
}
"""What all rows of an insert share, where they are to be claimed."""


class Ledger:
    """What receivers do."""

    def __init__(self, transactions: Transactions) -> None:
        self._run, self._begin = transactions.run, transactions.usual

    def receive(self, rows: Sequence[NewRow], catalog: int, marks: Sequence[Mark] = ()) -> Flow[dict[int, Stored]]:
        # Whoever reads that a type has consumers must see, too, what was stored while it had none.
        held = [Query("hold_catalog")] if any(row["subscription"] is None for row in rows) else []
        found = yield (self._begin, *held, storing(rows, catalog=catalog), *keeping(marks), COMMIT)
        return stored(found[1 + len(held)])

    def keep_positions(self, marks: Sequence[Mark]) -> Flow[None]:
        yield from self._run(*keeping(marks))

    def positions(self, source: str) -> Flow[dict[str, str]]:
        (rows,) = yield from self._run(Query("positions", {"source": source}), durable=False)
        return dict(rows)

    def send(self, rows: Sequence[NewRow], *, notify: bool) -> Flow[dict[int, Stored]]:
        fresh, *_ = yield from self._run(sending(rows), *([Query("notify")] if notify else []))
        return stored(fresh)

    def look_up(self, rows: Sequence[NewRow], unplaced: Collection[str]) -> Flow[dict[int, Known]]:
        # What is not placed is looked for first: what is placed in between is found by its consumer.
        waiting = [row for row in rows if row["type"] in unplaced]
        first = [Each("known_unplaced", [_of(row, _UNPLACED) for row in waiting])] if waiting else []
        answers = yield from self._run(*first, looking_up(rows))
        found: dict[int, Known] = {}
        for answer in answers:
            found |= known(answer)
        return found

    def import_ids(self, rows: Sequence[ImportedId]) -> Flow[int]:
        (fresh,) = yield from self._run(Each("import_ids", rows))
        return len(fresh)

    def count_known(self, rows: Sequence[ImportedId]) -> Flow[int]:
        (found,) = yield from self._run(Each("known", [_of(row, _IDENTITY) for row in rows]))
        return len(found)

    def ages(self, seqs: Sequence[int]) -> Flow[dict[int, float]]:
        (rows,) = yield from self._run(Query("ages", {"seqs": list(seqs)}))
        return dict(rows)

    def count_copies(self, copies: Mapping[int, int]) -> Flow[None]:
        # Sorted, so that batches which overlap cannot deadlock.
        counts = [{"seq": seq, "copies": count} for seq, count in sorted(copies.items())]
        yield from self._run(Each("count_duplicates", counts), durable=False)

    def quarantine(self, mismatch: Mismatch) -> Flow[Decided | None]:
        (rows,) = yield from self._run(Query("quarantine", mismatch))
        if not rows:
            return None
        resolution, accepted = rows[0]
        if accepted is None:
            return Decided(resolution, None)
        (rows,) = yield from self._run(Query("outcome", {"seq": accepted}))
        finished, result = rows[0] if rows else (False, None)
        same = mismatch["hash"], mismatch["type_hash"]
        return Decided(resolution, Known(accepted, *same, bool(finished), _decoded(result)))

    def first_seen(self, bodies: Sequence[FirstSeen]) -> Flow[list[str]]:
        # Bodies before what is forgotten, so that batches which overlap cannot deadlock.
        places = {(body.source, body.window): {"source": body.source, "window": body.window} for body in bodies}
        seen = [Query("first_seen", body._asdict()) for body in bodies]
        forgotten = [Query("forget_first_seen", place) for place in places.values()]
        answers = yield from self._run(*seen, *forgotten)
        return [first for ((first,),) in answers[: len(bodies)]]

    def referred(self, blobs: Sequence[str]) -> Flow[set[str]]:
        (rows,) = yield from self._run(Query("referred", {"names": list(blobs)}))
        return {name for (name,) in rows}

    def blob_folder(self) -> Flow[str]:
        (((folder,),),) = yield from self._run(Query("blob_folder"))
        return str(folder)


_IDENTITY = ("ordinal", "consumer", "source", "stored_id")
_UNPLACED = ("ordinal", "source", "stored_id", "type")


def keeping(marks: Sequence[Mark]) -> list[Query]:
    """The statements that keep how far sources were read."""
    return [Query("keep_position", mark._asdict()) for mark in sorted(marks)]


def storing(rows: Sequence[NewRow], *, catalog: int | None, **shared: Any) -> Each:
    """The statement that stores rows which are not known; `shared` says how they are to stand in the queue."""
    return Each("receive", rows, {**READY, **shared, "catalog": catalog})


def sending(rows: Sequence[NewRow]) -> Each:
    """The statement that stores outgoing messages: messages like any other, whose consumer is the relay."""
    return storing(rows, catalog=None, outgoing=True)


def looking_up(rows: Sequence[NewRow]) -> Each:
    """The statement that finds what is known under the identities of rows."""
    return Each("known", [_of(row, _IDENTITY) for row in rows])


def stored(rows: Sequence[tuple[Any, ...]]) -> dict[int, Stored]:
    """What was stored, by ordinal."""
    return {ordinal: Stored(seq, received_at) for ordinal, seq, received_at in rows}


def known(rows: Sequence[tuple[Any, ...]]) -> dict[int, Known]:
    """What is known, by ordinal."""
    return {
        ordinal: Known(seq, bytes(digest), kind, bool(finished), _decoded(result), age)
        for ordinal, seq, digest, kind, finished, result, age in rows
    }


def _decoded(result: str | None) -> Any:
    return payload.decode_text(result) if result else None


def _of(row: NewRow | ImportedId, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in names}  # type: ignore[literal-required] # each is a key of the row
