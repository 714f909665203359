"""Claims: which messages a worker takes. With keys, only those with nothing unfinished of their key before them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from onceward.flow import Flow
from onceward.stores.moves.claims import PASS, Claim, Claimed, ClaimedRow, in_sequence
from onceward.stores.redis.requests import Ask, asked, both, done, whole


class Claims:
    """Looks for due messages, and takes them."""

    # Looking

    def first_due(self, subscriptions: Sequence[int]) -> Flow[set[int]]:
        return set((yield from asked("first_due", {"subscriptions": list(subscriptions)})) or ())

    def fair_share(self, claim: Claim) -> Flow[int]:
        return int((yield from asked("fair_share", {"claim": claim_given(claim)})))

    def keys_in_front(self, claim: Claim) -> Flow[set[int]]:
        found = yield from asked("keys_in_front", {"claim": claim_given(claim)})
        return {int(hash_) for hash_ in found or ()}

    def isolation_level(self, subscriptions: Sequence[int], destination: str | None) -> Flow[int]:
        given = {"subscriptions": list(subscriptions), "destination": destination}
        return int((yield from asked("isolation_level", given)))

    def awaiting(self, destinations: Sequence[str]) -> Flow[list[str]]:
        found = set((yield from asked("awaiting", {"destinations": list(destinations)})) or ())
        return [name for name in destinations if name in found]

    def handled_elsewhere(self, lines: Sequence[str]) -> Flow[set[str]]:
        return set((yield from asked("handled_elsewhere", {"lines": list(lines)})) or ())

    def body_of(self, seq: int, seconds: float) -> Flow[bytes]:
        del seconds
        _, (body,) = yield from both(Ask("body_of", {"seq": seq}, reads=True))
        return bytes(body)

    # Taking

    def claim(self, claim: Claim) -> Flow[Claimed]:
        found, bodies = yield from both(Ask("claim", {"claim": claim_given(claim)}))
        return (yield from claimed(claim, found, bodies))

    def still_claimed(self, worker: int, tokens: Collection[int]) -> Flow[set[int]]:
        wanted = {"worker": str(worker), "tokens": [str(token) for token in tokens]}
        return set((yield from asked("still_claimed", wanted)) or ())

    def unclaim(self, worker: int, token: int, seqs: Sequence[int]) -> Flow[None]:
        yield from done("unclaim", {"worker": str(worker), "token": str(token), "seqs": list(seqs)})

    def unclaim_tokens(self, worker: int, tokens: Sequence[int]) -> Flow[None]:
        yield from done("unclaim_tokens", {"worker": str(worker), "tokens": [str(token) for token in tokens]})


def claim_given(claim: Claim) -> dict[str, Any]:
    """What the library must know of a claim."""
    return {
        "worker": str(claim.worker),
        "token": str(claim.token),
        "subscriptions": list(claim.subscriptions),
        "limit": claim.limit,
        "cursor": claim.cursor,
        "retries": claim.retries,
        "held": [str(hash_) for hash_ in claim.held],
        "destination": claim.destination,
        "isolation": claim.isolation,
    }


def claimed(claim: Claim, found: Mapping[str, Any], bodies: Sequence[bytes]) -> Flow[Claimed]:
    """What a claim has brought. What waits for the number before its own is held by a change of its own.

    Between the two a row carries the claim, and is not run: should the process die there, it is given back as
    everything is that a dead one had.
    """
    if found.get("dead"):
        return Claimed(())
    rows = [_row(one, *bodies[2 * at : 2 * at + 2]) for at, one in enumerate(found["kept"] or ())]
    kept, is_parked = [(row, PASS) for row in rows], bool(found["parked"])
    if claim.gaps is not None:
        applied = {one["seq"]: int(one.get("applied") or 0) for one in found["kept"] or ()}
        kept, waiting = in_sequence(rows, applied, claim.gaps, claim.rests)
        if waiting:
            held = [[seq] if seconds is None else [seq, seconds] for seq, seconds in waiting.items()]
            yield from done("hold", {"worker": str(claim.worker), "token": str(claim.token), "held": held})
            is_parked = True
    return Claimed(
        kept=kept,
        found=found["found"],
        subscriptions=frozenset(map(int, found["subscriptions"])),
        parked=is_parked,
        unplaced=bool(found["unplaced"]),
        stepped_back=frozenset(map(int, found["stepped"] or ())),
    )


def _row(found: Mapping[str, Any], described: bytes, body: bytes) -> ClaimedRow:
    about = json.loads(described)
    return ClaimedRow(
        seq=found["seq"],
        subscription=found["u"],
        key_hash=whole(found.get("h")),
        place=int(found["p"]),
        sequence=whole(found.get("q")),
        attempts=found["a"],
        source=about["source"],
        id=about["id"],
        type=about["type"],
        version=about["version"],
        key=about["key"],
        headers=about["headers"],
        body=None if found["large"] else bytes(body),
        destination=about["destination"],
        key_from=about["key_from"],
        received_at=int(found["at"]),
        age=found["age"],
    )
