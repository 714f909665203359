"""What people do to messages: redrive, discard, and decide about a mismatch. Guarded, repeatable, and written down.

Invariant: the action and its line in the audit are one commit; doing it twice changes nothing the second time.
"""

from __future__ import annotations

from typing import Any, Literal

from onceward import identity, payload
from onceward.flow import COMMIT, ROLLBACK, Each, Flow, Query
from onceward.message import Delivery
from onceward.steps.context import Context, know_names
from onceward.steps.receive import READY, record, targets

Resolution = Literal["keep-first", "accept-as-new", "discard"]


def redrive(context: Context, seq: int, *, actor: str, reason: str) -> Flow[bool]:
    """Give a dead message a new budget; False when it is not dead (any more)."""
    yield context.short()
    rows = yield Query("redrive", {"seq": seq})
    if rows:
        yield _audit("redrive", seq, actor, reason)
    yield COMMIT
    return bool(rows)


def discard(context: Context, seq: int, *, actor: str, reason: str) -> Flow[bool]:
    """Take an unfinished message out for good; False when it is running or finished. Its ledger row stays."""
    yield context.short()
    found = yield Query("key_of", {"seq": seq})
    keys = [key for (key,) in found if key is not None]
    if keys:
        yield Query("lock_keys", {"key_hashes": keys})
    rows = yield Query("discard", {"seq": seq})
    if rows:
        if keys:
            yield Query("promote", {"key_hashes": keys})
        yield _audit("discard", seq, actor, reason)
    yield COMMIT
    return bool(rows)


def resolve(context: Context, case: int, resolution: Resolution, *, actor: str, reason: str) -> Flow[int | None]:
    """Decide about a quarantined body; None when the case is not open (any more).

    Answers the number of the new message for `accept-as-new`, else of the first one.
    """
    yield from know_names(context, context.cache, {context.service})
    yield context.short()
    rows = yield Query("quarantined", {"case_id": case, "limit": 1})
    if not rows:
        yield ROLLBACK
        return None
    seq = int(rows[0][1])
    accepted: int | None = None
    if resolution == "discard":
        changed = yield Query("drop_quarantine", {"case_id": case})
    else:
        if resolution == "accept-as-new":
            accepted = yield from _accept(context, rows[0])
        changed = yield Query(
            "resolve_quarantine", {"case_id": case, "resolution": resolution, "accepted_seq": accepted}
        )
    if not changed:
        yield ROLLBACK
        return None
    yield _audit(resolution, seq, actor, reason)
    yield COMMIT
    return accepted or seq


def _accept(context: Context, row: tuple[Any, ...]) -> Flow[int | None]:
    """The second body as a message of its own: its id is the first id and the hash of its bytes."""
    _, _, digest, kind, version, headers, body, _, _, _, source, stored_id, _, _, _, first_id = row
    original = first_id or identity.readable_id(bytes(stored_id))
    new_id = f"{original[:900]}#{bytes(digest).hex()}"
    delivery = Delivery.of(
        source=source,
        id=new_id,
        type=kind,
        version=version,
        body=bytes(body),
        headers=payload.decode(headers.encode()) if headers else None,
    )
    catalog = context.cache.catalog
    seqs = []
    for target in targets(context, catalog, delivery):
        one = record(0, delivery, target, catalog.names[delivery.source])
        fresh = yield Each("receive", [one], {**READY, "catalog": catalog.version})
        seqs += [seq for _, seq, _ in fresh]
    return seqs[0] if seqs else None


def _audit(action: str, seq: int, actor: str, reason: str) -> Query:
    return Query("add_audit", {"action": action, "seq": seq, "actor": actor, "reason": reason})
