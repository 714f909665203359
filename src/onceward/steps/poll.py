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
from onceward.flow import Flow
from onceward.message import Delivery
from onceward.steps.context import Cache, Context, know_names
from onceward.steps.receive import receive
from onceward.stores.moves.polls import EndPoll, KeepPoll, PollState, TakePoll


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
        """The same for an operator to look at, where the database has refused it."""
        return replace(self, type=UNIDENTIFIED, id=None, headers={REASON: reason[:300]})

    def digest(self, turn: Turn) -> bytes:
        """The same only for the same answer to the same question."""
        asked = payload.encode(turn.cursor)
        return hashlib.sha256(b"%d:%b%b" % (len(asked), asked, self.body)).digest()


def take(context: Context, source: str, token: str, patience: timedelta, *, early: bool = False) -> Flow[Turn | float]:
    """Take the turn if it is due (or, `early`, no process has it); else answer for how many seconds it is not."""
    cache = context.cache
    if source not in cache.catalog.names:
        yield from know_names(context, cache, [source])
    take = TakePoll(cache.catalog.names[source], token, patience.total_seconds(), early)
    state = yield from context.moves.polls.take_poll(take)
    if not isinstance(state, PollState):
        return state
    asked = None if state.cursor is None else payload.decode_text(state.cursor)
    return Turn(source, token, asked, state.number, state.hash, state.failures)


def keep(context: Context, turn: Turn, answer: Answer, patience: timedelta) -> Flow[Turn | None]:
    """Store a response and move the cursor; None when the turn is no longer ours, and then nothing is stored.

    The same answer to the same question as the time before is no news, and only moves the cursor.
    """
    delivery, digest = answer.delivery(turn), answer.digest(turn)
    is_news = answer.id is not None or digest != turn.hash
    after = replace(turn, cursor=answer.cursor, number=turn.number + is_news, hash=digest)
    yield from know_names(context, context.cache, [context.service])
    cursor, number = payload.encode_text(answer.cursor), context.cache.catalog.names[turn.source]
    moved = KeepPoll(number, turn.token, turn.number, after.number, cursor, digest, patience.total_seconds())
    # What is read there may be rolled back, so nothing of it is remembered.
    stored = receive(context, Cache(context.cache.catalog), [delivery]) if is_news else None
    kept = yield from context.moves.polls.keep_poll(moved, stored)
    return after if kept else None


def end(context: Context, turn: Turn, wait: timedelta, error: str | None = None) -> Flow[None]:
    """Give the turn back; the next one is due after a wait. With an error, one more has failed in a row."""
    failures = 0 if error is None else turn.failures + 1
    number = context.cache.catalog.names[turn.source]
    yield from context.moves.polls.end_poll(EndPoll(number, turn.token, wait.total_seconds(), failures, error))
