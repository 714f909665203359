"""What people do to messages: redrive, discard, and decide about a mismatch. Guarded, repeatable, and written down.

Invariant: the action and its line in the audit are one commit; doing it twice changes nothing the second time.
"""

from __future__ import annotations

from typing import Any, Literal

from onceward.domain import identity, payload
from onceward.errors import ConfigurationError, StoreConflict
from onceward.flow import COMMIT, ROLLBACK, Each, Flow, Query
from onceward.message import Delivery
from onceward.steps.attempt import outgoing_key_hash
from onceward.steps.context import Context, know_names, load_catalog, once
from onceward.steps.presence import leave_key
from onceward.steps.receive import READY, identity_of, record, targets

MAX_ORIGINAL = 900
"""So many bytes of an id are kept in the id made from it, which has 82 more and must be acceptable too."""
AT_ONCE = 500
"""So many cases are decided in one transaction at most."""

Resolution = Literal["keep-first", "accept-as-new", "discard"]


def redrive(context: Context, seq: int, *, actor: str, reason: str, out_of_order: bool = False) -> Flow[bool]:
    """Give a dead message a new budget; False when it is not dead (any more).

    One whose key went on without it is refused unless `out_of_order` says that this is meant, and refused all the same
    when its number within the key has been passed: it would only be skipped.
    """
    yield context.short()
    found = yield Query("key_of", {"seq": seq})
    seen_key = found[0][0] if found else None
    key_hash = _key_hash(context, found[0]) if found else None
    returns = key_hash != seen_key
    counted = returns and found[0][6] is not None
    if returns and not out_of_order:
        yield ROLLBACK
        raise ConfigurationError(
            f"message {seq} was left behind by its key {found[0][1]!r}: later ones may have run already. "
            "Redrive it with out_of_order=True (--out-of-order) if that is harmless, or discard it"
        )
    if counted:
        yield Query("lock_keys", {"key_hashes": [key_hash]})
    rows = yield Query("redrive", {"seq": seq, "key_hash": key_hash, "seen_key": seen_key})
    if not rows:
        yield ROLLBACK
        return False
    if counted and not (yield Query("retreat", {"seq": seq, "key_hash": key_hash})):
        yield ROLLBACK
        raise ConfigurationError(
            f"message {seq} is number {found[0][6]} of its key {found[0][1]!r}, and a later one is running, applied or "
            "given up: it would only be skipped. Redrive the later ones that were given up first, or discard it"
        )
    yield _audit("redrive", seq, actor, reason)
    yield COMMIT
    return True


def _key_hash(context: Context, row: tuple[Any, ...]) -> int | None:
    """The key a message belongs to, also where it was detached from it."""
    _, key, aggregate, consumer, outgoing, destination, _ = row
    if key is None:
        return None
    if outgoing:
        return outgoing_key_hash(context.prefix, destination, key)
    return identity.key_hash(context.prefix, consumer, key, aggregate)


def discard(context: Context, seq: int, *, actor: str, reason: str) -> Flow[bool]:
    """Take an unfinished message out for good; False when it is running or finished. Its ledger row stays."""
    yield context.short()
    found = yield Query("key_of", {"seq": seq})
    keys = [row[0] for row in found if row[0] is not None]
    if keys:
        yield Query("lock_keys", {"key_hashes": keys})
        yield Query("advance", {"seqs": [seq]})
    rows = yield Query("discard", {"seq": seq, "key_hash": keys[0] if keys else None})
    if not rows:
        yield ROLLBACK
        return False
    if keys:
        yield Query("promote", {"key_hashes": keys})
    yield _audit("discard", seq, actor, reason)
    yield COMMIT
    return True


def release(context: Context, seq: int, *, actor: str, reason: str) -> Flow[bool]:
    """Let a key go on without its dead message, which stays dead; False when it does not hold a key (any more)."""
    yield context.short()
    found = yield Query("key_of", {"seq": seq})
    done = False
    if found and found[0][0] is not None:
        yield Query("lock_keys", {"key_hashes": [found[0][0]]})
        done = yield from leave_key(seq, found[0][0])
    if not done:
        yield ROLLBACK
        return False
    yield _audit("release", seq, actor, reason)
    yield COMMIT
    return True


RUNNING = 10
"""For so many times the usual limit of a handler, one that has left no other trace is taken to be running."""


