"""Poll: whose turn it is to ask an API, and each answer stored with the cursor after it, in one transaction (R40).

Invariant: the cursor moves if, and only if, the response before it is committed, and only for the process whose token
the row carries. So whatever dies in between, the next turn asks from where the stored responses end: nothing is
skipped, and what is asked for again was never stored.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from onceward.domain import payload
from onceward.domain.identity import REASON, UNIDENTIFIED
from onceward.flow import COMMIT, ROLLBACK, Begin, Commit, Flow, Query, T
from onceward.message import Delivery
from onceward.steps.context import Cache, Context, know_names, once
from onceward.steps.receive import receive


@dataclass(frozen=True, slots=True)
class Turn:
    """A poll that is ours for a while."""

    source: str
    token: str
    cursor: Any
    """Where the stored responses end; None at the very first."""
    number: int
    """How many responses were ever stored."""
    hash: bytes | None
    """Of the last question and its answer."""
    failures: int
    """How many turns in a row have failed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, before it is stored."""

    type: str
    body: bytes
    cursor: Any
    id: str | None
    headers: dict[str, str]

    def delivery(self, turn: Turn) -> Delivery:
        """The message that it becomes: named by its producer, else by its number, which no other response gets."""
        name = f"response {turn.number + 1}" if self.id is None else self.id
        return Delivery.of(source=turn.source, id=name, type=self.type, body=self.body, headers=self.headers)

    def without_names(self, reason: str) -> Answer:
        """The same for a person to look at, where the database has refused it."""
        return replace(self, type=UNIDENTIFIED, id=None, headers={REASON: reason[:300]})

    def digest(self, turn: Turn) -> bytes:
        """The same only for the same answer to the same question."""
        asked = payload.encode(turn.cursor)
        return hashlib.sha256(b"%d:%b%b" % (len(asked), asked, self.body)).digest()


def take(context: Context, source: str, token: str, patience: timedelta, *, early: bool = False) -> Flow[Turn | float]:
    """Take the turn if it is due (or, `early`, nobody has it); else answer for how many seconds it is not."""
    cache = context.cache
    if source not in cache.catalog.names:
        yield from know_names(context, cache, [source])
    mine = {"source": cache.catalog.names[source]}
    _, rows, left = yield from once(
        context,
        Query("add_poll", mine),
        Query("take_poll", {**mine, "token": token, "patience": patience.total_seconds(), "early": early}),
        Query("poll_left", mine),
    )
    if not rows:
        return float(left[0][0])
    cursor, number, digest, failures = rows[0]
    asked = None if cursor is None else payload.decode_text(cursor)
    return Turn(source, token, asked, number, None if digest is None else bytes(digest), failures)


def keep(context: Context, turn: Turn, answer: Answer, patience: timedelta) -> Flow[Turn | None]:
    """Store a response and move the cursor; None when the turn is no longer ours, and then nothing is stored.

    The same answer to the same question as the time before is no news, and only moves the cursor.
    """
    delivery, digest = answer.delivery(turn), answer.digest(turn)
    is_news = answer.id is not None or digest != turn.hash
    after = replace(turn, cursor=answer.cursor, number=turn.number + is_news, hash=digest)
    cursor = payload.encode_text(answer.cursor)
    mine = {"source": context.cache.catalog.names[turn.source], "token": turn.token}
    moved = {"number": turn.number, "next": after.number, "cursor": cursor, "hash": digest}
    yield from know_names(context, context.cache, [context.service])
    yield context.short()
    rows = yield Query("keep_poll", {**mine, **moved, "patience": patience.total_seconds()})
    if not rows:
        yield ROLLBACK
        (state,) = yield from once(context, Query("poll_state", mine))
        # A commit whose answer was lost leaves the number that it wrote.
        return after if state == [(after.number,)] else None
    if is_news:
        # What is read here may be rolled back, so nothing of it is remembered.
        yield from inside(receive(context, Cache(context.cache.catalog), [delivery]))
    yield COMMIT
    return after


def end(context: Context, turn: Turn, wait: timedelta, error: str | None = None) -> Flow[None]:
    """Give the turn back; the next one is due after a wait. With an error, one more has failed in a row."""
    mine = {"source": context.cache.catalog.names[turn.source], "token": turn.token}
    failures = 0 if error is None else turn.failures + 1
    ended = {"wait": wait.total_seconds(), "failures": failures, "error": error}
    yield from once(context, Query("end_poll", {**mine, **ended}))


def inside(flow: Flow[T]) -> Flow[T]:
    """Run a step inside the transaction that is open: where it would begin or commit its own, nothing happens."""
    try:
        request = next(flow)
        while True:
            parts = request if isinstance(request, tuple) else (request,)
            kept = tuple(part for part in parts if not isinstance(part, Begin | Commit))
            try:
                answers = iter((yield kept) if kept else ())
            except BaseException as error:  # noqa: BLE001 - it belongs to the step that asked
                request = flow.throw(error)
                continue
            answer = tuple(None if isinstance(part, Begin | Commit) else next(answers) for part in parts)
            request = flow.send(answer if isinstance(request, tuple) else answer[0])
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # StopIteration cannot carry the type
