"""What operators do, as statements.

Invariant: an action and its line in the audit are one commit; an action that is repeated changes nothing.
"""

from __future__ import annotations

from typing import Literal

from onceward.flow import COMMIT, ROLLBACK, Flow, Query
from onceward.stores.moves.ledger import NewRow
from onceward.stores.moves.operations import (
    Case,
    EffectDecision,
    KeyOf,
    Order,
    Redrive,
    Resolve,
    Resolved,
    Revise,
)
from onceward.stores.relational.keys import leave_key, removing
from onceward.stores.relational.ledger import known, looking_up, stored, storing
from onceward.stores.relational.queue import audit
from onceward.stores.relational.transaction import Transactions


class Operations:
    """What operators do."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions, self._run = transactions, transactions.run

    def key_of(self, seq: int) -> Flow[KeyOf | None]:
        (rows,) = yield from self._run(Query("key_of", {"seq": seq}))
        return KeyOf(*rows[0]) if rows else None

    def redrive(self, redrive: Redrive) -> Flow[Literal["done", "not dead", "passed"]]:
        yield self._transactions.short()
        outcome = yield from _returned(redrive)
        if outcome != "done":
            yield ROLLBACK
            return outcome
        yield audit("redrive", *redrive.order)
        yield COMMIT
        return outcome

    def revise(self, revise: Revise) -> Flow[Literal["done", "not dead", "passed", "changed"]]:
        seq = revise.redrive.order.seq
        yield self._transactions.short()
        outcome: Literal["done", "not dead", "passed", "changed"] = yield from _returned(revise.redrive)
        if outcome == "not dead" and (yield Query("retry_revised", {"seq": seq})):
            outcome = "done"
        seen = {"seen_body": revise.seen_body, "seen_headers": revise.seen_headers or ""}
        body = {"seq": seq, "body": revise.body, "headers": revise.headers, **seen}
        if outcome == "done" and not (yield Query("revise_body", body)):
            outcome = "changed"
        if outcome != "done":
            yield ROLLBACK
            return outcome
        for one in revise.kept:
            yield Query("quarantine", one)
            which = {"seq": seq, "hash": one["hash"], "type_hash": one["type_hash"]}
            yield Query("keep_revision", which)
        yield audit("edit", *revise.redrive.order)
        yield COMMIT
        return outcome

    def discard(self, order: Order, *, scheduled: bool) -> Flow[bool]:
        yield self._transactions.short()
        found = yield Query("key_of", {"seq": order.seq})
        keys = [KeyOf(*row).key_hash for row in found]
        held = [key for key in keys if key is not None]
        key_hash = held[0] if held else None
        removal = Query("discard", {"seq": order.seq, "key_hash": key_hash, "scheduled": scheduled})
        requests = removing(held, removal, applied=[order.seq] if held else [])
        answers = yield tuple(requests)
        if not answers[requests.index(removal)]:
            yield ROLLBACK
            return False
        yield audit("discard", *order)
        yield COMMIT
        return True

    def make_due(self, order: Order) -> Flow[bool]:
        which = {"seq": order.seq}
        _, rows = yield (self._transactions.short(), Query("make_due", which))
        if not rows:
            yield ROLLBACK
            return False
        yield (Query("make_body_due", which), audit("hasten", *order), COMMIT)
        return True

    def unblock(self, order: Order) -> Flow[bool]:
        yield self._transactions.short()
        found = yield Query("key_of", {"seq": order.seq})
        key_hash = KeyOf(*found[0]).key_hash if found else None
        done = False
        if key_hash is not None:
            yield Query("lock_keys", {"key_hashes": [key_hash]})
            done = yield from leave_key(order.seq, key_hash)
        if not done:
            yield ROLLBACK
            return False
        yield audit("unblock", *order)
        yield COMMIT
        return True

    def settle_effect(self, decision: EffectDecision) -> Flow[bool]:
        # Whoever runs its message has claimed it before it looks at the effect, and looks under the lock that is taken
        # here first: it is seen here, or it sees what was decided.
        which = {"key": decision.key}
        yield self._transactions.short()
        yield Query("lock_effect", which)
        if (yield Query("effect_held", {**which, "patience": decision.patience})):
            yield ROLLBACK
            return False
        happened = decision.result is not None
        outcome = Query("effect_done", {**which, "result": decision.result}) if happened else None
        rows = yield outcome or Query("effect_undone", which)
        if rows:
            yield audit("effect happened" if happened else "effect did not happen", *decision.order)
        yield COMMIT
        return bool(rows)

    def case(self, case: int) -> Flow[Case | None]:
        (rows,) = yield from self._run(Query("quarantined", {"case_id": case, "limit": 1}))
        return Case(*rows[0]) if rows else None

    def resolve(self, resolve: Resolve) -> Flow[Resolved]:
        yield self._transactions.short()
        accepted = None
        if resolve.row is not None:
            accepted = yield from _accept(resolve.row, resolve.catalog)
            if accepted is None:
                yield ROLLBACK
                return Resolved("outdated")
        if not (yield _decision(resolve, accepted)):
            yield ROLLBACK
            return Resolved("closed")
        # "discard" alone is what becomes of a message; here it is the second body that goes, and the first one stays.
        action = "discard-mismatch" if resolve.resolution == "discard" else resolve.resolution
        yield audit(action, *resolve.order)
        yield COMMIT
        return Resolved("resolved", accepted)

    def keep_first(self, source: str, type: str, actor: str, reason: str, limit: int) -> Flow[int]:  # noqa: A002 - as the move
        which = {"source": source, "type": type, "actor": actor, "reason": reason, "limit": limit}
        (rows,) = yield from self._run(Query("keep_first_types", which))
        return len(rows)

    def record_reading(self, order: Order) -> Flow[bool]:
        yield self._transactions.short()
        found = yield Query("outcome", {"seq": order.seq})
        if found:
            yield audit("read", *order)
        yield COMMIT
        return bool(found)

    def sign_out(self, session: str, seconds: float) -> Flow[None]:
        ended = Query("sign_out", {"session": session, "seconds": seconds})
        yield from self._run(ended, Query("forget_sessions"))

    def is_signed_out(self, session: str) -> Flow[bool]:
        (rows,) = yield from self._run(Query("signed_out", {"session": session}))
        return bool(rows)


def _returned(redrive: Redrive) -> Flow[Literal["done", "not dead", "passed"]]:
    """Make a dead message ready, in the transaction that has begun."""
    key_hash, which = redrive.key_hash, {"seq": redrive.order.seq, "key_hash": redrive.key_hash}
    if redrive.counted:
        yield Query("lock_keys", {"key_hashes": [key_hash]})
    if not (yield Query("redrive", {**which, "seen_key": redrive.seen_key})):
        return "not dead"
    if redrive.counted and not (yield Query("retreat", which)):
        return "passed"
    return "done"


def _decision(resolve: Resolve, accepted: int | None) -> Query:
    if resolve.resolution == "discard":
        return Query("drop_quarantine", {"case_id": resolve.case})
    which = {"case_id": resolve.case, "resolution": resolve.resolution, "accepted_seq": accepted}
    return Query("resolve_quarantine", which)


def _accept(row: NewRow, catalog: int) -> Flow[int | None]:
    """The second body as a message of its own; None under an outdated catalog."""
    fresh = stored((yield storing([row], catalog=catalog)))
    found = fresh or known((yield looking_up([row])))
    return found[row["ordinal"]].seq if found else None
