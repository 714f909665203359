"""Explain: everything that ever happened to one message, as one list in order of time.

Read only. Each event says what happened, in a sentence; what it is made of is the `Story` of `admin/messages.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from onceward.admin import messages
from onceward.admin.messages import Story
from onceward.flow import Flow, Query
from onceward.steps.context import Context, look

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

    story: Story
    events: tuple[Event, ...]
    same_id: tuple[int, ...]
    """The numbers of the other messages with its id: for other consumers, or from another source."""


def explain(context: Context, seq: int) -> Flow[Explanation | None]:
    """The timeline of a message."""
    story = yield from messages.story(context, seq)
    if story is None:
        return None
    known = yield from messages.find_anywhere(context, story.id)
    (ahead,) = yield from look(context, Query("ahead", {"seq": seq}))
    events = sorted(
        [*_events(story), *_waits(story, ahead)],
        key=lambda event: (event.at is None, event.at and event.at.timestamp()),
    )
    return Explanation(story, tuple(events), tuple(number for number in known if number != seq))


def _events(story: Story) -> Iterator[Event]:
    yield from _arrivals(story)
    for attempt in story.history:
        charged = "" if attempt.charged else ", not charged"
        by = f" on worker {attempt.worker}" if attempt.worker else ""
        code = f", code {attempt.code_version}" if attempt.code_version else ""
        if attempt.kind == "crash":
            yield Event(attempt.at, "crash", f"{attempt.error}{code}")
            continue
        what = f"attempt {attempt.attempt} failed{by}{code}{charged}"
        yield Event(attempt.at, "failure", what, attempt.error, attempt.traceback or "")
    for effect in story.effects:
        yield Event(effect.started_at, "effect", f"external call {effect.name!r} begun, under the key {effect.key}")
        if effect.finished_at is not None:
            yield Event(effect.finished_at, "effect", f"external call {effect.name!r} done, its result recorded")
    for sent in story.sent:
        # Written in the handler's own transaction, so at the moment of the commit.
        what = f"sent {sent.type} to {sent.to or 'default'} with id {sent.id}"
        yield Event(story.finished_at, "sent", what, seq=sent.seq)
    for action in story.actions:
        reason = f": {action.reason}" if action.reason else ""
        yield Event(action.at, "action", f"{action.action} by {action.actor}{reason}")
    yield from _end(story)


def _arrivals(story: Story) -> Iterator[Event]:
    if story.cause is not None:
        what = f"sent by the handler of message {story.cause}, in its own commit"
        yield Event(story.received_at, "delivery", what, seq=story.cause)
    else:
        yield Event(story.received_at, "delivery", f"first delivery from {story.source}, stored and committed")
    if story.duplicates and story.first_duplicate_at and story.last_duplicate_at:
        late = story.last_duplicate_at - story.received_at
        copies = "1 copy" if story.duplicates == 1 else f"{story.duplicates} copies"
        yield Event(story.first_duplicate_at, "duplicate", f"first of {copies} suppressed")
        what = f"latest of {copies} suppressed, {late.total_seconds():.1f} s after the first delivery"
        yield Event(story.last_duplicate_at, "duplicate", what)
    for case in story.cases:
        other = f"as {case.type} version {case.version}" if case.kind == "type" else "with other bytes"
        what = f"the id came {other} ({case.copies} times): case {case.case} in quarantine"
        decided = f", decided: {case.resolution}" if case.resolution else ", not decided yet"
        yield Event(case.first_at, "mismatch", what + decided, seq=case.accepted_seq)


def _waits(story: Story, ahead: list[tuple[int, str, str]]) -> Iterator[Event]:
    """What a waiting message waits for."""
    if story.status != "waiting":
        return
    if ahead:
        seq, state, kind = ahead[0]
        yield Event(None, "next", f"waits behind an earlier message of its key ({kind}), which is {state}:", seq=seq)
    else:
        until = f", until {story.due_at:%Y-%m-%d %H:%M:%S} UTC" if story.due_at else ""
        yield Event(None, "next", f"waits for the number before it in its key{until}")


def _end(story: Story) -> Iterator[Event]:
    if story.finished_at is not None:
        code = f", code {story.code_version}" if story.code_version else ""
        what = "finished" if story.status == "done" else story.status
        yield Event(story.finished_at, "finish", f"{what}: effects committed by worker {story.finished_by}{code}")
    next_step = {
        "due": "may run now; any worker takes it",
        "running": f"in hand of worker {story.worker}",
        "retrying": f"will be tried again at {story.due_at:%Y-%m-%d %H:%M:%S} UTC" if story.due_at else "",
        "unhandled": "waits for a program that handles its type",
        "dead": "needs a person: redrive, release or discard it",
    }.get(story.status)
    if next_step:
        yield Event(None, "next", next_step)
