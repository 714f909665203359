"""Claims, as statements.

Invariant: with keys, a row stays claimed only if every earlier row of its key is in this same claim, seen in a
statement that began after the key lock was taken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onceward.flow import COMMIT, Flow, Query, Request
from onceward.stores.moves.claims import PASS, Claim, Claimed, ClaimedRow, Kept, in_sequence
from onceward.stores.relational.transaction import Transactions


class Claims:
    """Looks for due messages, and takes them."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    # Looking

    def first_due(self, subscriptions: Sequence[int]) -> Flow[set[int]]:
        rows = yield from self._look("first_due", subscriptions=list(subscriptions))
        return {number for (number,) in rows}

    def fair_share(self, claim: Claim) -> Flow[int]:
        where = {"limit": claim.limit, "cursor": claim.cursor, "subscriptions": list(claim.subscriptions)}
        ((share,),) = yield from self._look("fair_share", **where)
        return int(share)

    def keys_in_front(self, claim: Claim) -> Flow[set[int]]:
        where = {name: value for name, value in _params(claim).items() if name in _LOOKED_AT}
        rows = yield from self._look("keys_in_front", **where)
        return {key for (key,) in rows}

    def isolation_level(self, subscriptions: Sequence[int], destination: str | None) -> Flow[int]:
        where = {"subscriptions": list(subscriptions), "destination": destination}
        (((level,),),) = yield from self._transactions.run(Query("isolation_level", where))
        return int(level)

    def awaiting(self, destinations: Sequence[str]) -> Flow[list[str]]:
        rows = yield from self._look("awaiting", destinations=list(destinations))
        return [name for (name,) in rows]

    def handled_elsewhere(self, lines: Sequence[str]) -> Flow[set[str]]:
        answers = yield from self._transactions.run(*(Query("handled_elsewhere", {"line": line}) for line in lines))
        return {line for line, ((known,),) in zip(lines, answers, strict=True) if known}

    def body_of(self, seq: int, seconds: float) -> Flow[bytes]:
        begin = replace(self._transactions.long(seconds, ""), by_index=True)
        _, rows, _ = yield (begin, Query("body_of", {"seq": seq}), COMMIT)
        return bytes(rows[0][0] or b"") if rows else b""

    def _look(self, name: str, **params: Any) -> Flow[list[Any]]:
        """What is only looked at need not be durable."""
        (rows,) = yield from self._transactions.run(Query(name, params), durable=False)
        return rows

    # Taking

    def claim(self, claim: Claim) -> Flow[Claimed]:
        # All that a handler does commits after its claim, and is lost with it; what is published is not.
        durable = claim.destination is not None or claim.isolation > 0
        begin = self._transactions.usual if durable else self._transactions.not_durable
        _, claimed = yield from self.end_with([begin], claim)
        return claimed

    def end_with(self, before: Sequence[Request], claim: Claim) -> Flow[tuple[Sequence[Any], Claimed]]:
        """End a transaction with a claim, without the rows that are not at the head of their key, and commit it.

        Returns the answers to what was asked before, too.

        It travels in one go, unless messages are numbered within their key: then it is looked at before the commit.
        """
        park = Query("park", {"worker": claim.worker, "token": claim.token})
        if claim.gaps is None:
            *answers, found, parked, _ = yield (*before, _query(claim), park, COMMIT)
            rows = [ClaimedRow._make(row) for row in found]
            gone = dict(parked)
            kept = [(row, PASS) for row in rows if row.seq not in gone]
        else:
            *answers, found, parked = yield (*before, _query(claim), park)
            rows = [ClaimedRow._make(row) for row in found]
            gone = dict(parked)
            kept = yield from _in_sequence(claim, claim.gaps, [row for row in rows if row.seq not in gone])
            yield COMMIT
        return answers, _claimed(rows, gone, kept)

    def still_claimed(self, worker: int, tokens: Collection[int]) -> Flow[set[int]]:
        (rows,) = yield from self._transactions.run(
            Query("still_claimed", {"worker": worker, "tokens": sorted(tokens)})
        )
        return {seq for (seq,) in rows}

    def unclaim(self, worker: int, token: int, seqs: Sequence[int]) -> Flow[None]:
        yield from self._transactions.run(unclaim(worker, token, seqs))

    def unclaim_tokens(self, worker: int, tokens: Sequence[int]) -> Flow[None]:
        yield from self._transactions.run(Query("unclaim_tokens", {"worker": worker, "tokens": sorted(tokens)}))


def unclaim(worker: int, token: int, seqs: Sequence[int]) -> Query:
    """The statement that gives messages of a claim back."""
    return Query("unclaim", {"seqs": list(seqs), "worker": worker, "token": token})


_LOOKED_AT = frozenset(("worker", "cursor", "limit", "subscriptions", "held"))


def _params(claim: Claim) -> dict[str, Any]:
    return {
        "worker": claim.worker,
        "token": claim.token,
        "subscriptions": list(claim.subscriptions),
        "limit": claim.limit,
        "cursor": claim.cursor,
        "retries": claim.retries,
        "held": list(claim.held),
        "destination": claim.destination,
        "level": claim.isolation,
    }


_USED = {
    "claim": ("worker", "token", "subscriptions", "limit", "cursor", "retries", "held"),
    "claim_outgoing": ("worker", "token", "subscriptions", "limit", "cursor", "destination"),
    "claim_isolated": ("worker", "token", "subscriptions", "limit", "held", "destination", "level"),
}
"""What each of the statements is told."""


def _query(claim: Claim) -> Query:
    name = "claim_isolated" if claim.isolation else "claim" if claim.destination is None else "claim_outgoing"
    params = _params(claim)
    return Query(name, {used: params[used] for used in _USED[name]})


def _claimed(rows: Sequence[ClaimedRow], gone: Mapping[int, str], kept: Sequence[Kept]) -> Claimed:
    states = set(gone.values())
    still_due = {seq for seq, state in gone.items() if state not in ("waiting", "unplaced")}
    left = [row for row in rows if row.seq in still_due] if still_due else []
    return Claimed(
        kept=kept,
        found=len(rows),
        subscriptions=frozenset(row.subscription for row in rows),
        parked=not states.isdisjoint(("waiting", "unplaced")) or len(kept) + len(gone) < len(rows),
        unplaced="unplaced" in states,
        stepped_back=frozenset(row.key_hash for row in left if row.key_hash is not None),
    )


def _in_sequence(claim: Claim, gaps: Mapping[int, float], rows: Sequence[ClaimedRow]) -> Flow[list[Kept]]:
    """Hold back what is numbered and has to wait for the number before it."""
    counted = [row.seq for row in rows if row.sequence is not None]
    if not counted:
        return [(row, PASS) for row in rows]
    kept, held = in_sequence(rows, dict((yield Query("progress", {"seqs": counted}))), gaps, claim.rests)
    for seq, seconds in held.items():
        yield Query("hold", {"seq": seq, "worker": claim.worker, "token": claim.token, "delay": seconds})
    return kept
