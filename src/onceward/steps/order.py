"""Order: where a message stands in its key, and what its handler's rules say about its key and its number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from onceward.domain import identity
from onceward.errors import InvalidMessage
from onceward.message import Message
from onceward.registry import Handler, Upcaster, key_at
from onceward.retry import VersionGap
from onceward.steps.context import Context
from onceward.steps.read import plain_data, whole_number
from onceward.stores.moves.claims import PASS, Verdict


class Place(NamedTuple):
    """Where a message stands in the order."""

    key: str
    aggregate: str | None
    key_hash: int
    sequence: int | None


def check_key(handler: Handler, key: str | None) -> None:
    """Refuse a message that would run without the order its handler relies on; a function may say that it has none."""
    if key is None and isinstance(handler.key, str) and handler.key_required:
        raise InvalidMessage(
            f"it has no key: nothing is at {handler.key!r}, so it cannot be kept in order; correct key= or the sender "
            "and redrive it, or set key_required=False to run such messages without order"
        )


def elsewhere_in_order(
    context: Context, handler: Handler, message: Message, sequence: int | None, upcasters: Sequence[Upcaster]
) -> Place | None:
    """Where a message belongs by what its handler sees, if not where it is: its receiver may not have upcast it."""
    if callable(handler.key):
        key = identity.key_text(handler.key(message))
    else:
        assert handler.key is not None  # noqa: S101 - the caller has looked
        key = identity.key_text(_seen_at(handler.key, handler, message, upcasters))
    number = None if handler.sequence is None else whole_number(_seen_at(handler.sequence, handler, message, upcasters))
    if key is None or (key, number) == (message.key, sequence):
        return None
    hashed = identity.key_hash(context.prefix, handler.consumer, key, handler.aggregate)
    return Place(key, handler.aggregate, hashed, number)


def _seen_at(path: str, handler: Handler, message: Message, upcasters: Sequence[Upcaster]) -> Any:
    data = message.data
    if (handler.raw or handler.model or upcasters) and not path.startswith("header:"):
        try:
            data = plain_data(message.body, () if handler.raw else upcasters)
        except InvalidMessage:
            return None
    return key_at(path, data, message.headers)


def check_sequence(handler: Handler, sequence: int | None, verdict: Verdict = PASS) -> None:
    """Refuse a message that its number rules out."""
    if verdict.late:
        raise VersionGap(verdict.late)
    if handler.sequence is not None and (sequence is None or sequence < 1):
        raise InvalidMessage(f"there is no whole number at {handler.sequence!r}, by which its key is counted")


def skipped(sequence: int | None) -> str:
    """Why a message is finished without having run."""
    return f"number {sequence} came after a later one of its key was applied"
