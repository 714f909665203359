"""Inside: receive and handle a message in a transaction of the caller's own.

Invariant: whatever the caller commits, and whenever, the message is in it as a whole: done with its handler's effects,
or queued without them, or not there. It is queued before its handler runs, behind a savepoint, and leaves the queue
with what that did; the release of the savepoint says that the transaction is still the one it was. What raises here has
gone back to where the call began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf

from onceward.errors import (
    ContractViolation,
    GuardFailed,
    OncewardError,
    RightsMissing,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    TransactionEnded,
)
from onceward.flow import ROLLBACK, Flow
from onceward.message import Delivery, Receipt
from onceward.registry import Handler
from onceward.steps.attempt import Failed, after_commit, run
from onceward.steps.blob import offload
from onceward.steps.context import Catalog, know_names, load_catalog
from onceward.steps.direct import Batch, count_handled, finish_of, in_turn, known_receipts, known_unplaced, receipts_of
from onceward.steps.join import Apart, look
from onceward.steps.lane import Lane
from onceward.steps.receive import look_up, merged
from onceward.steps.settle import failed_attempt, tell
from onceward.steps.stored_first import Undone, stored_first
from onceward.steps.wanted import Wanted, that_fits
from onceward.stores.moves.inline import BeginDirect


def process_inside(
    lane: Lane, delivery: Delivery, apart: Apart | None, fits: Callable[[Handler], bool]
) -> Flow[Receipt]:
    """Handle a delivery in the caller's transaction, for each consumer whose handler can have that."""
    context = lane.context
    cache, keeps_view = yield from look(context, [delivery], apart)
    if context.large.store is not None:
        (delivery,) = yield from offload(context, [delivery], cache)
    receipts: dict[int, Receipt] = {}
    for _ in range(5):
        yield from know_names(context, cache, {context.service, delivery.source})  # as in `receive`
        # In a view of its own a transaction does not see what of a key was committed since: a worker does.
        wanted = that_fits(context, cache.catalog, delivery, fits, keyed=not keeps_view)
        left = [one for one in wanted if one.target.consumer_id not in receipts]
        found = yield from _answered(lane, cache.catalog, left)
        receipts |= {one.target.consumer_id: found[one.ordinal] for one in left if one.ordinal in found}
        if len(found) == len(left):
            return merged([*receipts.values()])
        yield from load_catalog(context, cache)
    raise StoreConflict("subscriptions keep changing while a message is processed; try again")


def _answered(lane: Lane, catalog: Catalog, wanted: Sequence[Wanted]) -> Flow[dict[int, Receipt]]:
    """A receipt for each, by ordinal; missing: the catalog is outdated."""
    context = lane.context
    known = yield from known_unplaced(context, catalog, wanted)
    new = [one for one in wanted if one.ordinal not in known]
    receipts: dict[int, Receipt] = {}
    if new:
        receipts = yield from _whole(lane, catalog, new)
        known |= yield from look_up(context, catalog, [one.row for one in new if one.ordinal not in receipts])
    return receipts | (yield from known_receipts(lane, wanted, known))


def _whole(lane: Lane, catalog: Catalog, new: Sequence[Wanted]) -> Flow[dict[int, Receipt]]:
    """Those that are new, handled or queued; or nothing of it is left in the caller's transaction."""
    try:
        tried = yield from _handled(lane, catalog, new)
    except GeneratorExit:  # nothing can be awaited any more
        raise
    except BaseException:
        with suppress(OncewardError):  # the transaction is gone, and all of it
            yield ROLLBACK
        raise
    if not isinstance(tried, Undone):
        return tried
    yield from _go_back(tried.lost)
    return (yield from stored_first(lane, catalog, new, tried))


def _handled(lane: Lane, catalog: Catalog, new: Sequence[Wanted]) -> Flow[dict[int, Receipt] | Undone]:
    """Queue them, call their handlers, and take out of the queue what those have done."""
    context = lane.context
    runs = [one for one in new if one.handler is not None]
    longest = max((one.handler.timeout for one in runs if one.handler), default=timedelta(0))
    begin = BeginDirect(
        [one.row for one in new],
        catalog.version,
        {one.ordinal for one in runs},
        longest.total_seconds(),
        inside=True,
    )
    begun = yield from context.moves.inline.begin_direct(begin)
    if not begun.stored:
        return {}
    batch = in_turn(lane, new, begun)
    group = batch.group
    group.shares, lane.alone, lane.receiving = True, False, True
    lost = yield from run(lane, group, inf)
    lost = lost or (yield from _finished(lane, catalog, batch))
    if lost is not None:
        return Undone(lost, batch.seqs, group.failures)
    count_handled(lane.context, batch)
    yield from after_commit(group)
    return receipts_of(lane, batch)


def _finished(lane: Lane, catalog: Catalog, batch: Batch) -> Flow[Failed | None]:
    """The end of the call, which the caller is to commit; returns what went wrong."""
    group = batch.group
    group.leave([])
    attempts = [failed_attempt(lane, failure) for failure in group.failures]
    finish = finish_of(lane, catalog, batch, "", attempts)
    failed = {failure.message.seq for failure in group.failures}
    finish.queued = [row for row in finish.queued if row["seq"] in failed]  # the others are queued already
    finish.inside = failed | set(finish.seqs)
    try:
        yield from lane.context.moves.inline.finish_direct(finish)
    except StoreUnavailable:
        raise
    except (StoreError, ContractViolation) as error:
        culprit = group.standing[0] if len(group.standing) == 1 and not group.failures else None
        if isinstance(error, GuardFailed):
            return Failed(TransactionEnded(), culprit)
        away = isinstance(error, StoreConflict | RightsMissing)
        return Failed(error, None if away else culprit, infrastructure=away)
    for failure, row in zip(group.failures, attempts, strict=True):
        tell(lane, failure, row)
    return None


def _go_back(lost: Failed) -> Flow[None]:
    """Back to where the call began; where that is not possible, the caller's transaction is another one, or none."""
    try:
        yield ROLLBACK
    except OncewardError as gone:
        if isinstance(lost.error, OncewardError) and not isinstance(lost.error, GuardFailed):
            raise lost.error from gone
        if lost.infrastructure:
            what = f"the database ended the transaction while a message was processed: {lost.error}"
            raise StoreUnavailable(what) from lost.error
        raise (TransactionEnded() if isinstance(gone, GuardFailed) else gone) from lost.error
