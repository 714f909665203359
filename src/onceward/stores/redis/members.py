"""Membership, take-over of the dead, and fan-out of messages that came before their handlers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onceward.domain import identity
from onceward.flow import Flow
from onceward.stores.moves.catalog import Unhandled
from onceward.stores.moves.fan_out import FannedOut, FanOut, Placement, UnhandledRow
from onceward.stores.moves.membership import Charge, Crash, Heartbeat, Member, NewWorker
from onceward.stores.redis.catalog import names_of
from onceward.stores.redis.queue import attempt_given
from onceward.stores.redis.requests import (
    Ask,
    asked,
    big,
    both,
    digits,
    done,
    mismatch_given,
    row_given,
    row_raw,
    whole,
)

APART, ALONE = 2, 1
"""Levels at which isolated messages run one by one, and with nothing beside them in the process."""


class Membership:
    """What processes do."""

    def register(self, worker: NewWorker, cause: Callable[[Member], str], charge: Charge) -> Flow[bool]:
        for member in (yield from self.members_named(worker.process)):
            yield from _bury(member, cause(member), charge)
        yield from done("register", {"worker": {**worker._asdict(), "worker": str(worker.worker)}})
        return True

    def heartbeat(self, heartbeat: Heartbeat) -> Flow[bool]:
        return bool((yield from done("heartbeat", {**heartbeat._asdict(), "worker": str(heartbeat.worker)})))

    def members_named(self, process: str) -> Flow[list[Member]]:
        return _members((yield from asked("members", {"process": process})))

    def take_over_lapsed(self, worker: int, cause: Callable[[Member], str], charge: Charge) -> Flow[int]:
        lapsed = _members((yield from asked("members", {"worker": str(worker)})))
        for member in lapsed:
            yield from _bury(member, cause(member), charge)
        return len(lapsed)

    def take_over_process(self, process: str, cause: str, charge: Charge) -> Flow[int]:
        dead = yield from self.members_named(process)
        for member in dead:
            yield from _bury(member, cause, charge)
        return len(dead)

    def deregister(self, worker: int) -> Flow[None]:
        yield from done("deregister", {"worker": str(worker)})

    def tokens(self, worker: int) -> Flow[set[int]]:
        return {int(token) for token in (yield from asked("tokens", {"worker": str(worker)})) or ()}


class FanOuts:
    """Places messages that waited for their consumers."""

    def fan_out(self, fan_out: FanOut) -> Flow[FannedOut]:
        found = yield from asked("waiting")
        waiting = [Unhandled(*one) for one in found["unhandled"] or ()]
        wanted = fan_out.wanted(waiting)
        outdated = bool(waiting) and str(fan_out.catalog) != found["version"]
        if outdated or not (wanted.types or wanted.subscriptions):
            return FannedOut(waiting=len(waiting), outdated=outdated)
        given = {
            "types": list(wanted.types),
            "subscriptions": list(wanted.subscriptions),
            "passed": list(fan_out.passed),
            "limit": fan_out.limit,
        }
        shown, bodies = yield from both(Ask("waiting_rows", given, reads=True))
        rows = [_unhandled(one, *bodies[4 * at : 4 * at + 4]) for at, one in enumerate(shown or ())]
        names = names_of(found["names"])
        placements = [fan_out.place(row, names) for row in rows]
        raw = [part for placement in placements for part in _placement_raw(placement)]
        given = {"catalog": str(fan_out.catalog), "placements": [_placement_given(one) for one in placements]}
        placed = yield from done("place", given, raw)
        if placed.get("outdated"):
            return FannedOut(waiting=len(waiting), outdated=True)
        seqs = [row.seq for row in rows]
        return FannedOut(seqs, placed["placed"] or (), waiting=len(waiting), at_end=len(rows) < fan_out.limit)


def _members(found: Sequence[Sequence[Any]] | None) -> list[Member]:
    return [Member(int(worker), bool(inline), pid, host) for worker, inline, pid, host in found or ()]


def _bury(member: Member, cause: str, charge: Charge) -> Flow[None]:
    """Claims off and the worker gone, in one change; a crash is charged to what was the only one that it held.

    What it holds is read before, and the change refuses where that has changed meanwhile.
    """
    is_done = False
    while not is_done:
        held = (yield from asked("held", {"worker": str(member.worker)})) or []
        rows = [_charged(row, held, member, cause, charge) for row in held]
        is_done = yield from done("bury", {"worker": str(member.worker), "rows": rows})


def _charged(
    row: Mapping[str, Any], held: Sequence[Mapping[str, Any]], member: Member, cause: str, charge: Charge
) -> dict[str, Any]:
    alone, fresh = len(held) == 1, sum(one["i"] == 0 for one in held)
    level = _level(row["i"], max(1, fresh // 2) + 1, alone=alone)
    crashes = row["c"] + alone
    crash = Crash(row["seq"], row["a"], row["c"], member.worker, cause, len(held), level)
    attempt = attempt_given(charge.attempt(crash))
    return {
        "seq": row["seq"],
        "n": row["n"],
        "i": level,
        "c": crashes,
        "dead": crashes >= charge.limit,
        "attempt": attempt,
    }


def _level(before: int, first: int, *, alone: bool) -> int:
    if alone or before in (ALONE, APART):
        return ALONE
    return APART if before else first


def _unhandled(found: Mapping[str, Any], described: bytes, body: bytes, stored_id: bytes, hash_: bytes) -> UnhandledRow:
    about = json.loads(described)
    return UnhandledRow(
        seq=found["seq"],
        source=about["source"],
        id=about["id"],
        type=about["type"],
        version=about["version"],
        key=about["key"],
        headers=about["headers"],
        body=bytes(body),
        consumer=found["consumer"],
        stored_id=bytes(stored_id),
        hash=bytes(hash_),
        place=int(found["p"]),
        subscription=found.get("u"),
        position=whole(about["position"]),
        key_hash=whole(found.get("h")),
        due_at=whole(found.get("due")),
    )


def _placement_given(placement: Placement) -> dict[str, Any]:
    own = placement.adoption
    adoption = None
    if own is not None:
        adoption = {
            "u": own.subscription,
            "h": big(own.key_hash),
            "q": digits(own.sequence),
            "y": own.unplaced,
            "key": own.key,
            "aggregate": own.aggregate,
            "p": digits(own.place),
            "due": big(own.due_at),
        }
    return {
        "seq": placement.seq,
        "adoption": adoption,
        "copies": [row_given(copy) for copy in placement.copies],
        "mismatch": mismatch_given(placement.mismatch),
        "keys": [str(hash_) for hash_ in placement.keys],
        "place": digits(placement.place),
        "unknown": identity.UNKNOWN_HASH.decode(),
    }


def _placement_raw(placement: Placement) -> list[bytes | str]:
    own = [placement.mismatch["hash"], placement.mismatch["body"]]
    return [*own, *(part for copy in placement.copies for part in row_raw(copy))]
