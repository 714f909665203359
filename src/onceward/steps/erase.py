"""Erase: a person's data goes out of every place a message is in; the memory that the message came stays (R34).

Invariant: id and hashes are never touched, so a copy is a duplicate before and after. What is unfinished is discarded
first, under the guards of every discard, so nothing without a body can ever be run. The erasure and its line in the
audit are one commit; doing it again changes nothing but adds a line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onceward.domain import identity, payload
from onceward.domain.reference import split
from onceward.errors import BodyLost, InvalidMessage
from onceward.flow import Flow
from onceward.message import NO_HEADERS
from onceward.registry import key_at
from onceward.steps.blob import read, remove_unreferred
from onceward.steps.context import Context
from onceward.steps.operate import discard
from onceward.stores.moves.operations import Order

CHUNK = 500


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
        bodies = yield from context.moves.retention.bodies_after(after, CHUNK)
        for one in bodies:
            if test.holds(one.key, one.headers, (yield from _whole(context, test, one.headers, one.body))):
                found[one.seq] = Match(one.seq, one.type, one.source, one.status)
        if len(bodies) < CHUNK:
            break
        after = bodies[-1].seq
    after = 0
    while True:
        cases = yield from context.moves.retention.cases_after(after, CHUNK)
        for case in cases:
            if case.seq not in found and test.holds(case.key, case.headers, case.body):
                found[case.seq] = Match(case.seq, case.type, case.source, case.status, quarantined=True)
        if len(cases) < CHUNK:
            return sorted(found.values(), key=lambda match: match.seq)
        after = cases[-1].case


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
    return (yield from context.moves.retention.same_id(source, **identity.stored_range(message_id)))


def erase(context: Context, seq: int, *, actor: str, reason: str) -> Flow[bool]:
    """Erase one message; False when it is running, waits behind another number of its key, or is not there."""
    yield from discard(context, seq, actor=actor, reason=reason)
    blobs = yield from context.moves.retention.erase(Order(seq, actor, reason))
    if blobs is None:
        return False
    yield from remove_unreferred(context, blobs)
    return True
