"""Erase: a person's data goes out of every place a message is in; the memory that the message came stays (R34).

Invariant: id and hashes are never touched, so a copy is a duplicate before and after. What is unfinished is discarded
first, under the guards of every discard, so nothing without a body can ever be run. The erasure and its line in the
audit are one commit; doing it again changes nothing but adds a line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onceward.domain import identity, payload
from onceward.domain.reference import split
from onceward.errors import BodyLost, InvalidMessage
from onceward.flow import COMMIT, ROLLBACK, Flow, Query
from onceward.message import NO_HEADERS
from onceward.registry import key_at
from onceward.steps.blob import read, remove_unreferred
from onceward.steps.context import Context, once
from onceward.steps.operate import discard

PAGE = 500


@dataclass(frozen=True, slots=True)
class Match:
    """A message that holds what is looked for."""

    seq: int
    type: str
    source: str
    status: str
    """`finished`, `running`, or how it is unfinished: that is discarded before it is erased."""
    quarantined: bool = False
    """It was found in another body that came with the same id."""


@dataclass(frozen=True, slots=True)
class Test:
    """Whether a key, headers as stored, and a body are of the person."""

    holds: Callable[[str | None, str | None, bytes | None], bool]
    reads_bodies: bool


def has_key(key: str) -> Test:
    """Messages with this ordering key."""
    return Test(lambda found, _headers, _body: found == key, reads_bodies=False)


def has_field(path: str, value: str) -> Test:
    """Messages whose field (a path as for `key=`, or `header:NAME`) has this value, compared as text."""

    def test(_key: str | None, headers: str | None, body: bytes | None) -> bool:
        known = payload.decode_text(headers) if headers else NO_HEADERS
        try:
            found = key_at(path, None if path.startswith("header:") else payload.decode(bytes(body or b"null")), known)
            return found is not None and identity.key_text(found) == value
        except InvalidMessage:
            return False  # what is no JSON has no fields

    return Test(test, reads_bodies=not path.startswith("header:"))


def search(context: Context, test: Test) -> Flow[list[Match]]:
    """Every message that holds what is looked for: live, finished, dead, outgoing, in quarantine."""
    found: dict[int, Match] = {}
    after = 0
    while True:
        (rows,) = yield from once(context, Query("bodies_after", {"after": after, "limit": PAGE}))
        for seq, kind, source, key, headers, body, status in rows:
            if test.holds(key, headers, (yield from _whole(context, test, headers, body))):
                found[seq] = Match(seq, kind, source, status)
        if len(rows) < PAGE:
            break
        after = rows[-1][0]
    after = 0
    while True:
        (rows,) = yield from once(context, Query("cases_after", {"after": after, "limit": PAGE}))
        for _, seq, kind, source, key, headers, body, status in rows:
            if seq not in found and test.holds(key, headers, body):
                found[seq] = Match(seq, kind, source, status, quarantined=True)
        if len(rows) < PAGE:
            return sorted(found.values(), key=lambda match: match.seq)
        after = rows[-1][0]


def _whole(context: Context, test: Test, headers: str | None, body: bytes | None) -> Flow[bytes | None]:
    """A body wherever it is. The search ends where the blob store is away: it must not miss anything."""
    _, reference = split(headers) if test.reads_bodies else ({}, None)
    if reference is None:
        return body
    try:
        return (yield from read(context, reference))
    except BodyLost:
        return None  # there is nothing left of it


def same_id(context: Context, source: str, message_id: str) -> Flow[list[int]]:
    """The numbers of an id, for every consumer, and of what their handlers sent."""
    params = {"source": source, **identity.stored_range(message_id)}
    (rows,) = yield from once(context, Query("same_id", params))
    return sorted(seq for (seq,) in rows)


def erase(context: Context, seq: int, *, actor: str, reason: str) -> Flow[bool]:
    """Erase one message; False when it is running, waits behind another number of its key, or is not there."""
    yield from discard(context, seq, actor=actor, reason=reason)
    yield context.short()
    rows: list[Any] = yield Query("lock_finished", {"seq": seq})
    if not rows:
        yield ROLLBACK
        return False
    blobs = [name for name in rows[0][1:] if name is not None]
    yield Query("erase", {"seq": seq})
    yield Query("add_audit", {"action": "erase", "seq": seq, "actor": actor, "reason": reason})
    yield COMMIT
    yield from remove_unreferred(context, blobs)
    return True
