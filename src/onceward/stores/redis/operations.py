"""What operators do, the record of external calls, and polled APIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from onceward.domain.reference import split
from onceward.flow import Flow
from onceward.stores.moves.effects import Earlier, Intend
from onceward.stores.moves.operations import (
    Case,
    EffectDecision,
    KeyOf,
    Order,
    Redrive,
    Resolve,
    Resolved,
    Revise,
)
from onceward.stores.moves.polls import EndPoll, KeepPoll, PollState, TakePoll
from onceward.stores.redis.requests import Ask, asked, both, done, mismatch_given, row_given, row_raw, whole


class Operations:
    """What operators do, each together with its line in the audit."""

    def key_of(self, seq: int) -> Flow[KeyOf | None]:
        found = yield from asked("key_of", {"seq": seq})
        if found is None:
            return None
        where = found["consumer"], bool(found["o"]), found.get("destination"), whole(found.get("q"))
        return KeyOf(whole(found.get("h")), found.get("key"), found.get("aggregate"), *where)

    def redrive(self, redrive: Redrive) -> Flow[Literal["done", "not dead", "passed"]]:
        answer: Literal["done", "not dead", "passed"] = yield from done("redrive", _redrive_given(redrive))
        return answer

    def revise(self, revise: Revise) -> Flow[Literal["done", "not dead", "passed", "changed"]]:
        reference = split(revise.headers)[1]
        given = {
            **_redrive_given(revise.redrive),
            "seen_headers": revise.seen_headers or "",
            "headers": revise.headers,
            "blob": None if reference is None else reference.name,
            "kept": [mismatch_given(one) for one in revise.kept],
        }
        raw = [part for one in revise.kept for part in (one["hash"], one["body"])]
        ask = Ask("revise", given, [revise.seen_body, revise.body, *raw])
        answer: Literal["done", "not dead", "passed", "changed"] = (yield from both(ask))[0]
        return answer

    def discard(self, order: Order, *, scheduled: bool) -> Flow[bool]:
        return bool((yield from done("discard", {**order._asdict(), "scheduled": scheduled})))

    def make_due(self, order: Order) -> Flow[bool]:
        return bool((yield from done("make_due", order._asdict())))

    def unblock(self, order: Order) -> Flow[bool]:
        return bool((yield from done("unblock", order._asdict())))

    def settle_effect(self, decision: EffectDecision) -> Flow[bool]:
        given = {"key": decision.key, "result": decision.result, "patience": decision.patience}
        return bool((yield from done("settle_effect", {**given, **decision.order._asdict()})))

    def case(self, case: int) -> Flow[Case | None]:
        found, bodies = yield from both(Ask("case", {"case": case}, reads=True))
        return None if found is None else case_of(found, bodies)

    def resolve(self, resolve: Resolve) -> Flow[Resolved]:
        row = resolve.row
        given = {
            "case": resolve.case,
            "resolution": resolve.resolution,
            "row": None if row is None else row_given(row),
            "catalog": str(resolve.catalog),
            **resolve.order._asdict(),
        }
        found = yield from done("resolve", given, () if row is None else row_raw(row))
        return Resolved(found["state"], found.get("accepted"))

    def keep_first(self, source: str, type: str, actor: str, reason: str, limit: int) -> Flow[int]:  # noqa: A002 - as the move
        given = {"source": source, "type": type, "actor": actor, "reason": reason, "limit": limit}
        return int((yield from done("keep_first", given)))

    def record_reading(self, order: Order) -> Flow[bool]:
        return bool((yield from done("record_reading", order._asdict())))

    def sign_out(self, session: str, seconds: float) -> Flow[None]:
        yield from done("sign_out", {"session": session, "seconds": seconds})

    def is_signed_out(self, session: str) -> Flow[bool]:
        return bool((yield from asked("is_signed_out", {"session": session})))


class Effects:
    """External calls: their intents and their results."""

    def intend(self, intent: Intend) -> Flow[Earlier | None]:
        found = yield from done("intend", {**intent._asdict(), "worker": str(intent.worker)})
        return None if found is None else Earlier(found["done"], found.get("result"), found["age"])

    def record_effect(self, key: str, result: str) -> Flow[None]:
        yield from done("record_effect", {"key": key, "result": result})

    def forget_intent(self, key: str) -> Flow[None]:
        yield from done("forget_intent", {"key": key})


class Polls:
    """What a process does that polls."""

    def take_poll(self, take: TakePoll) -> Flow[PollState | float]:
        found, hashes = yield from both(Ask("take_poll", take._asdict()))
        if "wait" in found:
            return float(found["wait"])
        return PollState(found.get("cursor"), found["number"], bytes(hashes[0]) if hashes else None, found["failures"])

    def keep_poll(self, keep: KeepPoll, receive: Flow[Any] | None) -> Flow[bool]:
        """A response is stored, and then the cursor moves: should the process die in between, it is asked for again.

        Then its messages are copies, for their ids are the same.
        """
        given = {name: value for name, value in keep._asdict().items() if name != "hash"}
        whose = yield from asked("standing", given)
        if whose != "ours":  # another has the turn, or a commit whose answer was lost has moved the cursor
            return bool(whose == "moved")
        if receive is not None:
            yield from receive
        whose = yield from done("keep_poll", given, [keep.hash])
        return bool(whose != "lost")

    def end_poll(self, end: EndPoll) -> Flow[None]:
        yield from done("end_poll", end._asdict())


def _redrive_given(redrive: Redrive) -> dict[str, Any]:
    hash_, seen = redrive.key_hash, redrive.seen_key
    return {
        **redrive.order._asdict(),
        "h": None if hash_ is None else str(hash_),
        "seen": None if seen is None else str(seen),
        "counted": redrive.counted,
    }


def case_of(found: Mapping[str, Any], bodies: Sequence[bytes]) -> Case:
    """A mismatch that waits for a decision; five pieces of bytes belong to each."""
    hash_, body, stored_id, first_hash, first_body = bodies
    return Case(
        case=found["case"],
        seq=found["seq"],
        hash=bytes(hash_),
        type=found["type"],
        version=found["version"],
        headers=found.get("headers"),
        body=bytes(body),
        copies=found["copies"],
        first_at=int(found["first_at"]),
        last_at=int(found["last_at"]),
        source=found["source"],
        stored_id=bytes(stored_id),
        first_hash=bytes(first_hash),
        first_body=bytes(first_body) if found["has_body"] else None,
        consumer=found["consumer"],
        first_id=found.get("first_id"),
        key=found.get("key"),
        first_headers=found.get("first_headers"),
        first_type=found.get("first_type"),
        first_version=found.get("first_version"),
        position=whole(found.get("position")),
        due_at=whole(found.get("due")),
    )
