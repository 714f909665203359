"""Settle: what becomes of a message whose attempt failed, written under its note, with the attempt's story.

Invariant: the decision is pure (`retry.decide`) and its writing is guarded: when the note is gone, another
worker has the message and nothing is written.
"""

from __future__ import annotations

import logging
import os
import random
import traceback as tracebacks
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from onceward.domain.fingerprint import fingerprint, kind_of
from onceward.errors import BlobsUnavailable, RightsMissing, StoreConflict, StoreError, StoreUnavailable
from onceward.flow import COMMIT, ROLLBACK, Flow, Query
from onceward.message import Delivery, Message
from onceward.registry import Handler
from onceward.retry import Again, Dead, RetryPolicy, text_of
from onceward.steps.context import Context, once
from onceward.steps.group import Failure, failure_of
from onceward.steps.lane import About, Claimed, Lane
from onceward.steps.read import KEY_FUNCTION

log = logging.getLogger("onceward")
T = TypeVar("T")

MAX_ERROR = 2_000
MAX_TRACEBACK = 8_000
UNCHARGED = timedelta(days=3)
"""For how long errors of the database are not charged to a message whose policy has no maximum age."""
MOST_UNCHARGED = 10
"""So often an error of the database is not charged to a message; that takes some five minutes."""
LONGEST_UNCHARGED = 60.0
"""How many seconds pass at most until such a message is tried again."""
OFTEN = 5
"""From this failure on a message is an error in the log, not a warning."""
MOST_HASTENED = 1_000
"""In one transaction."""


def settle(lane: Lane, failure: Failure) -> Flow[None]:
    """Charge a message with a failed attempt, in a transaction of its own: again later, or dead.

    A text that the database refuses is left out; where it refuses even that, the message is put off, uncharged: what
    belongs to one message must not end the work on the others.
    """
    message = failure.message
    try:
        yield from written(story_of(lane, failure), partial(_settle, lane, failure))
    except (StoreUnavailable, StoreConflict, RightsMissing):
        raise
    except StoreError as error:
        yield ROLLBACK
        yield from put_off(lane, [message], LONGEST_UNCHARGED)
        message.failed = failure.error, Again(timedelta(seconds=LONGEST_UNCHARGED))
        what = "message #%d failed, and the database refuses to store that; it is tried again: %s"
        log.error(what, message.seq, error)  # noqa: TRY400 - the traceback says nothing


def written(story: dict[str, Any], write: Callable[[dict[str, Any]], Flow[T]]) -> Flow[T]:
    """Write the story of a failed attempt; where the database refuses it, without its text."""
    try:
        return (yield from write(story))
    except (StoreUnavailable, StoreConflict, RightsMissing):
        raise
    except StoreError:
        yield ROLLBACK
        return (yield from write(_without_text(story)))


def _settle(lane: Lane, failure: Failure, story: dict[str, Any]) -> Flow[None]:
    message = failure.message
    keys = [message.key_hash] if failure.leaves_key else []
    yield lane.context.short()
    if keys:
        yield Query("lock_keys", {"key_hashes": keys})
        yield Query("advance", {"seqs": [message.seq]})
    rows = yield settle_query(failure)
    if not rows:  # another worker has it: nothing of this is true any more
        yield ROLLBACK
        return
    if keys:
        yield Query("promote", {"key_hashes": keys})
    yield Query("add_attempt", story)
    yield COMMIT
    tell(lane, failure, story)


def settle_query(failure: Failure) -> Query:
    """The statement that charges a message; where its key goes on without it, the key lock is held."""
    message = failure.message
    note = {"seq": message.seq, "worker": message.worker, "token": message.token}
    return Query("settle", {**note, **columns(failure.decision), "detach": failure.leaves_key})


def story_of(lane: Lane, failure: Failure) -> dict[str, Any]:
    """The row of its failed attempt."""
    message, error, decision = failure
    attempt = message.attempts + 1
    return attempt_row(
        lane.context, message.seq, attempt=attempt, error=error, decision=decision, worker=message.worker
    )


def tell(lane: Lane, failure: Failure, story: dict[str, Any]) -> None:
    """A failure is committed: the log says so, and whoever waits for the message may know."""
    message = failure.message
    message.failed = failure.error, failure.decision
    about = message.call.message if message.call else message.about
    log_failure(lane.context, about, story, failure.decision, message.policy)


def postpone(lane: Lane, message: Claimed, error: BaseException) -> Flow[None]:
    """The database was at fault: try again, uncharged, each time later; not for ever, and not when it is too old."""
    if timedelta(seconds=message.age) >= (message.policy.max_age or UNCHARGED):
        yield from settle(lane, failure_of(message, error))
        return
    # What the blob store's absence does to one message it does to all; other errors may come with this one alone.
    most = None if isinstance(error, BlobsUnavailable) else MOST_UNCHARGED
    delay = {"delay": random.uniform(0.05, 1.0), "longest": LONGEST_UNCHARGED, "most": most}  # noqa: S311 - no secret
    note = {"seq": message.seq, "worker": message.worker, "token": message.token}
    (rows,) = yield from once(lane.context, Query("postpone", {**note, **delay}))
    if rows:
        message.failed = error, Again(timedelta(seconds=rows[0][1]))
    else:
        yield from settle(lane, failure_of(message, error))


