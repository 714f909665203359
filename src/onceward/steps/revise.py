"""Revise: an operator corrects the body of a message that fails, and it runs again.

Invariant: a message stays what it is: id, type, version, key and number do not change, and the hash it came with stays
its identity. The body that it came with and the corrected one are remembered as revisions, so a copy of either is a
duplicate. Body, new budget, revisions and the line in the audit are one commit, guarded by the body that was seen.
"""

from __future__ import annotations

from dataclasses import dataclass

from onceward.domain import identity
from onceward.domain.reference import split, stored_headers
from onceward.errors import ConfigurationError
from onceward.flow import Flow
from onceward.message import Delivery
from onceward.registry import OUTBOX
from onceward.steps.blob import offload, read
from onceward.steps.context import Context, load_catalog
from onceward.steps.operate import returning
from onceward.steps.read import finds_key
from onceward.steps.rows import mismatch_of, target_of
from onceward.stores.moves.messages import StoredMessage
from onceward.stores.moves.operations import KeyOf, Order, Revise

EDITABLE = ("dead", "retrying")
"""The statuses of messages that may be edited: they have failed, and do not run."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A message with its body as it is, and as it is to be."""

    stored: StoredMessage
    before: Delivery
    after: Delivery


def look(context: Context, seq: int, body: bytes) -> Flow[Edited | None]:
    """What an edit would change; None where there is no such message."""
    stored = yield from context.moves.reports.message(seq)
    if stored is None:
        return None
    if stored.type is None or stored.version is None or stored.id is None or stored.body is None:
        raise ConfigurationError(f"message {seq} has no body any more, so there is nothing to edit")
    headers, reference = split(stored.headers)
    whole = bytes(stored.body) if reference is None else (yield from read(context, reference))
    before = Delivery.of(
        source=stored.source,
        id=stored.id,
        type=stored.type,
        version=stored.version,
        headers=headers,
        body=whole,
        destination=stored.destination,
    )
    return Edited(stored, before, before._replace(body=body, hash=identity.body_hash(body)))


def edit(  # noqa: PLR0913 - what an operator decides
    context: Context, seq: int, body: bytes, *, actor: str, reason: str, out_of_order: bool = False
) -> Flow[bool]:
    """Correct the body of a dead or retrying message, and run it again; False where it is neither (any more)."""
    yield from load_catalog(context, context.cache)
    edited = yield from look(context, seq, body)
    found = yield from context.moves.operations.key_of(seq)
    if edited is None or found is None or edited.stored.status not in EDITABLE:
        return False
    if edited.before.hash == edited.after.hash:
        raise ConfigurationError(f"message {seq} has this body already; onceward redrive runs it again as it is")
    _check_place(context, edited, found)
    redrive = returning(context, Order(seq, actor, reason), found, out_of_order=out_of_order)
    after = edited.after
    if context.large.store is not None and found.consumer != OUTBOX:
        (after,) = yield from offload(context, [after])
    request = Revise(
        redrive=redrive,
        seen_body=bytes(edited.stored.body or b""),
        seen_headers=edited.stored.headers,
        body=b"" if after.blob is not None else after.body,
        headers=stored_headers(after.headers, after.blob),
        kept=[mismatch_of(seq, one) for one in (edited.before, edited.after)],
    )
    outcome = yield from context.moves.operations.revise(request)
    if outcome == "changed":
        raise ConfigurationError(f"message {seq} was edited by another operator meanwhile; look at it again")
    if outcome == "passed":
        raise ConfigurationError(
            f"message {seq} is number {found.sequence} of its key {found.key!r}, and a later one is running, applied "
            "or given up: it would only be skipped"
        )
    return outcome == "done"


def _check_place(context: Context, edited: Edited, found: KeyOf) -> None:
    """Refuse a body that belongs elsewhere in the order: key and number of a message are fixed."""
    stored, catalog = edited.stored, context.cache.catalog
    subscription = next(
        (one for one in catalog.by_type.get(stored.type or "", ()) if one.consumer == found.consumer), None
    )
    if subscription is None or (found.key is None and found.sequence is None):  # it has no place, or gets it later
        return
    if not finds_key(context, subscription):
        raise ConfigurationError(
            f"the key of message {stored.seq} is found by a function of its program; edit it with MODULE:ATTR, or in "
            "the program itself"
        )
    before, after = (target_of(context, subscription, one) for one in (edited.before, edited.after))
    if after.key not in (before.key, found.key):
        raise ConfigurationError(
            f"the key of message {stored.seq} is {found.key!r}, and the corrected body has {after.key!r}: type, key "
            "and sequence stay as they are. Discard it, and receive the corrected message under an id of its own"
        )
    if found.sequence is not None and after.sequence not in (before.sequence, found.sequence):
        raise ConfigurationError(
            f"message {stored.seq} is number {found.sequence} of its key, and the corrected body has {after.sequence}: "
            "type, key and sequence stay as they are"
        )
