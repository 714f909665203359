"""Fan-out, as statements.

Invariant: a message of an unknown type is never lost and never run twice: its row is replaced by one for each consumer
in one transaction, under the locks of all keys that it leaves and comes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from onceward.domain import identity
from onceward.errors import RightsMissing, StoreConflict, StoreError, StoreUnavailable
from onceward.flow import COMMIT, Flow, Query
from onceward.stores.moves.catalog import Unhandled
from onceward.stores.moves.fan_out import FannedOut, FanOut, Placement, UnhandledRow
from onceward.stores.moves.ledger import NewRow
from onceward.stores.relational.ledger import known, looking_up, stored, storing
from onceward.stores.relational.transaction import Transactions

BODY = UnhandledRow._fields.index("body")


class FanOuts:
    """Places messages that waited for their consumers."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def fan_out(self, fan_out: FanOut) -> Flow[FannedOut]:
        yield self._transactions.short()
        ((version, _),), rows = yield (Query("catalog"), Query("unhandled_types"))
        waiting = [Unhandled(*row) for row in rows]
        wanted = fan_out.wanted(waiting)
        if (waiting and version != fan_out.catalog) or not (wanted.types or wanted.subscriptions):
            yield COMMIT
            return FannedOut(waiting=len(waiting), outdated=bool(waiting) and version != fan_out.catalog)
        which = {"types": list(wanted.types), "subscriptions": list(wanted.subscriptions)}
        found = yield Query("unhandled", {**which, "passed": list(fan_out.passed), "limit": fan_out.limit})
        messages = yield from _whole(found)
        names = fan_out.names
        if not all(number in names for message in messages for number in (message.source, message.consumer)):
            names = dict((yield Query("names")))
        placements = [fan_out.place(message, names) for message in messages]
        keys = sorted({key for placement in placements for key in placement.keys})
        if keys:
            yield Query("lock_keys", {"key_hashes": keys})
        placed: list[int] = []
        refused: dict[int, StoreError] = {}
        for placement in placements:
            try:
                placed += yield from self._place(placement, fan_out)
            except _Refused as refusal:
                refused[placement.seq] = refusal.error
        if keys:  # whatever waits behind a row that has gone, or has moved back in its key, goes on
            yield Query("promote", {"key_hashes": keys})
        yield COMMIT
        return FannedOut(
            found=[row[0] for row in found],
            placed=placed,
            refused=refused,
            waiting=len(waiting),
            outdated=len(placed) + len(refused) < len(placements),  # under an outdated catalog nothing is copied
            at_end=len(found) < fan_out.limit,
        )

    def _place(self, placement: Placement, fan_out: FanOut) -> Flow[list[int]]:
        """Place a message; returns its number, nothing where the catalog is outdated."""
        if not fan_out.one_by_one:
            return [placement.seq] if (yield from _placed(placement, fan_out.catalog)) else []
        yield Query("savepoint")
        try:
            return [placement.seq] if (yield from _placed(placement, fan_out.catalog)) else []
        except (StoreUnavailable, StoreConflict, RightsMissing):
            raise
        except StoreError as error:
            yield Query("rollback_to_savepoint")
            if placement.is_known:  # those of its key wait behind it, and no others
                yield Query("mark_refused", {"seq": placement.seq, "key_hash": placement.only_key})
            raise _Refused(error) from error


class _Refused(Exception):
    """The database refused the rows of one message."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.error = error


def _whole(rows: Sequence[tuple[Any, ...]]) -> Flow[list[UnhandledRow]]:
    """The first rows with their bodies; one whose body is large is placed by itself: many would fill the memory."""
    small = [UnhandledRow._make(row) for row in takewhile(lambda row: row[BODY] is not None, rows)]
    if small or not rows:
        return small
    first = UnhandledRow._make(rows[0])
    ((body,),) = yield Query("body_of", {"seq": first.seq})
    return [first._replace(body=body or b"")]


def _placed(placement: Placement, catalog: int) -> Flow[bool]:
    """Give every consumer its row; False when the catalog is outdated, and then the unhandled row stays."""
    heirs = []
    for row in placement.copies:
        heir = yield from _copy(row, placement, catalog)
        if heir is None:
            return False
        heirs.append(heir)
    which = {"seq": placement.seq}
    if placement.adoption is None:
        yield Query("hand_on", {**which, "heir": heirs[0]})
        yield Query("remove_unhandled", which)
    else:
        place = placement.adoption._asdict()
        key, aggregate = place.pop("key"), place.pop("aggregate")
        yield Query("adopt", {**which, **place, "slot": None if key is None else identity.slot(key)})
        yield Query("set_body_key", {**which, "key": key, "aggregate": aggregate, "key_from": None})
    return True


def _copy(row: NewRow, placement: Placement, catalog: int) -> Flow[int | None]:
    """A row for another consumer; returns its number, None under an outdated catalog."""
    fresh = stored((yield storing([row], catalog=catalog)))
    if fresh:
        return fresh[row["ordinal"]].seq
    found = known((yield looking_up([row]))).get(row["ordinal"])
    if found is None:
        return None
    if found.is_imported:  # this consumer has handled it before: a copy, whatever its bytes are
        return found.seq
    mismatch = placement.mismatch
    if (found.hash, found.type_hash) == (mismatch["hash"], mismatch["type_hash"]):
        # Another service has it too, and it may have come there later.
        yield Query("bring_forward", {"seq": found.seq, "place": placement.place, "since": placement.seq})
    else:
        yield Query("quarantine", {**mismatch, "seq": found.seq})
    return found.seq
