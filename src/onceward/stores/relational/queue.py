"""Finishing and settling, as statements.

Invariant: a message leaves the queue only under its claim, in the transaction that holds its effects; a failure is
written only under its claim, together with the row of its attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onceward.domain import identity
from onceward.flow import COMMIT, ROLLBACK, Each, Flow, Query, Request
from onceward.stores.moves.queue import AttemptRow, Finish, Finished, Hasten, Postpone, Relocate, Settle
from onceward.stores.relational.claims import Claims, unclaim
from onceward.stores.relational.keys import removing
from onceward.stores.relational.ledger import sending
from onceward.stores.relational.transaction import Transactions


class Queue:
    """What workers do to messages that they have claimed."""

    def __init__(self, transactions: Transactions, claims: Claims) -> None:
        self._transactions, self._claims = transactions, claims

    # The handler's transaction

    def begin(self, seconds: float, fence: str, *, savepoint: bool) -> Flow[None]:
        yield self._transactions.long(seconds, fence, savepoint=savepoint)

    def savepoint(self) -> Flow[None]:
        yield Query("savepoint")

    def rollback_to_savepoint(self) -> Flow[None]:
        yield Query("rollback_to_savepoint")

    def finish(self, finish: Finish) -> Flow[Finished]:
        # That the rows still carry the claim is a condition of `finish` itself; those of the failures carry the same.
        removal: list[Request] = [_finish(finish)]
        for failure in finish.failures:
            removal += [_settle(failure), add_attempt(failure.attempt)]
        if finish.given_back:
            removal.append(unclaim(finish.worker, finish.token, finish.given_back))
        if finish.keys or finish.applied:
            removal = removing(finish.keys, *removal, applied=finish.applied)
        requests, following = [*_beside(finish), *removal], None
        if finish.then is None:
            answers = yield (*requests, COMMIT)
        else:
            answers, following = yield from self._claims.end_with(requests, finish.then)
        promoted = answers[len(requests) - 1] if finish.keys else ()  # the last of what removes from keys
        return Finished(following, {subscription for (subscription,) in promoted})

    # Without the effects of a handler

    def settle(self, settle: Settle) -> Flow[bool]:
        keys = [] if settle.leaves_key is None else [settle.leaves_key]
        charge = _settle(settle)
        requests = removing(keys, charge, applied=[settle.seq] if keys else [])
        _, *answers = yield (self._transactions.short(), *requests, add_attempt(settle.attempt))
        if not answers[requests.index(charge)]:  # another worker has it: nothing of this is true any more
            yield ROLLBACK
            return False
        if settle.interrupted is not None:
            yield audit("interrupt", *settle.interrupted)
        yield COMMIT
        return True

    def postpone(self, postpone: Postpone) -> Flow[float | None]:
        (rows,) = yield from self._transactions.run(Query("postpone", postpone._asdict()))
        return float(rows[0][1]) if rows else None

    def put_off(self, worker: int, token: int, seqs: Sequence[int], seconds: float) -> Flow[None]:
        claim = {"worker": worker, "token": token}
        yield from self._transactions.run(Query("put_off", {"seqs": list(seqs), **claim, "delay": seconds}))

    def relocate(self, relocate: Relocate) -> Flow[bool]:
        seq, worker, token, leaves, key_hash, key, aggregate, sequence, reason = relocate
        claim = {"seq": seq, "worker": worker, "token": token}
        keys = {"key_hashes": sorted({one for one in (leaves, key_hash) if one is not None})}
        yield self._transactions.short()
        yield Query("lock_keys", keys)
        if not (yield Query("move", {**claim, "key_hash": key_hash, "slot": identity.slot(key), "sequence": sequence})):
            yield ROLLBACK  # another worker has it
            return False
        yield Query("set_body_key", {"seq": seq, "key": key, "aggregate": aggregate, "key_from": "worker"})
        yield Query("promote", keys)
        yield audit("move", seq, "onceward", reason)
        yield COMMIT
        return True

    def hasten(self, hasten: Hasten) -> Flow[int]:
        outgoing = {"outgoing": hasten.destination is not None, "destination": hasten.destination}
        which = {"subscriptions": list(hasten.subscriptions), **outgoing, "limit": hasten.limit}
        (rows,) = yield from self._transactions.run(Query("hasten", which))
        return len(rows)


def add_attempt(attempt: AttemptRow) -> Query:
    """The statement that adds a failed attempt to the history of its message."""
    return Query("add_attempt", attempt)


def audit(action: str, seq: int, actor: str, reason: str) -> Query:
    """The statement that adds a line to the audit."""
    return Query("add_audit", {"action": action, "seq": seq, "actor": actor, "reason": reason})


def _settle(settle: Settle) -> Query:
    claim = {"seq": settle.seq, "worker": settle.worker, "token": settle.token}
    detach = settle.leaves_key is not None
    return Query("settle", {**claim, "state": settle.state, "delay": settle.delay, "detach": detach})


def _finish(finish: Finish) -> Query:
    return Query(
        "finish",
        {
            "seqs": list(finish.seqs),
            "worker": finish.worker,
            "token": finish.token,
            "code_version": finish.code_version,
            "fence": finish.fence,
            "expected": len(finish.seqs),
        },
    )


def _beside(finish: Finish) -> Iterator[Request]:
    """What is written in the same transaction beside the effects themselves."""
    if finish.results:
        yield Each("store_results", [{"seq": seq, "result": text} for seq, text in finish.results.items()])
    if finish.outgoing:
        yield sending(finish.outgoing)
    if finish.forget_bodies:
        yield Query("forget_bodies", {"seqs": list(finish.forget_bodies)})
    for seq, reason in finish.skipped:
        yield audit("skip", seq, "onceward", reason)