def put_off(lane: Lane, messages: Sequence[Claimed], delay: float) -> Flow[None]:
    """Give messages back, uncharged, not to be claimed for so many seconds."""
    note = {"worker": messages[0].worker, "token": messages[0].token}
    yield from once(lane.context, Query("put_off", {"seqs": [m.seq for m in messages], **note, "delay": delay}))


def move(lane: Lane, message: Claimed) -> Flow[None]:
    """Put a message where its handler says it belongs in the order; it is claimed anew, by the rules of its key."""
    place = message.elsewhere
    assert place is not None  # noqa: S101 - the caller has looked
    keys = sorted({key for key in (message.key_hash, place.key_hash) if key is not None})
    note = {"seq": message.seq, "worker": message.worker, "token": message.token}
    yield lane.context.short()
    yield Query("lock_keys", {"key_hashes": keys})
    if not (yield Query("move", {**note, "key_hash": place.key_hash, "sequence": place.sequence})):
        yield ROLLBACK  # another worker has it
        return
    named = {"key": place.key, "aggregate": place.aggregate, "key_from": "worker"}
    yield Query("set_body_key", {"seq": message.seq, **named})
    yield Query("promote", {"key_hashes": keys})
    reason = "its handler finds another key or number than the program that received it; others may have run before it"
    yield Query("add_audit", {"action": "move", "seq": message.seq, "actor": "onceward", "reason": reason})
    yield COMMIT
    log.warning("message %d was moved to its place in its key: %s", message.seq, reason)


def release(lane: Lane, messages: Sequence[Claimed]) -> Flow[None]:
    """Give messages back, uncharged."""
    if messages:
        yield from once(lane.context, release_query(messages))


def hasten(lane: Lane, handler: Handler) -> Flow[None]:
    """What a handler depends on is back: messages that failed meanwhile do not wait for the end of their delays."""
    mine = [one for one in lane.subscriptions if one.consumer == handler.consumer]
    which = {
        "subscriptions": [one.id for one in mine if lane.outgoing or one.type == handler.type],
        "outgoing": lane.outgoing,
        "destination": lane.destination,
        "limit": MOST_HASTENED,
    }
    hastened = MOST_HASTENED
    while hastened == MOST_HASTENED:
        (rows,) = yield from once(lane.context, Query("hasten", which))
        hastened = len(rows)
    lane.ring()


def release_query(messages: Sequence[Claimed]) -> Query:
    """The statement that gives messages back."""
    note = {"worker": messages[0].worker, "token": messages[0].token}
    return Query("release_some", {"seqs": [message.seq for message in messages], **note})


def log_failure(
    context: Context,
    message: Message | Delivery | About | None,
    story: dict[str, Any],
    decision: Again | Dead,
    policy: RetryPolicy,
) -> None:
    """Say in the log what became of a message that failed, and where to read more.

    Not the error's text, which may quote what is in the message; in development there is nothing to hide.
    """
    facts = {name: story[name] for name in ("seq", "attempt", "worker", "fingerprint")}
    facts["error"] = kind_of(story["error"])
    which = f"message #{story['seq']}"
    if message is not None:
        facts |= {"message_id": message.id, "source": message.source, "type": message.type}
        which = f"{message.type} #{story['seq']} ({message.id} from {message.source})"
    log.log(
        logging.ERROR if isinstance(decision, Dead) or story["attempt"] >= OFTEN else logging.WARNING,
        "%s failed: %s, attempt %d of %d, %s. Details: onceward explain %s %d",
        which,
        story["error"] if os.environ.get("ONCEWARD_ENV") == "development" else facts["error"],
        story["attempt"],
        policy.attempts,
        "it is dead" if isinstance(decision, Dead) else f"next try in {_duration(decision.delay)}",
        context.program,
        story["seq"],
        extra={"onceward": facts},
    )


def _duration(time: timedelta) -> str:
    seconds = time.total_seconds()
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.1f} s".replace(".0 ", " ")


def columns(decision: Again | Dead) -> dict[str, Any]:
    """A decision as the columns of a queue row."""
    if isinstance(decision, Again):
        return {"state": "retry", "delay": decision.delay.total_seconds()}
    return {"state": "dead", "delay": None}


def attempt_row(  # noqa: PLR0913 - the columns of the row
    context: Context, seq: int, *, attempt: int, error: BaseException, decision: Again | Dead, worker: int
) -> dict[str, Any]:
    """The story of a failed attempt; short enough to keep, without local variables, which may hold secrets."""
    text = f"{type(error).__name__}: {text_of(error)}"
    if isinstance(decision, Dead) and decision.reason not in text:
        text = f"{text} ({decision.reason})"
    told = [note for note in getattr(error, "__notes__", ()) if note.startswith(KEY_FUNCTION)]
    text = storable("; ".join([text, *told]))[:MAX_ERROR]
    trace = "".join(tracebacks.format_exception(error))
    return {
        "seq": seq,
        "attempt": attempt,
        "kind": "error",
        "charged": True,
        "error": text,
        "traceback": storable(trace)[-MAX_TRACEBACK:],
        "worker": worker,
        "code_version": context.code_version,
        "fingerprint": fingerprint(text),
    }


def _without_text(story: dict[str, Any]) -> dict[str, Any]:
    """The story of an attempt whose text the database refuses."""
    kind = ascii(kind_of(story["error"])).strip("'")
    text = f"{kind}: its text could not be stored"
    return {**story, "error": text, "traceback": "", "fingerprint": fingerprint(text)}


def storable(text: str) -> str:
    """Text that every database can keep: no NUL, no half characters."""
    return text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()
