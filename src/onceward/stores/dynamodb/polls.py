"""Polled APIs."""

from __future__ import annotations

from typing import Any

from onceward.flow import COMMIT, ROLLBACK, Flow
from onceward.stores.dynamodb.items import Item, Place
from onceward.stores.dynamodb.sessions import Hold
from onceward.stores.dynamodb.unit import Cancelled, Shared, Unit, repeated
from onceward.stores.moves.polls import EndPoll, KeepPoll, PollState, TakePoll


class Polls:
    """What a process does that polls."""

    def __init__(self, base: Shared) -> None:
        self._base = base

    def take_poll(self, take: TakePoll) -> Flow[PollState | float]:
        def work() -> Flow[PollState | float]:
            unit = Unit(self._base)
            poll = yield from self._poll(unit, take.source)
            known = poll or {"source": take.source, "number": 0, "failures": 0, "due_at": unit.now}
            if known["due_at"] > unit.now and not (take.early and "token" not in known):
                return float((known["due_at"] - unit.now) / 1_000_000)
            until = unit.now + int(take.patience * 1_000_000)
            unit.set(self._at(take.source), {**known, "token": take.token, "due_at": until})
            yield from unit.commit()
            return PollState(known.get("cursor"), known["number"], known.get("hash"), known["failures"])

        return (yield from repeated(work))

    def keep_poll(self, keep: KeepPoll, receive: Flow[Any] | None) -> Flow[bool]:
        unit = Unit(self._base)
        poll = yield from self._poll(unit, keep.source)
        if poll is None or poll.get("token") != keep.token:
            return False
        if poll["number"] != keep.number:
            return bool(poll["number"] == keep.next)  # a commit whose answer was lost has moved the cursor
        until = unit.now + int(keep.patience * 1_000_000)
        moved = {"cursor": keep.cursor, "number": keep.next, "hash": keep.hash, "due_at": until}
        unit.set(self._at(keep.source), {**poll, **moved})
        yield Hold()
        try:
            if receive is not None:
                yield from receive  # what it writes is held back
            yield from unit.commit()
            yield COMMIT
        except Cancelled:
            yield ROLLBACK
            raise
        return True

    def end_poll(self, end: EndPoll) -> Flow[None]:
        def work() -> Flow[None]:
            unit = Unit(self._base)
            poll = yield from self._poll(unit, end.source)
            if poll is not None and poll.get("token") == end.token:
                due = unit.now + int(end.wait * 1_000_000)
                ended = {"failures": end.failures, "due_at": due, "ended_at": unit.now, "error": end.error}
                unit.set(self._at(end.source), {**poll, **ended, "token": None})
                yield from unit.commit()

        yield from repeated(work)

    def _at(self, source: int) -> Place:
        return self._base.layout.at("P", sk=str(source))

    def _poll(self, unit: Unit, source: int) -> Flow[Item | None]:
        (poll,) = yield from unit.get(self._at(source))
        return poll
