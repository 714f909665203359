"""Finishing and settling what was claimed: where effects and "done" become one change."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from onceward.errors import GuardFailed
from onceward.flow import Flow
from onceward.stores.moves.queue import AttemptRow, Finish, Finished, Hasten, Postpone, Relocate, Settle
from onceward.stores.recording import Open, Savepoint, Undo
from onceward.stores.redis.claims import claim_given, claimed
from onceward.stores.redis.requests import (
    End,
    both,
    digits,
    done,
    row_given,
    rows_raw,
)

log = logging.getLogger("onceward")


class Queue:
    """What workers do to messages that they have claimed."""

    # The handler's transaction

    def begin(self, seconds: float, fence: str, *, savepoint: bool) -> Flow[None]:
        del seconds, fence  # it holds nothing open
        yield (Open(), Savepoint()) if savepoint else Open()

    def savepoint(self) -> Flow[None]:
        yield Savepoint()

    def rollback_to_savepoint(self) -> Flow[None]:
        yield Undo()

    def finish(self, finish: Finish) -> Flow[Finished]:
        given = {
            "worker": str(finish.worker),
            "token": str(finish.token),
            "code_version": finish.code_version,
            "seqs": list(finish.seqs),
            "keys": [str(hash_) for hash_ in finish.keys],
            "applied": list(finish.applied),
            "results": {str(seq): text for seq, text in finish.results.items()},
            "outgoing": [row_given(row, outgoing=True) for row in finish.outgoing],
            "forget_bodies": list(finish.forget_bodies),
            "skipped": [{"seq": skip.seq, "reason": skip.reason} for skip in finish.skipped],
            "failures": [_settle_given(failure) for failure in finish.failures],
            "given_back": list(finish.given_back),
            "claim": None if finish.then is None else claim_given(finish.then),
        }
        found, bodies = yield from both(End("finish", given, rows_raw(finish.outgoing)))
        refuse_part(found)
        then = finish.then
        following = (yield from claimed(then, found["claimed"], bodies)) if then is not None else None
        return Finished(following, {*found["promoted"]})

    # Without the effects of a handler

    def settle(self, settle: Settle) -> Flow[bool]:
        given: dict[str, Any] = {
            "worker": str(settle.worker),
            "token": str(settle.token),
            "settle": _settle_given(settle),
        }
        given["interrupted"] = None if settle.interrupted is None else settle.interrupted._asdict()
        return bool((yield from done("settle", given)))

    def postpone(self, postpone: Postpone) -> Flow[float | None]:
        given = {**postpone._asdict(), "worker": str(postpone.worker), "token": str(postpone.token)}
        seconds: float | None = yield from done("postpone", given)
        return seconds

    def put_off(self, worker: int, token: int, seqs: Sequence[int], seconds: float) -> Flow[None]:
        given = {"worker": str(worker), "token": str(token), "seqs": list(seqs), "seconds": seconds}
        yield from done("put_off", given)

    def relocate(self, relocate: Relocate) -> Flow[bool]:
        given = {
            "seq": relocate.seq,
            "worker": str(relocate.worker),
            "token": str(relocate.token),
            "leaves": None if relocate.leaves is None else str(relocate.leaves),
            "h": str(relocate.key_hash),
            "key": relocate.key,
            "aggregate": relocate.aggregate,
            "q": digits(relocate.sequence),
            "reason": relocate.reason,
        }
        return bool((yield from done("relocate", given)))

    def hasten(self, hasten: Hasten) -> Flow[int]:
        given = {"subscriptions": list(hasten.subscriptions), "destination": hasten.destination, "limit": hasten.limit}
        return int((yield from done("hasten", given)))


def attempt_given(attempt: AttemptRow) -> dict[str, Any]:
    """A failed attempt, as the library keeps it."""
    return {**attempt, "worker": str(attempt["worker"])}


def _settle_given(settle: Settle) -> dict[str, Any]:
    return {
        "seq": settle.seq,
        "state": settle.state,
        "delay": settle.delay,
        "attempt": attempt_given(settle.attempt),
        "leaves": None if settle.leaves_key is None else str(settle.leaves_key),
    }


def refuse_part(found: Mapping[str, Any]) -> None:
    """A message whose effects were applied in part is dead already, and nothing must go on as if it was done."""
    if "part" in found:
        seqs = ", ".join(map(str, found["part"]))
        what = (
            f"message {seqs} is partly applied: command {found['why']}. What came before it stays, and it is not tried "
            "again by itself: look at what its handler writes, then discard or redrive it"
        )
        log.error(what)
        raise GuardFailed(what)
