"""Stored first, after all: a batch whose transaction is lost is received in another one, and queued for the workers.

Invariant: the message that was at fault, where that is known, is charged in the transaction that stores the batch. One
that its handler has committed on its own gets its queue row back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from onceward.errors import RightsMissing, StoreConflict, StoreError, StoreUnavailable
from onceward.flow import ROLLBACK, Flow
from onceward.message import Failure as Failing
from onceward.message import Receipt
from onceward.retry import Dead, text_of
from onceward.steps.attempt import Failed
from onceward.steps.context import Catalog
from onceward.steps.group import Failure, failure_of
from onceward.steps.lane import Lane, committing
from onceward.steps.rows import applied_of, without_text
from onceward.steps.settle import failed_attempt, state_of, tell
from onceward.steps.wanted import Wanted
from onceward.stores.moves.inline import BeginDirect, Enqueued, FinishDirect, Requeue, enqueued
from onceward.stores.moves.ledger import NewRow
from onceward.stores.moves.queue import AttemptRow


class Undone(NamedTuple):
    """Nothing of a batch is committed."""

    lost: Failed
    seqs: dict[int, int]
    """The numbers that its messages had, by ordinal."""
    failures: Sequence[Failure] = ()
    is_gone: bool = False
    """The connection is lost."""


def failed_receipt(lane: Lane, seq: int, failure: Failure) -> Receipt:
    """The handler raised, and the message is stored with that."""
    lane.raised = lane.raised or failure.error
    final = isinstance(failure.decision, Dead)
    return Receipt("accepted", seq, error=Failing(type(failure.error).__name__, text_of(failure.error), final))


def failed_row(failure: Failure, row: NewRow, seq: int) -> Enqueued:
    """The queue row of one whose attempt has failed."""
    state, delay = state_of(failure.decision)
    after = None if delay is None else int(delay * 1_000_000)
    queued = enqueued(row, seq)
    key = None if failure.leaves_key else row["key_hash"]
    return {**queued, "key_hash": key, "state": state, "after": after, "attempts": 1}


def stored_first(lane: Lane, catalog: Catalog, wanted: Sequence[Wanted], undone: Undone) -> Flow[dict[int, Receipt]]:
    """Store a batch that was rolled back, for the workers, with the attempts of those who failed."""
    failures = {failure.message.seq: failure for failure in undone.failures}
    culprit = undone.lost.culprit
    if culprit is not None and not undone.lost.infrastructure and culprit.seq not in failures:
        failures[culprit.seq] = failure_of(culprit, undone.lost.error)
    by_ordinal = {one: failures[seq] for one, seq in undone.seqs.items() if seq in failures}
    attempts = {one: failed_attempt(lane, failure) for one, failure in by_ordinal.items()}
    store = partial(_stored, lane, catalog, wanted, undone.seqs, by_ordinal)
    try:
        stored = yield from store(attempts)
    except (StoreUnavailable, StoreConflict, RightsMissing):
        raise
    except StoreError:  # perhaps of a text that it does not take
        yield ROLLBACK
        stored = yield from store({one: without_text(row) for one, row in attempts.items()})
    lane.notify()
    receipts = {}
    for ordinal, seq in stored.items():
        failure = by_ordinal.get(ordinal)
        receipts[ordinal] = Receipt("accepted", seq) if failure is None else failed_receipt(lane, seq, failure)
        if failure is not None:
            tell(lane, failure, {**attempts[ordinal], "seq": seq})
    return receipts


def _stored(  # noqa: PLR0913, PLR0917 - the parts of `stored_first`
    lane: Lane,
    catalog: Catalog,
    wanted: Sequence[Wanted],
    seqs: Mapping[int, int],
    failures: Mapping[int, Failure],
    attempts: Mapping[int, AttemptRow],
) -> Flow[dict[int, int]]:
    """Store them in one transaction; then those that a handler has committed on its own. The numbers, by ordinal."""
    moves = lane.context.moves.inline
    begun = yield from moves.begin_direct(BeginDirect([one.row for one in wanted], catalog.version))
    stored = {ordinal: row.seq for ordinal, row in begun.stored.items()}
    if stored:
        rows = {one.ordinal: one.row for one in wanted}
        leaving = [one for one, failure in failures.items() if failure.leaves_key and one in stored]
        applied = [applied_of(rows[one]) for one in leaving]
        finish = FinishDirect(
            lane.worker(),
            lane.context.code_version,
            "",
            applied=[one for one in applied if one is not None],
            queued=[
                failed_row(failures[one], rows[one], seq) if one in failures else enqueued(rows[one], seq)
                for one, seq in stored.items()
            ],
            attempts=[{**attempts[one], "seq": seq} for one, seq in stored.items() if one in failures],
            leaves={key for one in leaving if (key := rows[one]["key_hash"]) is not None},
            effects={seqs[one]: seq for one, seq in stored.items() if one in failures},
        )
        yield from committing(lane, moves.finish_direct(finish), stored.values())
        lane.committed.update(stored.values())
    missing = [
        _requeue(one, seqs[one.ordinal], failures.get(one.ordinal), attempts)
        for one in wanted
        if one.ordinal not in stored and one.ordinal in seqs
    ]
    requeued = (yield from committing(lane, moves.requeue_own(missing))) if missing else {}
    lane.committed.update(requeued.values())
    return stored | requeued


def _requeue(one: Wanted, seq: int, failure: Failure | None, attempts: Mapping[int, AttemptRow]) -> Requeue:
    if failure is None:
        return Requeue(one.row, seq)
    queued = failed_row(failure, one.row, seq)
    row: NewRow = {**one.row, "key_hash": queued["key_hash"]}
    return Requeue(row, seq, queued["state"], queued["after"], attempts[one.ordinal])
