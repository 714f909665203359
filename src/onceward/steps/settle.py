"""Settle: what becomes of a message whose attempt failed, written under its claim, with the row of the attempt.

Invariant: the decision is pure (`retry.decide`) and its writing is guarded: when the claim is gone, another
worker has the message and nothing is written.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Literal, TypeVar

from onceward.domain.activity import Series
from onceward.domain.fingerprint import kind_of
from onceward.errors import BlobsUnavailable, RightsMissing, StoreConflict, StoreError, StoreUnavailable
from onceward.flow import ROLLBACK, Flow
from onceward.message import Delivery, Message
from onceward.registry import Handler
from onceward.retry import Again, Dead, RetryPolicy
from onceward.steps.context import Context
from onceward.steps.group import Failure, failure_of
from onceward.steps.lane import About, Claimed, Lane
from onceward.steps.rows import attempt_row, without_text
from onceward.stores.moves.queue import AttemptRow, Hasten, Postpone, Relocate, Settle

log = logging.getLogger("onceward")
T = TypeVar("T")

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
        yield from written(failed_attempt(lane, failure), partial(_settle, lane, failure))
    except (StoreUnavailable, StoreConflict, RightsMissing):
        raise
    except StoreError as error:
        yield ROLLBACK
        yield from put_off(lane, [message], LONGEST_UNCHARGED)
        message.failed = failure.error, Again(timedelta(seconds=LONGEST_UNCHARGED))
        what = "message #%d failed, and the database refuses to record that; the message is tried again: %s"
        log.error(what, message.seq, error)  # noqa: TRY400 - the traceback says nothing


def written(row: AttemptRow, write: Callable[[AttemptRow], Flow[T]]) -> Flow[T]:
    """Write the row of a failed attempt; where the database refuses it, without its text."""
    try:
        return (yield from write(row))
    except (StoreUnavailable, StoreConflict, RightsMissing):
        raise
    except StoreError:
        yield ROLLBACK
        return (yield from write(without_text(row)))


def _settle(lane: Lane, failure: Failure, row: AttemptRow) -> Flow[None]:
    settled = yield from lane.context.moves.queue.settle(settle_of(failure, row))
    if settled:  # else another worker has it: nothing of this is true any more
        tell(lane, failure, row)
        if failure.leaves_key:  # its successor is perhaps for other lanes
            lane.notify()


def settle_of(failure: Failure, row: AttemptRow) -> Settle:
    """What becomes of a message that failed, as a move."""
    message = failure.message
    leaves = message.key_hash if failure.leaves_key else None
    return Settle(message.seq, message.worker, message.token, *state_of(failure.decision), row, leaves)


def state_of(decision: Again | Dead) -> tuple[Literal["retry", "dead"], float | None]:
    """A decision as the state of a message, and in how many seconds it is tried again."""
    return ("retry", decision.delay.total_seconds()) if isinstance(decision, Again) else ("dead", None)


def failed_attempt(lane: Lane, failure: Failure) -> AttemptRow:
    """The row of its failed attempt."""
    message, error, decision = failure
    attempt = message.attempts + 1
    return attempt_row(
        lane.context, message.seq, attempt=attempt, error=error, decision=decision, worker=message.worker
    )


def tell(lane: Lane, failure: Failure, row: AttemptRow) -> None:
    """A failure is committed: the log says so, and the caller that waits for the message may know."""
    message = failure.message
    message.failed = failure.error, failure.decision
    about = message.call.message if message.call else message.about
    if about is not None and message.handler is not None:
        handler, is_dead = message.handler, isinstance(failure.decision, Dead)
        series = Series(handler.consumer, about.source, handler.type if handler.external else about.type)
        lane.context.activity.count("dead" if is_dead else "failed", series)
    log_failure(lane.context, about, row, failure.decision, message.policy)


def postpone(lane: Lane, message: Claimed, error: BaseException) -> Flow[None]:
    """The database was at fault: try again, uncharged, each time later; not for ever, and not when it is too old."""
    if timedelta(seconds=message.age) >= (message.policy.max_age or UNCHARGED):
        yield from settle(lane, failure_of(message, error))
        return
    # What the blob store's absence does to one message it does to all; other errors may come with this one alone.
    most = None if isinstance(error, BlobsUnavailable) else MOST_UNCHARGED
    delay = random.uniform(0.05, 1.0)  # noqa: S311 - no secret
    claim = message.seq, message.worker, message.token
    waits = yield from lane.context.moves.queue.postpone(Postpone(*claim, delay, LONGEST_UNCHARGED, most))
    if waits is not None:
        message.failed = error, Again(timedelta(seconds=waits))
    else:
        yield from settle(lane, failure_of(message, error))


def put_off(lane: Lane, messages: Sequence[Claimed], delay: float) -> Flow[None]:
    """Give messages back, uncharged, not to be claimed for so many seconds."""
    first, seqs = messages[0], [message.seq for message in messages]
    yield from lane.context.moves.queue.put_off(first.worker, first.token, seqs, delay)


def move(lane: Lane, message: Claimed) -> Flow[None]:
    """Put a message where its handler says it belongs in the order; it is claimed anew, by the rules of its key."""
    place = message.elsewhere
    assert place is not None  # noqa: S101 - the caller has looked
    reason = "its handler finds another key or number than the program that received it; others may have run before it"
    request = Relocate(
        seq=message.seq,
        worker=message.worker,
        token=message.token,
        leaves=message.key_hash,
        key_hash=place.key_hash,
        key=place.key,
        aggregate=place.aggregate,
        sequence=place.sequence,
        reason=reason,
    )
    moved = yield from lane.context.moves.queue.relocate(request)
    if moved:
        lane.notify()  # what comes after it, where it was or where it is now, is perhaps for other lanes
        log.warning("message #%d was moved to its place in its key: %s", message.seq, reason)


def unclaim(lane: Lane, messages: Sequence[Claimed]) -> Flow[None]:
    """Give messages back, uncharged."""
    if messages:
        first, seqs = messages[0], [message.seq for message in messages]
        yield from lane.context.moves.claims.unclaim(first.worker, first.token, seqs)


def hasten(lane: Lane, handler: Handler) -> Flow[None]:
    """What a handler depends on is back: messages that failed meanwhile do not wait for the end of their delays."""
    mine = [one for one in lane.subscriptions if one.consumer == handler.consumer]
    subscriptions = [one.id for one in mine if lane.outgoing or one.type == handler.type]
    hastened = MOST_HASTENED
    while hastened == MOST_HASTENED:
        hastened = yield from lane.context.moves.queue.hasten(Hasten(subscriptions, lane.destination, MOST_HASTENED))
    lane.notify()


def log_failure(
    context: Context,
    message: Message | Delivery | About | None,
    row: AttemptRow,
    decision: Again | Dead,
    policy: RetryPolicy,
) -> None:
    """Log what became of a message that failed, and the command that shows more.

    Not the error's text, which may quote what is in the message; in development there is nothing to hide.
    """
    developing = os.environ.get("ONCEWARD_ENV") == "development"
    facts = {name: row[name] for name in ("seq", "attempt", "worker", "fingerprint")}
    facts["error"] = kind_of(row["error"])
    which = f"message #{row['seq']}"
    if message is not None:
        facts |= {"message_id": message.id, "source": message.source, "type": message.type}
        which = f"{message.type} #{row['seq']} ({message.id} from {message.source})"
    log.log(
        logging.ERROR if isinstance(decision, Dead) or row["attempt"] >= OFTEN else logging.WARNING,
        "%s failed: %s, attempt %d of %d, %s. Details: %s%s",
        which,
        row["error"] if developing else facts["error"],
        row["attempt"],
        policy.attempts,
        "it is dead" if isinstance(decision, Dead) else f"next try in {_duration(decision.delay)}",
        context.hint("explain", row["seq"]),
        f"\n{row['traceback'].rstrip()}" if developing and row["traceback"] else "",
        extra={"onceward": facts},
    )


def _duration(time: timedelta) -> str:
    seconds = time.total_seconds()
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.1f} s".replace(".0 ", " ")
