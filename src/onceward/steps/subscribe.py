"""Tell the database what this process handles, and take up messages that came before anybody handled their type.

Invariant: a message of an unknown type is never lost and never run twice: it waits as `unhandled`, and fanning
it out replaces that row by one per consumer in one transaction.
"""

from __future__ import annotations

from typing import Any

from onceward import identity, payload
from onceward.flow import COMMIT, Each, Flow, Query
from onceward.message import NO_HEADERS, Delivery
from onceward.registry import ANY_TYPE, OUTBOX, Subscription
from onceward.steps.context import Cache, Context, know_names, know_numbers, load_catalog
from onceward.steps.receive import READY, Target, identity_of, record, targets


def subscribe(context: Context, cache: Cache) -> Flow[None]:
    """Write this process's handlers into the subscriptions."""
    handlers = list(context.registry)
    yield from know_names(context, cache, {context.service, OUTBOX, *(handler.consumer for handler in handlers)})
    relay = {"consumer": cache.catalog.names[OUTBOX], "type": ANY_TYPE, "on_dead": "block"}
    wanted = {(OUTBOX, ANY_TYPE): {**relay, "key_path": None, "key_function": False, "sequence": None}}
    for handler in handlers:
        wanted[handler.consumer, handler.type] = {
            "consumer": cache.catalog.names[handler.consumer],
            "type": handler.type,
            "key_path": handler.key if isinstance(handler.key, str) else None,
            "key_function": callable(handler.key),
            "sequence": handler.sequence,
            "on_dead": handler.on_dead,
        }
    yield context.short()
    changed = False
    for _, params in sorted(wanted.items()):
        rows = yield Query("subscribe", params)
        changed = changed or bool(rows)
    if changed:
        yield Query("touch_catalog", {"crash": False})
    yield COMMIT
    yield from load_catalog(context, cache)


def fan_out(context: Context) -> Flow[int]:
    """Turn unhandled messages whose type is known by now into one row per consumer; answers how many."""
    yield context.short()
    waiting = yield Query("unhandled_types")
    types = [name for (name,) in waiting if _can_place(context, name)]
    if not types:
        yield COMMIT
        return 0
    rows = yield Query("unhandled", {"types": types})
    yield from know_numbers(context.cache, (number for row in rows for number in (row[1], row[8])))
    moved = 0
    for row in rows:
        moved += yield from _fan_out_one(context, row)
    yield COMMIT
    if moved < len(rows):  # under an outdated catalog nothing is copied; the next round has a newer one
        yield from load_catalog(context, context.cache)
    return moved


def _fan_out_one(context: Context, row: tuple[Any, ...]) -> Flow[bool]:
    """Give every consumer its row; False when that was refused, and then nothing is changed."""
    seq, source, message_id, message_type, version, key, headers, body, consumer, stored_id, digest, place = row
    catalog = context.cache.catalog
    delivery = Delivery(
        source=catalog.numbers[source],
        id=message_id,
        type=message_type,
        version=version,
        key=key,
        headers=payload.decode_text(headers) if headers else NO_HEADERS,
        body=bytes(body),
        hash=bytes(digest),
        position=place,  # a copy is younger than what it is a copy of, and keeps its place all the same
    )
    own = None
    for target in targets(context, catalog, delivery):
        if target.consumer_id == consumer:
            own = target
            continue
        copy = record(0, delivery, target, source) | {"stored_id": bytes(stored_id)}
        there = yield Each("receive", [copy], {**READY, "catalog": catalog.version})
        there = there or (yield Each("known", [identity_of(copy)]))
        if not there:
            return False
    if own is None:
        yield from _remove(context, seq, catalog.numbers[consumer], key)
    else:
        yield from _adopt(seq, own)
    return True


def _can_place(context: Context, message_type: str) -> bool:
    """Whether this process knows every consumer of a type and can find their keys."""
    subscriptions = context.cache.catalog.by_type.get(message_type, ())
    return bool(subscriptions) and all(
        not subscription.key_function or _finds_key(context, subscription) for subscription in subscriptions
    )


def _finds_key(context: Context, subscription: Subscription) -> bool:
    handler = context.registry.of_type(subscription.consumer, subscription.type)
    return handler is not None and callable(handler.key)


def _remove(context: Context, seq: int, consumer: str, key: str | None) -> Flow[None]:
    """The service's own row of a type that only other consumers want; whatever waits behind it goes on."""
    keys = [] if key is None else [identity.key_hash(context.prefix, consumer, key)]
    if keys:
        yield Query("lock_keys", {"key_hashes": keys})
    yield Query("remove_unhandled", {"seq": seq})
    if keys:
        yield Query("promote", {"key_hashes": keys})


def _adopt(seq: int, target: Target) -> Flow[None]:
    place = {"key_hash": target.key_hash, "sequence": target.sequence}
    keys = [] if target.key_hash is None else [target.key_hash]
    if keys:  # it may move back in its key, and then others go on before it
        yield Query("lock_keys", {"key_hashes": keys})
    yield Query("adopt", {"seq": seq, "subscription": target.subscription, **place})
    if keys:
        yield Query("promote", {"key_hashes": keys})
    yield Query("set_body_key", {"seq": seq, "key": target.key})
