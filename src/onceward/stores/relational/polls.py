"""Polled APIs, as statements.

Invariant: the cursor moves if, and only if, the response before it is committed, and only for the process whose token
the row carries.
"""

from __future__ import annotations

from typing import Any

from onceward.flow import COMMIT, ROLLBACK, Begin, Commit, Flow, Query, T
from onceward.stores.moves.polls import EndPoll, KeepPoll, PollState, TakePoll
from onceward.stores.relational.transaction import Transactions


class Polls:
    """What a process does that polls."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions, self._run = transactions, transactions.run

    def take_poll(self, take: TakePoll) -> Flow[PollState | float]:
        mine = {"source": take.source}
        requests = (Query("add_poll", mine), Query("take_poll", take._asdict()), Query("poll_left", mine))
        _, rows, ((left,),) = yield from self._run(*requests)
        if not rows:
            return float(left)
        cursor, number, digest, failures = rows[0]
        return PollState(cursor, number, None if digest is None else bytes(digest), failures)

    def keep_poll(self, keep: KeepPoll, receive: Flow[Any] | None) -> Flow[bool]:
        yield self._transactions.short()
        rows = yield Query("keep_poll", keep._asdict())
        if not rows:
            yield ROLLBACK
            (state,) = yield from self._run(Query("poll_state", {"source": keep.source, "token": keep.token}))
            # A commit whose answer was lost leaves the number that it wrote.
            return bool(state == [(keep.next,)])
        if receive is not None:
            yield from inside(receive)
        yield COMMIT
        return True

    def end_poll(self, end: EndPoll) -> Flow[None]:
        yield from self._run(Query("end_poll", end._asdict()))


def inside(flow: Flow[T]) -> Flow[T]:
    """Run a step inside the transaction that is open: where it would begin or commit its own, nothing happens."""
    try:
        request = next(flow)
        while True:
            parts = request if isinstance(request, tuple) else (request,)
            kept = tuple(part for part in parts if not isinstance(part, Begin | Commit))
            try:
                answers = iter((yield kept) if kept else ())
            except BaseException as error:  # noqa: BLE001 - it belongs to the step that asked
                request = flow.throw(error)
                continue
            answer = tuple(None if isinstance(part, Begin | Commit) else next(answers) for part in parts)
            request = flow.send(answer if isinstance(request, tuple) else answer[0])
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # StopIteration cannot carry the type
