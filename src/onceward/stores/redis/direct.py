"""Messages that are received and handled in one transaction.

Nothing is stored before the handlers have run: the receive is applied with what they write. Messages and keys are
locked meanwhile, and another copy waits; a lock that was lost is found out at the end: nothing is applied.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from onceward.errors import StoreBusy
from onceward.flow import ROLLBACK, Flow, Wait
from onceward.stores.moves.inline import (
    Applied,
    BeginDirect,
    Begun,
    Enqueued,
    FinishDirect,
    Placed,
    Requeue,
    StoreClaimed,
)
from onceward.stores.moves.ledger import NewRow, Stored
from onceward.stores.recording import Open, Savepoint
from onceward.stores.redis.queue import attempt_given, refuse_part
from onceward.stores.redis.requests import (
    Ask,
    End,
    Keep,
    Kept,
    Received,
    big,
    both,
    constant,
    counter,
    digits,
    done,
    row_given,
    row_raw,
    rows_raw,
)

GRACE = 30.0
"""For so many seconds more than their handlers may take, messages and their keys are locked."""
LOOK_AGAIN = 0.01
"""How often a copy that waits looks whether the other one has ended."""


class Inline:
    """What a process does that handles messages as they come."""

    def __init__(self, patience: float) -> None:
        self._patience = patience

    def begin_direct(self, begin: BeginDirect) -> Flow[Begun]:
        yield Open()
        given = {
            "rows": [
                {**row_given(row), "runs": row["ordinal"] in begin.runs, "lock": _lock(row)} for row in begin.rows
            ],
            "catalog": str(begin.catalog),
            "holder": begin.fence,
            "seconds": begin.seconds + GRACE,
        }
        raw = [row["stored_id"] for row in begin.rows]
        yield Keep(Received(locks=_locks(begin), holder=begin.fence))  # should the answer be lost, they are let go
        found = yield from done("begin_direct", given, raw)
        until = time.monotonic() + self._patience
        while found.get("waits") and time.monotonic() < until:
            yield Wait(LOOK_AGAIN)
            found = yield from done("begin_direct", given, raw)
        stored = {ordinal: Stored(seq, int(found["now"])) for ordinal, seq in found.get("stored") or ()}
        rows = [(row, stored[row["ordinal"]].seq) for row in begin.rows if row["ordinal"] in stored]
        yield Keep(Received(rows, tuple(found.get("locks") or ()), begin.fence))
        if not stored:
            yield ROLLBACK
        elif begin.savepoint:
            yield Savepoint()
        if found.get("waits"):
            raise StoreBusy(
                f"a copy of message {begin.rows[0]['id']!r} or of one after it is being processed; try again"
            )
        return Begun(stored, frozenset(map(int, found.get("busy") or ())), _counted(begin, found.get("applied") or {}))

    def finish_direct(self, finish: FinishDirect) -> Flow[None]:
        received: Received = yield Kept()
        given = {
            "rows": [{**row_given(row), "seq": seq} for row, seq in received.rows],
            "locks": list(received.locks),
            "holder": received.holder,
            "worker": str(finish.worker),
            "code_version": finish.code_version,
            "seqs": list(finish.seqs),
            "results": {str(seq): text for seq, text in finish.results.items()},
            "outgoing": [row_given(one, outgoing=True) for one in finish.outgoing],
            "applied": [_applied_given(one) for one in finish.applied],
            "forget_bodies": list(finish.forget_bodies),
            "skipped": [{"seq": skip.seq, "reason": skip.reason} for skip in finish.skipped],
            "queued": [_queued_given(one) for one in finish.queued],
            "attempts": [attempt_given(one) for one in finish.attempts],
            "leaves": [str(hash_) for hash_ in finish.leaves],
            "marks": [mark._asdict() for mark in finish.marks],
            "effects": [list(one) for one in finish.effects.items()],
        }
        raw = [*rows_raw([row for row, _ in received.rows]), *rows_raw(finish.outgoing)]
        found, _ = yield from both(End("finish_direct", given, raw))
        refuse_part(found)

    def requeue_own(self, messages: Sequence[Requeue]) -> Flow[dict[int, int]]:
        """No handler can commit on its own: what it writes is applied with "done"."""
        del messages
        return (yield from constant({}))

    def store_claimed(self, claimed: StoreClaimed) -> Flow[Placed]:
        given = {
            "row": row_given(claimed.row),
            "catalog": str(claimed.catalog),
            "worker": str(claimed.worker),
            "token": str(claimed.token),
            "isolation": claimed.isolation,
            "keyless": claimed.keyless,
            "after_crash": claimed.after_crash,
        }
        ask = Ask("store_claimed", given, row_raw(claimed.row))
        found, _ = yield from both(ask)
        stored = None if found.get("seq") is None else Stored(found["seq"], int(found["now"]))
        return Placed(found["claimed"], stored)


def _locks(begin: BeginDirect) -> tuple[str, ...]:
    """What this may lock at most, as the library names it; whose lock it is not stays."""
    if not begin.fence:
        return ()
    keys = [f"lock:{row['key_hash']}" for row in begin.rows if row["key_hash"] is not None]
    return (*map(_lock, begin.rows), *keys)


def _lock(row: NewRow) -> str:
    return f"lock:{row['consumer']}:{row['source']}:{row['stored_id'].hex()}"


def _counted(begin: BeginDirect, applied: dict[str, str]) -> dict[tuple[int, str, str | None], int]:
    """How far keys are, by consumer, namespace and key."""
    keys = {(row["consumer"], row["aggregate"] or "", row["key"]) for row in begin.rows if row["sequence"] is not None}
    return {key: int(applied[name]) for key in keys if (name := counter(*key)) in applied}


def _queued_given(one: Enqueued) -> dict[str, Any]:
    return {
        "seq": one["seq"],
        "u": one["subscription"],
        "h": big(one["key_hash"]),
        "p": digits(one["place"]),
        "q": digits(one["sequence"]),
        "y": one["unplaced"],
        "state": one["state"],
        "after": big(one["after"]),
        "a": one["attempts"],
    }


def _applied_given(applied: Applied) -> dict[str, Any]:
    return {"g": counter(applied.consumer, applied.aggregate, applied.key), "q": digits(applied.sequence)}
