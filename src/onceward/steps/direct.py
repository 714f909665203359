"""Direct: receive and handle a batch in one transaction, for callers that acknowledge when it is committed.

Invariant: every new message of the batch is, at the commit, either done (its effects, its result, a run row, no queue
row) or queued (a queue row, no effects). Ledger and bodies are written before the first savepoint, so a handler that
raises takes neither with it. What loses the transaction has the batch stored first, in one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from operator import itemgetter

from onceward.domain import payload
from onceward.domain.activity import Series
from onceward.errors import (
    ContractViolation,
    GuardFailed,
    HandlerTimeout,
    NeedsAlone,
    RightsMissing,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    TransactionEnded,
)
from onceward.flow import RECONNECT, ROLLBACK, Call, Flow
from onceward.message import Receipt
from onceward.steps.attempt import Failed, after_commit, count_done, run
from onceward.steps.context import Catalog, Context
from onceward.steps.group import Group
from onceward.steps.lane import About, Claimed, Lane, committing
from onceward.steps.order import check_key, check_sequence, skipped
from onceward.steps.read import find_key_again, message_of
from onceward.steps.receive import look_up, meet_again, stored_by
from onceward.steps.rows import applied_of, outgoing_rows
from onceward.steps.settle import failed_attempt, hasten, tell
from onceward.steps.stored_first import Undone, failed_receipt, failed_row, stored_first
from onceward.steps.wanted import Wanted
from onceward.stores.moves.inline import BeginDirect, Begun, FinishDirect, enqueued
from onceward.stores.moves.ledger import Known, Stored
from onceward.stores.moves.queue import AttemptRow, Skip

# One transaction, or two


def answered(lane: Lane, catalog: Catalog, wanted: Sequence[Wanted]) -> Flow[dict[int, Receipt]]:
    """A receipt for each, by ordinal, from one transaction and what is known; missing: the catalog is outdated."""
    known = yield from known_unplaced(lane.context, catalog, wanted)
    new = [one for one in wanted if one.ordinal not in known]
    receipts: dict[int, Receipt] = {}
    if new:
        tried = yield from handled(lane, catalog, new)
        if isinstance(tried, Undone):
            if tried.is_gone and not (yield RECONNECT):
                raise StoreUnavailable(f"the database went away while messages were processed: {tried.lost.error}")
            tried = yield from stored_first(lane, catalog, new, tried)
        receipts = tried
        known |= yield from look_up(lane.context, catalog, [one.row for one in new if one.ordinal not in receipts])
    return receipts | (yield from known_receipts(lane, wanted, known))


def known_unplaced(context: Context, catalog: Catalog, wanted: Sequence[Wanted]) -> Flow[dict[int, Known]]:
    """What is known of types of which messages came before their consumers, and are not fanned out yet."""
    rows = [one.row for one in wanted if one.row["type"] in catalog.unplaced]
    return (yield from look_up(context, catalog, rows))


def known_receipts(lane: Lane, wanted: Sequence[Wanted], known: dict[int, Known]) -> Flow[dict[int, Receipt]]:
    """The receipts of messages that are in the ledger already; none of one that is gone again."""
    receipts: dict[int, Receipt] = {}
    wanted = [one for one in wanted if one.ordinal in known]
    if not wanted:
        return receipts
    pairs = [(one.delivery, known[one.ordinal]) for one in wanted]
    own = lane.committed | (yield from stored_by(lane.context, pairs, lane.first_try))
    copies: dict[int, int] = {}
    for one in wanted:
        found = known[one.ordinal]
        if found.seq in own and found.is_same(one.delivery):
            receipts[one.ordinal] = Receipt("accepted", found.seq, found.finished, found.result)
        elif one.handler and one.handler.forgets_failures and not found.is_same(one.delivery):
            receipts[one.ordinal] = Receipt("mismatch", found.seq)
        else:
            part = yield from meet_again(lane.context, one.delivery, found, copies)
            if part is not None:
                receipts[one.ordinal] = part
    if copies:
        yield from lane.context.moves.ledger.count_copies(copies)
    return receipts


@dataclass(slots=True)
class Batch:
    """What becomes of the messages of one transaction."""

    wanted: dict[int, Wanted]
    """By their numbers."""
    places: dict[int, int]
    received: dict[int, int]
    group: Group
    queued: list[int] = field(default_factory=list)
    """Those that do not run."""

    @property
    def seqs(self) -> dict[int, int]:
        """The number of each, by ordinal."""
        return {one.ordinal: seq for seq, one in self.wanted.items()}


def handled(lane: Lane, catalog: Catalog, wanted: Sequence[Wanted]) -> Flow[dict[int, Receipt] | Undone]:
    """The transaction; no receipt where nothing was new, or the catalog is outdated."""
    context = lane.context
    runs = [one for one in wanted if one.handler is not None]
    longest = max((one.handler.timeout for one in runs if one.handler), default=timedelta(0))
    fence = f"{lane.worker()}.inline.{lane.new_token()}"
    begin = BeginDirect(
        [one.row for one in wanted],
        catalog.version,
        {one.ordinal for one in runs},
        longest.total_seconds(),
        fence,
        savepoint=len(runs) > 1,
        returns_soon=any(one.handler.forgets_failures for one in runs if one.handler),
    )
    begun = yield from context.moves.inline.begin_direct(begin)
    if not begun.stored:
        return {}
    batch = in_turn(lane, wanted, begun)
    group = batch.group
    group.shares = begin.savepoint
    lane.alone, lane.receiving = not group.shares, True
    lost = yield from run(lane, group, context.settings.direct_time.total_seconds() * lane.share)
    lane.measure()
    context.calls_once.update(group.calls_once)
    lost = lost or _whole(group) or (yield from _finished(lane, catalog, batch, fence))
    if lost is not None:
        is_gone = yield from _undo()
        return Undone(lost, batch.seqs, group.failures, is_gone)
    count_handled(lane.context, batch)
    yield from _after(lane, group)
    return receipts_of(lane, batch)


def in_turn(lane: Lane, wanted: Sequence[Wanted], begun: Begun) -> Batch:
    """Who runs, in order: each whose key is free and whose number is next. What follows one that does not, waits."""
    fresh = [(one, begun.stored[one.ordinal]) for one in wanted if one.ordinal in begun.stored]
    placed = [(seq if one.row["place"] is None else one.row["place"], seq, at, one) for one, (seq, at) in fresh]
    if len(placed) > 1:
        placed.sort(key=itemgetter(0, 1))
    closed, applied = set(begun.busy), dict(begun.applied)
    messages: list[Claimed] = []
    queued: list[int] = []
    for place, seq, received_at, one in placed:
        row, is_stale = one.row, False
        key = row["key_hash"]
        runs = one.handler is not None and key not in closed
        if runs and row["sequence"] is not None:
            counted = (row["consumer"], row["aggregate"] or "", row["key"])
            number, wanted_number = row["sequence"], applied.get(counted, 0) + 1
            runs, is_stale = number <= wanted_number, number < wanted_number
            if number == wanted_number:
                applied[counted] = number
        if runs:
            messages.append(message_for(lane, one, place, Stored(seq, received_at), is_stale=is_stale))
        else:
            queued.append(seq)
            if key is not None:
                closed.add(key)
    group = Group([message for message in messages if message.problem is None])
    for message in messages:
        if message.problem is not None:
            group.fails([message], message.problem, infrastructure=False)
    places = {seq: place for place, seq, _, _ in placed}
    return Batch({seq: one for _, seq, _, one in placed}, places, {seq: at for _, seq, at, _ in placed}, group, queued)


def message_for(lane: Lane, one: Wanted, place: int, stored: Stored, *, is_stale: bool = False) -> Claimed:
    """A message as its handler gets it, or with the problem that keeps it from that."""
    context, target, delivery = lane.context, one.target, one.delivery
    handler, call, problem, about = one.handler, None, None, None
    if not is_stale:  # what is skipped need not be readable
        try:
            handler, upcasters = context.registry.find(target.consumer, delivery.type, delivery.version)
            message = message_of(
                handler,
                delivery if delivery.key == target.key else delivery._replace(key=target.key),
                seq=stored.seq,
                received_at=stored.received_at,
                attempt=1,
                upcasters=upcasters,
                service=context.service,
                effects=lane.effects,
            )
            find_key_again(handler, message)
            check_key(handler, target.key)
            check_sequence(handler, target.sequence)
            call = Call(handler, message)
        except Exception as error:  # noqa: BLE001 - recorded as the message's attempt
            problem, about = error, About(delivery.type, delivery.id, delivery.source)
            handler = handler or context.registry.of_type(target.consumer, delivery.type)
    claim = (stored.seq, lane.worker(), 0, target.key_hash, place, target.sequence)
    return Claimed(*claim, 0, 0.0, handler, call, problem, is_stale, about=about)


def _whole(group: Group) -> Failed | None:
    """What one message has done to all: it has overrun, or has written and there is no savepoint to go back to."""
    for failure in group.failures:
        if isinstance(failure.error, HandlerTimeout) or group.is_spoiled:
            return Failed(failure.error, failure.message)
    if group.alone and not group.shares:
        return Failed(NeedsAlone())
    return None


def finish_of(lane: Lane, catalog: Catalog, batch: Batch, fence: str, attempts: Sequence[AttemptRow]) -> FinishDirect:
    """What ends the transaction."""
    context, group, wanted = lane.context, batch.group, batch.wanted
    done = group.standing
    sent = group.sent
    leaving = [failure.message for failure in group.failures if failure.leaves_key]
    numbered = [message for message in (*done, *leaving) if message.sequence is not None and not message.stale]
    queued = [*batch.queued, *(one.seq for one in (*group.given_back, *group.alone, *group.rest))]
    rows = [enqueued(wanted[seq].row, seq, batch.places[seq]) for seq in sorted(queued)]
    rows += [failed_row(failure, wanted[failure.message.seq].row, failure.message.seq) for failure in group.failures]
    applied = [applied_of(wanted[message.seq].row) for message in numbered]
    return FinishDirect(
        lane.worker(),
        context.code_version,
        fence,
        [message.seq for message in done],
        group.results,
        outgoing_rows(context, catalog, sent) if sent else (),
        [one for one in applied if one is not None],
        [message.seq for message in done if message.handler and not message.handler.keep_body],
        [Skip(message.seq, skipped(message.sequence)) for message in done if message.stale],
        rows,
        attempts,
        {message.key_hash for message in leaving if message.key_hash is not None},
        lane.marks,
    )


def _finished(lane: Lane, catalog: Catalog, batch: Batch, fence: str) -> Flow[Failed | None]:
    """Commit it; returns what went wrong, and then nothing of it is committed."""
    group = batch.group
    group.leave([])
    attempts = [failed_attempt(lane, failure) for failure in group.failures]
    finish = finish_of(lane, catalog, batch, fence, attempts)
    try:
        yield from committing(lane, lane.context.moves.inline.finish_direct(finish), batch.wanted)
    except StoreUnavailable:
        with suppress(StoreUnavailable):
            yield ROLLBACK
        raise  # perhaps only the answer was lost: a repetition finds it
    except (StoreError, ContractViolation) as error:
        culprit = group.standing[0] if len(group.standing) == 1 and not group.failures else None
        if isinstance(error, GuardFailed):
            return Failed(TransactionEnded(), culprit)
        away = isinstance(error, StoreConflict | RightsMissing)
        return Failed(error, None if away else culprit, infrastructure=away)
    lane.marks = ()
    lane.committed.update(batch.wanted)
    for failure, row in zip(group.failures, attempts, strict=True):
        tell(lane, failure, row)
    if finish.queued or finish.outgoing:
        lane.notify()
    return None


def count_handled(context: Context, batch: Batch) -> None:
    """Count what was received, and what is done of it, for the history."""
    received: dict[tuple[str, str, str], int] = {}
    for one in batch.wanted.values():
        of = one.target.consumer, one.delivery.source, one.delivery.type
        received[of] = received.get(of, 0) + 1
    for of, times in received.items():
        context.activity.count("accepted", Series(*of), times)
    count_done(context, batch.group.standing)


def _after(lane: Lane, group: Group) -> Flow[None]:
    """It is committed."""
    yield from after_commit(group)
    for handler in group.recovered:
        lane.subscriptions = [*lane.context.cache.catalog.subscriptions.values()]
        yield from hasten(lane, handler)


def receipts_of(lane: Lane, batch: Batch) -> dict[int, Receipt]:
    """What became of each, by ordinal."""
    group = batch.group
    finished = {message.seq for message in group.standing}
    failed = {failure.message.seq: failure for failure in group.failures}
    receipts = {}
    for seq, one in batch.wanted.items():
        if seq in finished:
            text = group.results.get(seq)
            result = None if text is None else payload.decode_text(text)
            receipts[one.ordinal] = Receipt("accepted", seq, finished=True, result=result)
        elif seq in failed:
            receipts[one.ordinal] = failed_receipt(lane, seq, failed[seq])
        else:
            receipts[one.ordinal] = Receipt("accepted", seq)
    return receipts


def _undo() -> Flow[bool]:
    """Roll back; a lost connection has rolled back by itself. Whether it is lost."""
    try:
        yield ROLLBACK
    except StoreUnavailable:
        return True
    return False
