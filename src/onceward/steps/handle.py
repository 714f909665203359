"""Handle: run claimed messages to their end, in groups that share a transaction.

Invariant: a failure is charged to the message whose handler failed, and to no other; what its neighbours did stays.
Messages of one key never overtake each other: what follows a message that failed goes back with it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from onceward.errors import ClaimLost, RightsMissing, StoreConflict, StoreError, StoreUnavailable, VersionUnknown
from onceward.flow import Flow, Wait
from onceward.registry import Handler
from onceward.steps.attempt import Failed, attempt, forget_claims, reconnect, still_ours, undo
from onceward.steps.blob import prepare
from onceward.steps.claim import as_batch
from onceward.steps.group import failure_of
from onceward.steps.isolated import look_wait, next_batch
from onceward.steps.lane import IN_KEY, Claimed, Lane, fetched, let_go
from onceward.steps.settle import hasten, move, postpone, put_off, settle, unclaim

SHORTEST_REST, LONGEST_REST = 0.5, 10.0
"""Seconds for which a message of a version that only other workers know is not claimed again."""


def work(lane: Lane, *, until_idle: bool = False) -> Flow[int]:
    """The life of a lane: claim, handle, wait; returns how many messages it finished."""
    batch: list[Claimed] = []
    trouble: StoreError | None = None
    troubles = 0
    idle = False
    try:
        while not lane.stopping() and not idle:
            try:
                if trouble:
                    yield from _recover(lane, trouble)
                    if troubles > 1:  # the database answers, and refuses again and again
                        yield from _wait(lane, min(0.05 * 2 ** min(troubles, 10), 2.0))
                    trouble = None
                batch = batch or (yield from next_batch(lane))
                idle = not batch and (yield from _rest(lane, until_idle=until_idle))
                batch = (yield from handle(lane, batch)) if batch else []
                troubles = 0
            except (StoreConflict, StoreUnavailable) as error:
                batch, trouble, idle = [], error, False
                troubles += 1
        if trouble:
            yield from _recover(lane, trouble)
        if batch:
            yield from unclaim(lane, batch)
            let_go(lane, batch[0].token)
    finally:
        lane.isolation.leave(lane)  # whoever is still inside would wait for ever for one that asked to be alone
    return lane.finished


def _rest(lane: Lane, *, until_idle: bool) -> Flow[bool]:
    """Nothing was claimed: wait a moment; returns whether there is nothing left to do."""
    if lane.isolation.was_turned_away(lane) or lane.wants_alone or lane.isolation.closed:
        lane.looked_at = float("-inf")
        yield from _wait(lane, 0.01)
        return False
    if not until_idle:
        if lane.context.clock() - lane.active_at >= lane.linger:
            return True
        now, poll = lane.context.clock(), lane.context.settings.poll.total_seconds()
        yield from _wait(lane, min((poll, look_wait(lane), *(lot.wait(now) for lot in lane.lots))))
        return False
    is_idle = all(lot.cursor == 0 and lot.scanned_at != float("-inf") and lot.scanned_idle for lot in lane.lots)
    lane.looked_at = float("-inf")
    for lot in lane.lots:
        lot.scanned_idle = True
        lot.begin_anew()  # idle is only what a full scan finds idle
    return is_idle


def _wait(lane: Lane, seconds: float) -> Flow[None]:
    """Wait; what it is notified of may be anything that it looks for, also now and then."""
    if (yield Wait(seconds)) is not False:
        lane.woken_at = lane.context.clock()


def _recover(lane: Lane, trouble: StoreError) -> Flow[None]:
    """Get back to a clean connection and let go of whatever a lost answer may have left in our name."""
    lane.looked_at = float("-inf")  # a look for isolated messages that was lost has not said that there are none
    if isinstance(trouble, StoreUnavailable):
        yield from reconnect(lane)
    else:
        yield from undo(lane)
    yield from forget_claims(lane)


@dataclass(slots=True)
class Held:
    """What a lane has claimed and not yet run to its end."""

    pending: list[Claimed]
    """In order; those that may share a transaction do."""
    alone: list[Claimed] = field(default_factory=list)
    """Each has a transaction to itself, behind the others."""

    def leave(self, gone: Collection[Claimed]) -> None:
        """These are not ours any more."""
        self.pending = [message for message in self.pending if message not in gone]
        self.alone = [message for message in self.alone if message not in gone]


def handle(lane: Lane, batch: list[Claimed]) -> Flow[list[Claimed]]:
    """Run a batch to its end: take a group, attempt it, and go on with what is left.

    Of what was claimed some moves on, rests or is given back before that; a transaction that is lost has a reaction of
    its own. Returns what was claimed along with the last group.
    """
    if lane.context.large.store is not None:
        yield from prepare(lane.context)
    token, held, began, lane.has_handled = batch[0].token, Held(batch), lane.context.clock(), True
    following: list[Claimed] = []
    yield from _sort_out(lane, held)
    while (held.pending or held.alone) and not (yield from _gives_up(lane, held, began)):
        group = yield from _with_body(lane, _next_group(held))
        if group[0].elsewhere:  # its body is large, and was not here before
            yield from _move_on(lane, group, held)
            continue
        rest = held.pending + held.alone
        attempted = yield from attempt(lane, group, rest, claim_next=not rest)
        if attempted.lost is not None:
            yield from _after_loss(lane, group, attempted.lost, held)
            continue
        lane.finished += len(attempted.finished)
        lane.group_succeeded()
        for handler in attempted.recovered:
            yield from hasten(lane, handler)
        following = (yield from as_batch(lane, attempted.following)) if attempted.following else []
        held.pending = [*attempted.rest, *held.pending]
        if attempted.given_back or attempted.alone:
            held.leave({*attempted.given_back, *attempted.alone})
        if held.alone or attempted.alone:
            held.alone = _in_order({*held.alone, *attempted.alone} - {*attempted.given_back})
    let_go(lane, token)
    lane.active_at = lane.context.clock()
    return following


def _sort_out(lane: Lane, held: Held) -> Flow[None]:
    """What is not to run here, or not now: it moves on, rests, or is left to others."""
    misplaced = [message for message in held.pending if message.elsewhere]
    if misplaced:
        yield from _move_on(lane, misplaced, held)
    batch = held.pending
    handlers = {one for one in {message.handler for message in batch} if one and one.breaker and one.breaker.was_open}
    unknown = [message for message in batch if message.problem and isinstance(message.problem, VersionUnknown)]
    if handlers:
        yield from _let_rest(lane, handlers, held)
    if unknown:
        yield from _give_back(lane, unknown, batch, held)


def _gives_up(lane: Lane, held: Held, began: float) -> Flow[bool]:
    """Whether the rest of a claim is given back: at a stop, or to other lanes where its handlers have become slower."""
    lot = lane.lot
    slow = lot is not None and not lot.steady and lane.context.clock() - began > 2 * lot.seconds
    if slow and not held.alone:
        yield from unclaim(lane, held.pending)
        lane.notify()
        return True
    if lane.stopping():
        yield from unclaim(lane, held.pending + held.alone)
        return True
    return False


def _move_on(lane: Lane, messages: list[Claimed], held: Held) -> Flow[None]:
    """Move messages to where they belong in the order; then give back what comes after them, here or there."""
    for message in messages:
        try:
            yield from move(lane, message)
        except (StoreConflict, StoreUnavailable, RightsMissing):
            raise
        except StoreError as error:  # it belongs to this message alone
            yield from undo(lane)
            yield from settle(lane, failure_of(message, error))
    rest = [one for one in held.pending + held.alone if one not in messages]
    behind = [one for one in rest if any(_is_behind(one, moved) for moved in messages)]
    yield from unclaim(lane, behind)
    held.leave(messages + behind)


def _is_behind(one: Claimed, moved: Claimed) -> bool:
    """Whether a message comes after one that moves, in the key that this leaves or in that it comes to."""
    there = moved.elsewhere
    assert there is not None  # noqa: S101 - it moves
    place = moved.place if there.sequence is None else there.sequence
    return one.follows(moved) or (one.key_hash == there.key_hash and (one.place, one.seq) > (place, moved.seq))


def _with_body(lane: Lane, group: list[Claimed]) -> Flow[list[Claimed]]:
    """A group that is about to run; one whose body does not come is put off or charged, and the others go on."""
    if group[0].offloaded is None:
        return group
    try:
        return (yield from fetched(lane, group))
    except (StoreConflict, RightsMissing):
        raise
    except StoreError as error:
        yield from undo(lane)
        return [replace(group[0], problem=error)]


def _after_loss(lane: Lane, group: list[Claimed], lost: Failed, held: Held) -> Flow[None]:
    """Nothing of a group is committed: what is still ours, and not at fault, runs again."""
    rest = group + held.pending
    if isinstance(lost.error, ClaimLost):
        mine = yield from still_ours(lane, group[0])
        held.pending = [message for message in rest if message.seq in mine]
        held.alone = [message for message in held.alone if message.seq in mine]
        return
    culprit = group[0] if len(group) == 1 else lost.culprit
    if culprit is None or (lost.infrastructure and len(group) > 1):  # perhaps one of them is at fault
        doubtful = _with_followers(group, rest)
        held.leave(doubtful)
        held.alone = _in_order({*held.alone, *doubtful})
        return
    gone = yield from _settle_one(lane, culprit, lost, [*rest, *held.alone])
    held.pending = rest
    held.leave(gone)


def _in_order(messages: Iterable[Claimed]) -> list[Claimed]:
    return sorted(messages, key=IN_KEY)


def _let_rest(lane: Lane, handlers: Iterable[Handler], held: Held) -> Flow[None]:
    """Put off what must not run: a claim goes by type, and may bring a version whose handler has paused."""
    pauses = {handler: handler.pause_left for handler in handlers}
    if not any(pauses.values()):
        return
    paused = [message for message in held.pending if message.handler and pauses.get(message.handler)]
    behind = [message for message in _with_followers(paused, held.pending) if message not in paused]
    yield from put_off(lane, paused, min(filter(None, pauses.values())))
    yield from unclaim(lane, behind)
    held.leave(paused + behind)


def _give_back(lane: Lane, unknown: list[Claimed], batch: list[Claimed], held: Held) -> Flow[None]:
    """Leave to others what they have a handler for and this process has not: versions differ while a release is on."""
    problems = {message: message.problem for message in unknown if isinstance(message.problem, VersionUnknown)}
    handled = yield from lane.context.moves.claims.handled_elsewhere(sorted({one.line for one in problems.values()}))
    theirs = [message for message, problem in problems.items() if problem.line in handled]
    if not theirs:
        return
    behind = [message for message in _with_followers(theirs, batch) if message not in theirs]
    # It is found again by us or by them: the longer it has taken, the longer it rests, so that we get to our own work.
    rest = min(max(max(message.age for message in theirs) / 2, SHORTEST_REST), LONGEST_REST)
    yield from put_off(lane, theirs, random.uniform(rest / 2, rest))  # noqa: S311 - spreads load, keeps no secret
    yield from unclaim(lane, behind)
    held.leave(theirs + behind)


def _next_group(held: Held) -> list[Claimed]:
    """Take the messages that may share the next transaction."""
    pending = held.pending
    if not pending:
        return [held.alone.pop(0)]
    size = 1
    while size < len(pending) and pending[size].may_join(pending[0], size + 1):
        size += 1
    held.pending = pending[size:]
    return pending[:size]


def _with_followers(chosen: list[Claimed], among: list[Claimed]) -> list[Claimed]:
    """The chosen ones and whatever comes after one of them in its key."""
    return [message for message in among if message in chosen or any(message.follows(one) for one in chosen)]


def _settle_one(lane: Lane, message: Claimed, lost: Failed, held: list[Claimed]) -> Flow[list[Claimed]]:
    """Charge the one that was at fault, and give back what must not run now. Returns what is no longer held."""
    if lost.infrastructure:
        yield from postpone(lane, message, lost.error)
    else:
        yield from settle(lane, failure_of(message, lost.error))
    rest = [one for one in held if one is not message]
    followers = [one for one in rest if one.follows(message)]
    behind = _with_followers(followers + _held_back(rest, message.handler), rest)
    yield from unclaim(lane, behind)
    return [message, *behind]


def _held_back(messages: list[Claimed], handler: Handler | None) -> list[Claimed]:
    """The messages of a handler whose circuit has opened."""
    return [message for message in messages if handler and handler.is_paused and message.handler is handler]
