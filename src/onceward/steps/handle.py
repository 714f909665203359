"""Handle: run claimed messages to their end, in groups that share a transaction.

Invariant: a failure is charged to the message whose handler failed, and to no other; what its neighbours did stays.
Messages of one key never overtake each other: what follows a message that failed goes back with it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from onceward.errors import ClaimLost, RightsMissing, StoreConflict, StoreError, StoreUnavailable, VersionUnknown
from onceward.flow import Flow, Query, Wait
from onceward.registry import Handler
from onceward.steps.attempt import Failed, attempt, forget_claims, reconnect, still_ours, undo
from onceward.steps.blob import prepare
from onceward.steps.claim import as_batch, let_go
from onceward.steps.context import once
from onceward.steps.group import failure_of
from onceward.steps.lane import Claimed, Lane, fetched
from onceward.steps.settle import hasten, move, postpone, put_off, release, settle
from onceward.steps.suspects import next_batch

SHORTEST_REST, LONGEST_REST = 0.5, 10.0
"""Seconds for which a message of a version that only other workers know is not claimed again."""


def work(lane: Lane, *, until_idle: bool = False) -> Flow[int]:
    """The life of a lane: claim, handle, wait; answers how many messages it finished."""
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
                        yield Wait(min(0.05 * 2 ** min(troubles, 10), 2.0))
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
            yield from release(lane, batch)
            let_go(lane, batch[0].token)
    finally:
        lane.gate.leave(lane)  # whoever is still inside would wait for ever for one that asked to be alone
    return lane.finished


def _rest(lane: Lane, *, until_idle: bool) -> Flow[bool]:
    """Nothing was claimed: wait a moment; answers whether there is nothing left to do."""
    if lane.wants_alone or lane.gate.closed:
        yield Wait(0.01)
        return False
    if not until_idle:
        if lane.context.clock() - lane.active_at >= lane.linger:
            return True
        now, poll = lane.context.clock(), lane.context.settings.poll.total_seconds()
        yield Wait(min((poll, *(lot.wait(now) for lot in lane.lots))))
        return False
    is_idle = all(lot.floor == 0 and lot.swept_at != float("-inf") and lot.swept_idle for lot in lane.lots)
    lane.looked_at = float("-inf")
    for lot in lane.lots:
        lot.swept_idle = True
        lot.begin_anew()  # idle is only what a look from the very beginning finds idle
    return is_idle


def _recover(lane: Lane, trouble: StoreError) -> Flow[None]:
    """Get back to a clean connection and let go of whatever a lost answer may have left in our name."""
    if isinstance(trouble, StoreUnavailable):
        yield from reconnect(lane)
    else:
        yield from undo(lane)
    yield from forget_claims(lane)


def handle(lane: Lane, batch: list[Claimed]) -> Flow[list[Claimed]]:
    """Run a batch to its end, group by group. Alone runs what wants to, and what a lost transaction left in doubt."""
    yield from prepare(lane.context)
    token, misplaced = batch[0].token, [message for message in batch if message.elsewhere]
    if misplaced:
        moved = yield from _move_on(lane, misplaced, batch)
        batch = [message for message in batch if message not in moved]
    resting = (yield from _let_rest(lane, batch)) + (yield from _give_back(lane, batch))
    pending = [message for message in batch if message not in resting]
    alone: list[Claimed] = []
    following: list[Claimed] = []
    began = lane.context.clock()
    while pending or alone:
        if pending and not alone and _takes_too_long(lane, began):
            yield from release(lane, pending)
            lane.ring()
            break
        if lane.stopping():
            yield from release(lane, pending + alone)
            break
        group = yield from _with_body(lane, _next_group(pending, alone))
        if group[0].elsewhere:  # its body is large, and was not here before
            moved = yield from _move_on(lane, group, pending + alone)
            pending = [message for message in pending if message not in moved]
            alone = [message for message in alone if message not in moved]
            continue
        attempted = yield from attempt(lane, group, pending + alone, ride=not pending and not alone)
        if attempted.lost is not None:
            pending, alone = yield from _after_loss(lane, group, attempted.lost, pending, alone)
            continue
        lane.finished += len(attempted.finished)
        lane.go_on()
        for handler in attempted.recovered:
            yield from hasten(lane, handler)
        following = (yield from as_batch(lane, attempted.following)) if attempted.following else []
        gone = {*attempted.given_back, *attempted.alone}
        pending = [message for message in (*attempted.rest, *pending) if message not in gone]
        alone = _in_order({*alone, *attempted.alone} - {*attempted.given_back})
    let_go(lane, token)
    lane.active_at = lane.context.clock()
    return following


def _takes_too_long(lane: Lane, began: float) -> bool:
    """Whether the rest of a claim is better given back, for other lanes: its handlers are slower than they were."""
    return lane.lot is not None and lane.lot.takes_too_long(lane.context.clock() - began)


def _move_on(lane: Lane, messages: list[Claimed], held: list[Claimed]) -> Flow[list[Claimed]]:
    """Move messages to where they belong in the order; then give back what comes after them, here or there."""
    for message in messages:
        try:
            yield from move(lane, message)
        except (StoreConflict, StoreUnavailable, RightsMissing):
            raise
        except StoreError as error:  # it belongs to this message alone
            yield from undo(lane)
            yield from settle(lane, failure_of(message, error))
    behind = [one for one in held if one not in messages and any(_is_behind(one, moved) for moved in messages)]
    yield from release(lane, behind)
    return messages + behind


def _is_behind(one: Claimed, moved: Claimed) -> bool:
    """Whether a message comes after one that moves, in the key that this leaves or in that it comes to."""
    there = moved.elsewhere
    assert there is not None  # noqa: S101 - it moves
    place = moved.place if there.sequence is None else there.sequence
    return one.follows(moved) or (one.key_hash == there.key_hash and (one.place, one.seq) > (place, moved.seq))


def _with_body(lane: Lane, group: list[Claimed]) -> Flow[list[Claimed]]:
    """A group that is about to run; one whose body does not come is put off or charged, and the others go on."""
    try:
        return (yield from fetched(lane, group))
    except (StoreConflict, RightsMissing):
        raise
    except StoreError as error:
        yield from undo(lane)
        return [replace(group[0], problem=error)]


def _after_loss(
    lane: Lane, group: list[Claimed], lost: Failed, pending: list[Claimed], alone: list[Claimed]
) -> Flow[tuple[list[Claimed], list[Claimed]]]:
    """Nothing of a group is committed; answers what runs next, and what runs alone."""
    if isinstance(lost.error, ClaimLost):
        mine = yield from still_ours(lane, group[0])
        held = [message for message in group + pending if message.seq in mine]
        return held, [message for message in alone if message.seq in mine]
    culprit = group[0] if len(group) == 1 else lost.culprit
    if culprit is None or (lost.infrastructure and len(group) > 1):  # perhaps one of them is at fault
        doubtful = _with_followers(group, group + pending)
        return [message for message in pending if message not in doubtful], _in_order({*alone, *doubtful})
    gone = yield from _settle_one(lane, culprit, lost, [*group, *pending, *alone])
    rest = [message for message in group + pending if message not in gone]
    return rest, [message for message in alone if message not in gone]


def _in_order(messages: Iterable[Claimed]) -> list[Claimed]:
    return sorted(messages, key=lambda message: (message.place, message.seq))


def _let_rest(lane: Lane, batch: list[Claimed]) -> Flow[list[Claimed]]:
    """Put off what must not run: a claim goes by type, and may bring a version whose handler has paused."""
    pauses = {handler: handler.pause_left for handler in {message.handler for message in batch} if handler}
    if not any(pauses.values()):
        return []
    paused = [message for message in batch if message.handler and pauses[message.handler]]
    behind = [message for message in _with_followers(paused, batch) if message not in paused]
    yield from put_off(lane, paused, min(filter(None, pauses.values())))
    yield from release(lane, behind)
    return paused + behind


def _give_back(lane: Lane, batch: list[Claimed]) -> Flow[list[Claimed]]:
    """Leave to others what they have a handler for and this process has not: versions differ while a release is on."""
    problems = {message: message.problem for message in batch if isinstance(message.problem, VersionUnknown)}
    lines = sorted({problem.line for problem in problems.values()})
    if not lines:
        return []
    answers = yield from once(lane.context, *(Query("handled_elsewhere", {"line": line}) for line in lines))
    handled = {line for line, ((known,),) in zip(lines, answers, strict=True) if known}
    theirs = [message for message, problem in problems.items() if problem.line in handled]
    if not theirs:
        return []
    behind = [message for message in _with_followers(theirs, batch) if message not in theirs]
    # It is found again by us or by them: the longer it has taken, the longer it rests, so that we get to our own work.
    rest = min(max(max(message.age for message in theirs) / 2, SHORTEST_REST), LONGEST_REST)
    yield from put_off(lane, theirs, random.uniform(rest / 2, rest))  # noqa: S311 - spreads load, keeps no secret
    yield from release(lane, behind)
    return theirs + behind


def _next_group(pending: list[Claimed], alone: list[Claimed]) -> list[Claimed]:
    """Take the messages that may share the next transaction."""
    if not pending:
        return [alone.pop(0)]
    size = 1
    while size < len(pending) and pending[size].may_join(pending[0], size + 1):
        size += 1
    group = pending[:size]
    del pending[:size]
    return group


def _with_followers(chosen: list[Claimed], among: list[Claimed]) -> list[Claimed]:
    """The chosen ones and whatever comes after one of them in its key."""
    return [message for message in among if message in chosen or any(message.follows(one) for one in chosen)]


def _settle_one(lane: Lane, message: Claimed, lost: Failed, held: list[Claimed]) -> Flow[list[Claimed]]:
    """Charge the one that was at fault, and give back what must not run now. Answers what is no longer held."""
    if lost.infrastructure:
        yield from postpone(lane, message, lost.error)
    else:
        yield from settle(lane, failure_of(message, lost.error))
    rest = [one for one in held if one is not message]
    followers = [one for one in rest if one.follows(message)]
    behind = _with_followers(followers + _held_back(rest, message.handler), rest)
    yield from release(lane, behind)
    return [message, *behind]


def _held_back(messages: list[Claimed], handler: Handler | None) -> list[Claimed]:
    """The messages of a handler whose circuit has opened."""
    return [message for message in messages if handler and handler.is_paused and message.handler is handler]
