"""Membership, as statements.

Invariant: claims come off and the worker row goes in one transaction, so a process that was declared dead can neither
finish what it held nor claim anything new. A message is charged for a crash only if it was the only one its process
held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from onceward.flow import COMMIT, Flow, Query
from onceward.stores.moves.membership import Charge, Crash, Heartbeat, Member, NewWorker
from onceward.stores.relational.keys import leave_key
from onceward.stores.relational.queue import add_attempt
from onceward.stores.relational.transaction import Transactions


class _Held(NamedTuple):
    """A message that a dead worker has claimed."""

    seq: int
    attempts: int
    crashes: int
    key_hash: int | None
    on_dead: str
    isolation: int


class Membership:
    """What processes do."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def register(self, worker: NewWorker, cause: Callable[[Member], str], charge: Charge) -> Flow[bool]:
        yield self._transactions.short()
        before = yield from _named(worker.process)
        yield from _take_over([(member, cause(member)) for member in before], charge)
        rows, _ = yield (Query("add_worker", worker._asdict()), COMMIT)
        return bool(rows)

    def heartbeat(self, heartbeat: Heartbeat) -> Flow[bool]:
        (rows,) = yield from self._transactions.run(Query("heartbeat", heartbeat._asdict()))
        return bool(rows)

    def members_named(self, process: str) -> Flow[list[Member]]:
        yield self._transactions.short()
        members = yield from _named(process)
        yield COMMIT
        return members

    def take_over_lapsed(self, worker: int, cause: Callable[[Member], str], charge: Charge) -> Flow[int]:
        yield self._transactions.short()
        rows = yield Query("lapsed_workers", {"worker": worker})
        dead = [Member(*row) for row in rows]
        yield from _take_over([(member, cause(member)) for member in dead], charge)
        yield COMMIT
        return len(dead)

    def take_over_process(self, process: str, cause: str, charge: Charge) -> Flow[int]:
        yield self._transactions.short()
        dead = yield from _named(process)
        yield from _take_over([(member, cause) for member in dead], charge)
        yield COMMIT
        return len(dead)

    def deregister(self, worker: int) -> Flow[None]:
        which = {"worker": worker}
        names = ("lock_worker", "unclaim_all", "forget_worker")
        yield from self._transactions.run(*(Query(name, which) for name in names))

    def tokens(self, worker: int) -> Flow[set[int]]:
        (rows,) = yield from self._transactions.run(Query("tokens_of", {"worker": worker}))
        return {token for (token,) in rows}


def _named(process: str) -> Flow[list[Member]]:
    rows = yield Query("worker_of_process", {"process": process})
    return [Member(*row) for row in rows]


def _take_over(dead: Sequence[tuple[Member, str]], charge: Charge) -> Flow[None]:
    """Claims off, crashes charged, worker rows gone; the keys that lose a message are locked together, in order."""
    held: list[list[_Held]] = []
    for member, _ in dead:
        rows = yield Query("claimed_by", {"worker": member.worker})
        held.append([_Held(*row) for row in rows])
    leaving = [_leaving(messages, charge) for messages in held]
    keys = sorted({one.key_hash for one in leaving if one is not None and one.key_hash is not None})
    if keys:
        yield Query("lock_keys", {"key_hashes": keys})
    for (member, cause), messages, leaver in zip(dead, held, leaving, strict=True):
        yield from _charge(member, cause, messages, charge)
        if leaver is not None:
            yield from leave_key(leaver.seq, leaver.key_hash)
        yield Query("forget_worker", {"worker": member.worker})
        if member.inline:  # perhaps a message without a claim was the cause: store first for a while
            yield Query("touch_catalog", {"crash": True})


def _charge(member: Member, cause: str, messages: Sequence[_Held], charge: Charge) -> Flow[None]:
    once = 1 if len(messages) == 1 else 0
    level = _first_level([message.isolation for message in messages])
    params: dict[str, Any] = {"worker": member.worker, "charge": once, "crash_limit": charge.limit, "level": level}
    levels = dict((yield Query("take_over", params)))
    for message in messages:
        crash = Crash(
            message.seq, message.attempts, message.crashes, member.worker, cause, len(messages), levels[message.seq]
        )
        yield add_attempt(charge.attempt(crash))


def _first_level(levels: Sequence[int]) -> int:
    """The level of those that were not isolated yet: they run in groups of half as many, beside other messages."""
    return max(1, levels.count(0) // 2) + 1


def _leaving(messages: Sequence[_Held], charge: Charge) -> _Held | None:
    """The message of a dead worker whose last crash this was and whose key goes on without it."""
    if len(messages) != 1:
        return None
    message = messages[0]
    spent = message.crashes + 1 >= charge.limit
    return message if spent and message.key_hash is not None and message.on_dead == "continue" else None