def settle_effect(  # noqa: PLR0913 - what a person has to say
    context: Context, key: str, seq: int, *, happened: bool, result: Any, actor: str, reason: str
) -> Flow[bool]:
    """Say what became of an effect whose outcome was unknown; False when that is known by now, or its message runs.

    Whoever runs it has noted it before it looks at the effect, and looks under the lock that is taken here first: it
    is seen here, or it sees what was decided.
    """
    yield context.short()
    yield Query("lock_effect", {"key": key})
    patience = RUNNING * context.settings.handler_timeout.total_seconds()
    if (yield Query("effect_held", {"key": key, "patience": patience})):
        yield ROLLBACK
        return False
    if happened:
        text = payload.encode_text(result)
        rows = yield Query("effect_done", {"key": key, "result": text})
    else:
        rows = yield Query("effect_undone", {"key": key})
    if rows:
        yield _audit("effect happened" if happened else "effect did not happen", seq, actor, reason)
    yield COMMIT
    return bool(rows)


def resolve(context: Context, case: int, resolution: Resolution, *, actor: str, reason: str) -> Flow[int | None]:
    """Decide about a quarantined body; None when the case is not open (any more).

    Answers the number of the new message for `accept-as-new`, else of the first one.
    """
    yield from know_names(context, context.cache, {context.service})
    for _ in range(5):
        yield context.short()
        rows = yield Query("quarantined", {"case_id": case, "limit": 1})
        if not rows:
            yield ROLLBACK
            return None
        accepted = None
        if resolution == "accept-as-new":
            accepted = yield from _accept(context, rows[0])
            if accepted is None:  # under an outdated catalog nothing is stored, and nothing decided
                yield ROLLBACK
                yield from load_catalog(context, context.cache)
                continue
        if not (yield from _close(case, resolution, accepted)):
            yield ROLLBACK
            return None
        # "discard" alone is what becomes of a message; here it is the second body that goes, and the first one stays.
        yield _audit("discard-mismatch" if resolution == "discard" else resolution, int(rows[0][1]), actor, reason)
        yield COMMIT
        return accepted or int(rows[0][1])
    raise StoreConflict("subscriptions keep changing while a message is accepted; try again")


def keep_first(context: Context, source: str, message_type: str, *, actor: str, reason: str) -> Flow[int]:
    """Decide some of the cases in which only the type differs for the first message; answers how many."""
    params = {"source": source, "type": message_type, "actor": actor, "reason": reason, "limit": AT_ONCE}
    (rows,) = yield from once(context, Query("keep_first_types", params))
    return len(rows)


def _close(case: int, resolution: Resolution, accepted: int | None) -> Flow[bool]:
    if resolution == "discard":
        rows = yield Query("drop_quarantine", {"case_id": case})
    else:
        params = {"case_id": case, "resolution": resolution, "accepted_seq": accepted}
        rows = yield Query("resolve_quarantine", params)
    return bool(rows)


def _accept(context: Context, row: tuple[Any, ...]) -> Flow[int | None]:
    """The second body as a message of its own, for the consumer that met it; None under an outdated catalog.

    Its id is the first id, the hash of its bytes, and that of its type: each of the three may be another's too.
    """
    _, _, digest, kind, version, headers, body, _, _, _, source, stored_id, _, _, consumer, first_id, key, *_ = row
    original = first_id or identity.readable_id(bytes(stored_id))
    if len(original.encode()) > MAX_ORIGINAL:
        original = "sha256:" + identity.body_hash(original.encode()).hex()
    delivery = Delivery.of(
        source=source,
        id=f"{original}#{bytes(digest).hex()}.{identity.type_hash(kind, version) % 2**64:016x}",
        type=kind,
        version=version,
        body=bytes(body),
        key=key,
        position=row[20],
        headers=payload.decode_text(headers) if headers else None,
    )
    if source not in context.cache.catalog.names:
        names = yield Query("names")
        context.cache.catalog = context.cache.catalog.learned(names)
    catalog = context.cache.catalog
    # A consumer that has stopped to want the type is asked for no more: then it is for whoever wants it now.
    wanted = targets(context, catalog, delivery)
    target = next((one for one in wanted if one.consumer == consumer), wanted[0])
    one = record(0, delivery, target, catalog.names[delivery.source])
    fresh = yield Each("receive", [one], {**READY, "catalog": catalog.version})
    known = fresh or (yield Each("known", [identity_of(one)]))
    return int(known[0][1]) if known else None


def note_reading(context: Context, seq: int, *, actor: str, reason: str) -> Flow[bool]:
    """Write down that a person is about to see a payload; False where there is no such message."""
    yield context.short()
    found = yield Query("outcome", {"seq": seq})
    if found:
        yield _audit("read", seq, actor, reason)
    yield COMMIT
    return bool(found)


def _audit(action: str, seq: int, actor: str, reason: str) -> Query:
    return Query("add_audit", {"action": action, "seq": seq, "actor": actor, "reason": reason})
