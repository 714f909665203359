"""Explain: everything that ever happened to one message, as one list in order of time.

Read only. Each event says what happened, in a sentence; it is made from the `MessageDetail` of `admin/messages.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from onceward.admin import messages, overview
from onceward.admin.messages import MessageDetail
from onceward.domain import identity
from onceward.domain.pauses import PauseRow
from onceward.domain.text import count
from onceward.flow import Flow
from onceward.steps.context import Context
from onceward.stores.moves.messages import Ahead

Kind = Literal["delivery", "duplicate", "mismatch", "failure", "crash", "effect", "sent", "action", "finish", "next"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, or will."""

    at: datetime | None
    """None: not a moment, but how things are now."""
    kind: Kind
    what: str
    error: str = ""
    """How it failed; may quote the message, as `detail` may."""
    detail: str = ""
    """A traceback, for example."""
    seq: int | None = None
    """The other message that this is about."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One message and its timeline."""

    message: MessageDetail
    events: tuple[Event, ...]
    same_id: tuple[int, ...]
    """The numbers of the other messages with its id: for other consumers, or from another source."""


def explain(context: Context, seq: int) -> Flow[Explanation | None]:
    """The timeline of a message."""
    detail = yield from messages.detail(context, seq)
    if detail is None:
        return None
    known = yield from messages.find_anywhere(context, detail.id)
    ahead = yield from context.moves.reports.ahead(seq)
    pause = yield from overview.pause_of(context, detail.consumer, detail.type, detail.destination)
    events = sorted(
        [*_events(detail), *_waits(detail, ahead), *_stopped(context, detail, pause)],
        key=lambda event: (event.at is None, event.at and event.at.timestamp()),
    )
    return Explanation(detail, tuple(events), tuple(number for number in known if number != seq))


def _events(detail: MessageDetail) -> Iterator[Event]:
    yield from _arrivals(detail)
    for attempt in detail.history:
        charged = "" if attempt.charged else ", not charged"
        by = f" on worker {attempt.worker}" if attempt.worker else ""
        code = f", code {attempt.code_version}" if attempt.code_version else ""
        if attempt.kind == "crash":
            yield Event(attempt.at, "crash", f"{attempt.error}{code}")
            continue
        what = f"attempt {attempt.attempt} failed{by}{code}{charged}"
        yield Event(attempt.at, "failure", what, attempt.error, attempt.traceback or "")
    for effect in detail.effects:
        yield Event(effect.started_at, "effect", f"external call {effect.name!r} begun, under the key {effect.key}")
        if effect.finished_at is not None:
            yield Event(effect.finished_at, "effect", f"external call {effect.name!r} done, its result recorded")
    for sent in detail.sent:
        # Written in the handler's own transaction, so at the moment of the commit.
        what = f"sent {sent.type} to {sent.to or 'default'} with id {sent.id}"
        yield Event(detail.finished_at, "sent", what, seq=sent.seq)
    for action in detail.actions:
        reason = f": {action.reason}" if action.reason else ""
        yield Event(action.at, "action", f"{action.action} by {action.actor}{reason}")
    yield from _end(detail)


def _arrivals(detail: MessageDetail) -> Iterator[Event]:
    if detail.cause is not None:
        what = f"sent by the handler of message {detail.cause}, in its own commit"
        yield Event(detail.received_at, "delivery", what, seq=detail.cause)
    elif detail.hash == identity.UNKNOWN_HASH.hex():
        what = f"handled elsewhere: its id was imported for {detail.source}, and its content is not known here"
        yield Event(detail.received_at, "delivery", what)
    else:
        yield Event(detail.received_at, "delivery", f"first delivery from {detail.source}, stored and committed")
    if detail.scheduled_at is not None:
        yield Event(detail.received_at, "delivery", f"scheduled for {detail.scheduled_at:%Y-%m-%d %H:%M:%S} UTC")
    if detail.duplicates and detail.first_duplicate_at and detail.last_duplicate_at:
        late = detail.last_duplicate_at - detail.received_at
        copies = count(detail.duplicates, "copy")
        yield Event(detail.first_duplicate_at, "duplicate", f"first of {copies} suppressed")
        what = f"latest of {copies} suppressed, {late.total_seconds():.1f} s after the first delivery"
        yield Event(detail.last_duplicate_at, "duplicate", what)
    for case in detail.cases:
        if case.resolution == "revision":
            came = "the body it came with is kept as a revision" if case.kind == "type" else "its body was corrected"
            copies = f"; {case.copies} copies of it are duplicates" if case.copies else ""
            yield Event(case.first_at, "action", f"{came}: {case.type} version {case.version}{copies}")
            continue
        other = f"as {case.type} version {case.version}" if case.kind == "type" else "with other bytes"
        what = f"the id came again {other}, {count(case.copies, 'time')}: mismatch {case.case} in quarantine"
        decided = f", decided: {case.resolution}" if case.resolution else ", not decided yet"
        yield Event(case.first_at, "mismatch", what + decided, seq=case.accepted_seq)


def _waits(detail: MessageDetail, ahead: Ahead | None) -> Iterator[Event]:
    """What a waiting message waits for."""
    if detail.status != "waiting":
        return
    if ahead:
        seq, state, kind = ahead
        yield Event(None, "next", f"waits behind an earlier message of its key ({kind}), which is {state}:", seq=seq)
    else:
        until = f", until {detail.due_at:%Y-%m-%d %H:%M:%S} UTC" if detail.due_at else ""
        yield Event(None, "next", f"waits for the number before it in its key{until}")


def _stopped(context: Context, detail: MessageDetail, pause: PauseRow | None) -> Iterator[Event]:
    """What an operator has paused, so that it does not run."""
    if pause is not None and detail.status in ("due", "retrying", "scheduled", "waiting"):
        resume = context.hint("resume", f"--{pause.subject}", "--reason TEXT")
        yield Event(None, "next", f"it does not run: {pause.subject} is {pause.told}; go on with: {resume}")


def _end(detail: MessageDetail) -> Iterator[Event]:
    if detail.finished_at is not None:
        code = f", code {detail.code_version}" if detail.code_version else ""
        what = "finished" if detail.status == "done" else detail.status
        by = f"by worker {detail.finished_by}" if detail.finished_by else "with a transaction of its caller"
        yield Event(detail.finished_at, "finish", f"{what}: effects committed {by}{code}")
    next_step = {
        "due": "may run now; any worker takes it",
        "running": f"worker {detail.worker} has it",
        "retrying": f"will be tried again at {detail.due_at:%Y-%m-%d %H:%M:%S} UTC" if detail.due_at else "",
        "scheduled": f"joins its key at {detail.due_at:%Y-%m-%d %H:%M:%S} UTC"
        if detail.due_at and detail.key
        else "waits for its time",
        "unhandled": "waits for a program that handles its type",
        "dead": "not tried again: an operator redrives, unblocks or discards it",
    }.get(detail.status)
    if next_step:
        yield Event(None, "next", next_step)
