"""What operators do, the record of external calls, and polled APIs."""

from __future__ import annotations

from typing import Any, Literal

from onceward.flow import COMMIT, ROLLBACK, Flow
from onceward.stores.moves.effects import Earlier, Intend
from onceward.stores.moves.ledger import NewRow
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
from onceward.testing.memory.catalog import keep_revision
from onceward.testing.memory.sessions import Apply, Hold, move
from onceward.testing.memory.tables import EffectState, PollRow, Tables


class Operations:
    """What operators do, each together with its line in the audit."""

    @move
    def key_of(self, tables: Tables, seq: int) -> KeyOf | None:
        if seq not in tables.queue:
            return None
        row, body = tables.queue[seq], tables.bodies[seq]
        where = row.outgoing, body["destination"], row.sequence
        return KeyOf(row.key_hash, body["key"], body["aggregate"], tables.name(body["consumer"]), *where)

    @move
    def redrive(self, tables: Tables, redrive: Redrive) -> Literal["done", "not dead", "passed"]:
        outcome = _returned(tables, redrive)
        if outcome == "done":
            tables.say("redrive", *_told(redrive.order))
        return outcome

    @move
    def revise(self, tables: Tables, revise: Revise) -> Literal["done", "not dead", "passed", "changed"]:
        seq = revise.redrive.order.seq
        row = tables.queue.get(seq)
        if row is None or row.token is not None or row.state not in ("dead", "retry"):
            return "not dead"
        body = tables.bodies[seq]
        if (body["body"], body["headers"]) != (revise.seen_body, revise.seen_headers):
            return "changed"
        if row.state == "retry":
            tables.queue[seq] = row._replace(state="ready", due_at=None, attempts=0, crashes=0, postponed=0)
        elif (outcome := _returned(tables, revise.redrive)) != "done":
            return outcome
        tables.bodies[seq] = {**body, "body": revise.body, "headers": revise.headers}
        for one in revise.kept:
            keep_revision(tables, one)
        tables.say("edit", *_told(revise.redrive.order))
        return "done"

    @move
    def discard(self, tables: Tables, order: Order, *, scheduled: bool) -> bool:
        row = tables.queue.get(order.seq)
        if row is None or row.token is not None or not tables.is_first(row):
            return False
        if scheduled and row.state != "scheduled":
            return False
        if row.key_hash is not None:
            tables.advance([row.seq])
        del tables.queue[row.seq]
        tables.promote([row.key_hash])
        tables.say("discard", *_told(order))
        return True

    @move
    def make_due(self, tables: Tables, order: Order) -> bool:
        row = tables.queue.get(order.seq)
        if row is None or row.status(tables.now) not in ("retrying", "scheduled"):
            return False
        tables.queue[row.seq] = row._replace(due_at=tables.now)
        body = tables.bodies[row.seq]
        tables.bodies[row.seq] = {**body, "due_at": body["due_at"] and tables.now}
        tables.say("hasten", *_told(order))
        return True

    @move
    def unblock(self, tables: Tables, order: Order) -> bool:
        if not tables.leave_key(order.seq):
            return False
        tables.say("unblock", *_told(order))
        return True

    @move
    def settle_effect(self, tables: Tables, decision: EffectDecision) -> bool:
        effect = tables.effects.get(decision.key)
        if effect is None or effect.done or _may_run(tables, effect, decision.patience):
            return False
        if decision.result is None:
            del tables.effects[decision.key]
        else:
            tables.effects[decision.key] = effect._replace(done=True, result=decision.result, finished_at=tables.now)
        happened = "effect did not happen" if decision.result is None else "effect happened"
        tables.say(happened, *_told(decision.order))
        return True

    @move
    def case(self, tables: Tables, case: int) -> Case | None:
        return next((one for one in open_cases(tables) if one.case == case), None)

    @move
    def resolve(self, tables: Tables, resolve: Resolve) -> Resolved:
        case = tables.cases.get(resolve.case)
        if resolve.row is not None and resolve.catalog != tables.version:
            return Resolved("outdated")
        if case is None or case.resolution is not None:
            return Resolved("closed")
        accepted = None if resolve.row is None else _accepted(tables, resolve.row)
        if resolve.resolution == "discard":
            del tables.cases[resolve.case]
        else:
            tables.cases[resolve.case] = case._replace(resolution=resolve.resolution, accepted=accepted)
        action = "discard-mismatch" if resolve.resolution == "discard" else resolve.resolution
        tables.say(action, *_told(resolve.order))
        return Resolved("resolved", accepted)

    @move
    def keep_first(self, tables: Tables, source: str, type: str, *told: Any) -> int:  # noqa: A002 - as the move
        actor, reason, limit = told
        same = [one for one in open_cases(tables) if one.hash == one.first_hash]
        found = [one for one in same if (one.source, one.type) == (source, type)][:limit]
        for one in found:
            tables.cases[one.case] = tables.cases[one.case]._replace(resolution="keep-first")
            tables.say("keep-first", one.seq, actor, reason)
        return len(found)

    @move
    def record_reading(self, tables: Tables, order: Order) -> bool:
        if order.seq not in tables.ledger:
            return False
        tables.say("read", *_told(order))
        return True

    @move
    def sign_out(self, tables: Tables, session: str, seconds: float) -> None:
        kept = {one: until for one, until in tables.sessions.items() if until >= tables.now}
        tables.sessions = {session: tables.now + int(seconds * 1_000_000), **kept}

    @move
    def is_signed_out(self, tables: Tables, session: str) -> bool:
        return session in tables.sessions


class Effects:
    """External calls: their intents and their results."""

    @move
    def intend(self, tables: Tables, intent: Intend) -> Earlier | None:
        known = tables.effects.get(intent.key)
        if known is None:
            tables.effects[intent.key] = EffectState(intent.seq, intent.name, intent.worker, tables.now)
            return None
        # It belongs to whoever asks now: the attempt that began it may have been undone with its number.
        tables.effects[intent.key] = known._replace(seq=intent.seq)
        return Earlier(known.done, known.result, tables.since(known.started_at))

    @move
    def record_effect(self, tables: Tables, key: str, result: str) -> None:
        known = tables.effects.get(key)
        if known is not None and not known.done:
            tables.effects[key] = known._replace(done=True, result=result, finished_at=tables.now)

    @move
    def forget_intent(self, tables: Tables, key: str) -> None:
        if key in tables.effects and not tables.effects[key].done:
            del tables.effects[key]


class Polls:
    """What a process does that polls."""

    @move
    def take_poll(self, tables: Tables, take: TakePoll) -> PollState | float:
        poll = tables.polls.setdefault(take.source, PollRow(PollState(None, 0, None, 0), tables.now))
        if poll.due_at > tables.now and not (take.early and poll.token is None):
            return -tables.since(poll.due_at)
        until = tables.now + int(take.patience * 1_000_000)
        tables.polls[take.source] = poll._replace(token=take.token, due_at=until)
        return poll.state

    def keep_poll(self, keep: KeepPoll, receive: Flow[Any] | None) -> Flow[bool]:
        yield Hold()
        found: bool | None = yield Apply(lambda tables: _keep(tables, keep))
        if found is not None:  # another has the turn, or a commit whose answer was lost has moved the cursor
            yield ROLLBACK
            return found
        if receive is not None:
            yield from receive  # what it applies belongs to what is held
        yield COMMIT
        return True

    @move
    def end_poll(self, tables: Tables, end: EndPoll) -> None:
        poll = tables.polls.get(end.source)
        if poll is not None and poll.token == end.token:
            state, due = poll.state._replace(failures=end.failures), tables.now + int(end.wait * 1_000_000)
            tables.polls[end.source] = PollRow(state, due, ended_at=tables.now, error=end.error)


def _returned(tables: Tables, redrive: Redrive) -> Literal["done", "not dead", "passed"]:
    """Make a dead message ready."""
    (seq, _, _), key_hash, seen_key, counted = redrive
    row = tables.queue.get(seq)
    if row is None or row.state != "dead" or row.key_hash != seen_key:
        return "not dead"
    if counted:
        keys, running = tables.keys_of(seq), [one for one in tables.of_key(key_hash or 0) if one.token is not None]
        if keys is None or tables.progress.get(keys) != row.sequence or running:
            return "passed"
        tables.progress[keys] -= 1
    tables.queue[seq] = row._replace(state="ready", attempts=0, crashes=0, postponed=0, key_hash=key_hash)
    return "done"


def open_cases(tables: Tables) -> list[Case]:
    """The mismatches that wait for a decision, the first first."""
    return [_case(tables, number) for number, one in tables.cases.items() if one.resolution is None]


def _case(tables: Tables, number: int) -> Case:
    state = tables.cases[number]
    other = state.mismatch
    first, body = tables.ledger[other["seq"]], tables.bodies.get(other["seq"])
    return Case(
        case=number,
        seq=other["seq"],
        hash=other["hash"],
        type=other["type"],
        version=other["version"],
        headers=other["headers"],
        body=other["body"],
        copies=state.copies,
        first_at=state.first_at,
        last_at=state.last_at,
        source=tables.name(first.source),
        stored_id=first.stored_id,
        first_hash=first.hash,
        first_body=body and body["body"],
        consumer=tables.name(first.consumer),
        first_id=body and body["id"],
        key=other["key"],
        first_headers=body and body["headers"],
        first_type=body and body["type"],
        first_version=body and body["version"],
        position=other["position"],
        due_at=other["due_at"],
    )


def _told(order: Order) -> tuple[int, str, str]:
    return order.seq, order.actor, order.reason


def _accepted(tables: Tables, row: NewRow) -> int:
    """The second body as a message of its own."""
    stored = tables.store(row)
    return stored.seq if stored else tables.ids[row["consumer"], row["source"], row["stored_id"]]


def _may_run(tables: Tables, effect: EffectState, patience: float) -> bool:
    """Whether its message is running; one that is processed inline is not stored yet."""
    if effect.seq in tables.ledger:
        return effect.seq in tables.queue and tables.queue[effect.seq].token is not None
    return effect.worker in tables.workers and tables.since(effect.started_at) < patience


def _keep(tables: Tables, keep: KeepPoll) -> bool | None:
    """Move the cursor; else whether it stands already where this would move it."""
    poll = tables.polls.get(keep.source)
    if poll is None or poll.token != keep.token:
        return False
    if poll.state.number != keep.number:
        return poll.state.number == keep.next
    state = poll.state._replace(cursor=keep.cursor, number=keep.next, hash=keep.hash)
    until = tables.now + int(keep.patience * 1_000_000)
    tables.polls[keep.source] = poll._replace(state=state, due_at=until)
    return None
