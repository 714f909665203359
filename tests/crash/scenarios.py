"""What a process may be doing when it dies: each way through the code, small enough to die at every point of it.

`prepare` makes the world before, in the test process; `act` is played by the child that dies, and by the test
process once more afterwards, as a broker would deliver again and an operator would repeat a command. Whatever
was played and wherever it was cut off, the end must be `final`.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from onceward import ConfigurationError, Inbox, Receipt, Response
from onceward.domain import identity, payload
from onceward.domain.marks import Mark, Read
from onceward.errors import StoreConflict
from onceward.runtime.heartbeat import Membership
from onceward.runtime.runner import perform
from onceward.steps.introduce import introduce
from onceward.steps.isolated import next_batch
from onceward.steps.lane import Lane
from onceward.steps.membership import register, take_over_lapsed, take_over_process
from tests.crash.service import KINDS, SOURCE, Kind, Service, message

if TYPE_CHECKING:
    from tests.crash.ground import Ground

Tell = Callable[[str, Receipt], None]
"""Called with an id and its receipt, as soon as it is there: from now on the message may be acknowledged."""


@dataclass(slots=True)
class Stage:
    """What `prepare` works with."""

    ground: Ground
    service: Service
    kill_a_worker: Callable[[], None]
    """Let a process work on what is there until one of the messages kills it."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way through the code."""

    act: Callable[[Service, Tell], None]
    final: Mapping[str, str]
    """What becomes of each message, by "consumer/id"."""
    prepare: Callable[[Stage], None] = lambda _: None
    kinds: tuple[Kind, ...] = KINDS
    errors: Mapping[str, int] | None = field(default_factory=dict)
    """How many failed attempts are charged in the end, by id; `None` where that depends on the point."""
    crashes: Mapping[str, int] | None = None
    """How many crashes, where the deaths in `prepare` decide it alone."""
    aftercare: Callable[[Service], None] | None = None
    """What a person does when all else is over."""
    check: Callable[[Ground], None] = lambda _: None
    """What else is so in the end,"""
    always: Callable[[Ground], None] = lambda _: None
    """and what is so at every moment."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Settings of its processes."""
    relay: bool = False
    """Whether they publish outgoing messages."""
    blobs: bool = False
    """Whether they keep large bodies in a blob store."""


def ends(status: str, *names: str, consumer: str = "default") -> dict[str, str]:
    """All of them end alike."""
    return {f"{consumer}/{name}": status for name in names}


def keyed(account: str, position: int, **more: Any) -> Any:
    """A message of an account, named after its place in it."""
    return message(f"{account}{position}", "keyed", account=account, position=position, **more)


def receives(*messages: Any) -> Callable[[Service, Tell], None]:
    """Receive messages one by one."""

    def act(service: Service, tell: Tell) -> None:
        for one in messages:
            tell(one["id"], service.receive(**one))

    return act


def processes(*messages: Any) -> Callable[[Service, Tell], None]:
    """Process messages inline, one by one."""

    def act(service: Service, tell: Tell) -> None:
        for one in messages:
            tell(one["id"], service.process(**one))

    return act


def batch(*messages: Any) -> Callable[[Service, Tell], None]:
    """Process messages in one transaction."""

    def act(service: Service, tell: Tell) -> None:
        for one, receipt in zip(messages, service.process_many(list(messages)), strict=True):
            tell(one["id"], receipt)

    return act


def has(*messages: Any) -> Callable[[Stage], None]:
    """The messages are there, received and not yet handled."""

    def prepare(stage: Stage) -> None:
        stage.service.receive_many(list(messages))

    return prepare


def drains(service: Service, _: Tell) -> None:
    """Run what is due."""
    service.drain()


# Receiving

M1 = message("m1")
M9 = message("m9")
FORGED = {**M1, "data": {"name": "another"}}


def _receive_many(service: Service, tell: Tell) -> None:
    batch = [message(f"m{n}") for n in (1, 2, 3, 2, 4)]
    for one, receipt in zip(batch, service.receive_many(batch), strict=True):
        tell(one["id"], receipt)


def _reads(service: Service, tell: Tell) -> None:
    """Two messages of a source that is read in order."""
    batch = Read([message("m1"), message("m2")], [Mark(SOURCE, "log/0", None, "2")])
    for one, receipt in zip(batch, service.receive_many(batch), strict=True):
        tell(one["id"], receipt)


def _position_comes_with_what_was_read(ground: Ground) -> None:
    """R72: never without it."""
    if ground.number("SELECT count(*) FROM onceward_position"):
        assert ground.number("SELECT count(*) FROM onceward_ledger") == 2


def _in_own_transaction(service: Service, store: Callable[[Any], object]) -> None:
    """The caller's row and the message are one commit; a caller that finds its row does nothing again.

    On MySQL its transaction keeps to a view, which may be from before the consumers of this process were known: it is
    told so, and begins anew.
    """
    try:
        _in_one_transaction(service, store)
    except StoreConflict:
        _in_one_transaction(service, store)


def _in_one_transaction(service: Service, store: Callable[[Any], object]) -> None:
    with service.inbox.transaction() as tx:
        if not tx.execute("SELECT 1 FROM effect WHERE id = 'own'").fetchall():
            columns = "consumer, source, id, attempt, pid"
            tx.execute(f"INSERT INTO effect ({columns}) VALUES ('caller', 'caller', 'own', 1, 1)")
            store(tx)


def _receive_in_own_transaction(service: Service, _: Tell) -> None:
    _in_own_transaction(service, lambda tx: service.inbox.receive(tx=tx, **M1))


def _process_in_own_transaction(one: Any) -> Callable[[Service, Tell], None]:
    def act(service: Service, _: Tell) -> None:
        _in_own_transaction(service, lambda tx: service.inbox.process(tx=tx, **one))

    return act


def _own_row_comes_with_the_message(ground: Ground) -> None:
    stored = len(ground.statuses()) + len(ground.outgoing())
    assert ground.number("SELECT count(*) FROM effect WHERE id = 'own'") == stored


def _finished_m1(stage: Stage) -> None:
    stage.service.receive(**M1)
    stage.service.drain()


def _one_case(ground: Ground) -> None:
    """The other bytes wait in quarantine, counted at least once, and never ran."""
    assert ground.rows("SELECT resolution FROM onceward_quarantine") == [(None,)]


def _copies_are_counted(ground: Ground) -> None:
    """Once by the child, unless it died before, and once afterwards; once more where an answer was lost."""
    assert ground.number("SELECT copies FROM onceward_duplicate") in (1, 2, 3)


# Nobody knows the type yet

LATE = [message("p1", "pair"), message("p2", "pair"), message("f1", "foreign")]
LATE_ENDS = {**ends("done", "p1", "p2"), **ends("done", "p1", "p2", "f1", consumer="audit")}


def _unhandled(stage: Stage) -> None:
    with Service(stage.ground.url, handlers=False) as bare:
        bare.inbox.receive_many(LATE)
    assert set(stage.ground.statuses().values()) == {"unhandled"}


def _unhandled_in_two_services(stage: Stage) -> None:
    """The other one got them in the other order."""
    _unhandled(stage)
    with Inbox(stage.ground.url, service="audit") as other:
        other.receive_many(LATE[1::-1])


def _unhandled_and_large(stage: Stage) -> None:
    with Service(stage.ground.url, handlers=False) as bare:
        bare.inbox.receive(**message("p1", "pair", filling=TOO_LONG))


# Handling

TOO_LONG = "x" * 2**18
"""A body with this is not brought by a claim, but fetched when its turn has come."""
GROUP = [message(f"m{n}") for n in range(1, 6)]
GROUP_ENDS = ends("done", *(one["id"] for one in GROUP))
TWO_KEYS = [keyed("a", 1), keyed("b", 1), keyed("a", 2), keyed("b", 2), keyed("a", 3)]
TWO_KEYS_END = ends("done", "a1", "a2", "a3", "b1", "b2")
FAILING = message("m1", do={"raise": 2})
HOPELESS = message("m1", do={"raise": 3})
REJECTED = message("m1", do={"reject": True})
FLAWED = message("m1", do={"raise": 1})
FLAWED_GROUP = [message("m1"), message("m2", do={"raise": 1}), message("m3")]
FLAWED_TWICE = [message("m1"), *(message(name, do={"raise": 1}) for name in ("m2", "m3")), message("m4")]
FLAWED_KEY = [keyed("a", 1, do={"raise": 1}), keyed("a", 2), keyed("a", 3)]


FRAIL = [message("m1", "frail", do={"raise": 1}), message("m2", "frail")]
"""The first fails, and what its handler depends on is back with the second: the first need not wait any longer."""


def _staged(stage: Stage) -> None:
    """A version that only the release before knows, which still has a worker that lives."""
    context = stage.service.inbox.context
    stage.service.receive(**message("m1", "staged"))
    perform(stage.service.inbox.store, lambda: register(context, process="old", host="here", pid=1, inline=False))


def _redrive_what_came_too_late(service: Service) -> None:
    """Where the new release ran when the old one was gone, it is dead until somebody who knows it redrives it."""
    service.inbox.admin.redrive(type="staged", actor="operator")


def _grown(stage: Stage) -> None:
    """Who received these could not upcast the first one, so it has no key, and the second one has."""
    stage.service.drain()
    with Service(stage.ground.url, handlers=False) as bare:
        bare.receive(**message("g1", "grown", user="a", position=1))
        bare.receive(**message("g2", "grown", account="a", position=2), version=2)
    assert stage.ground.rows("SELECT id FROM onceward_body b WHERE b.key IS NULL") == [("g1",)]


def _moved_once(ground: Ground) -> None:
    assert ground.rows("SELECT action FROM onceward_audit") == [("move",)]
    assert ground.rows("SELECT DISTINCT b.key FROM onceward_body b") == [("a",)]


def _drains_warily(service: Service, _: Tell) -> None:
    """With a savepoint after every message, so that one that fails goes back to it."""
    with patch("onceward.steps.group.SPACING", 1):
        service.drain()


def _parked(stage: Stage) -> None:
    """The head of a key is dead and two messages wait behind it."""
    stage.service.receive_many([keyed("a", 1, do={"raise": 3}), keyed("a", 2), keyed("a", 3)])
    stage.service.drain()
    assert list(stage.ground.statuses().values()) == ["dead", "waiting", "waiting"]


def _promoting(stage: Stage) -> None:
    """A head that will succeed now, and two messages parked behind it."""
    _parked(stage)
    stage.ground.change("UPDATE onceward_queue SET state = 'ready', attempts = 3 WHERE state = 'dead'")


def _in_order(ground: Ground) -> None:
    for account, positions in ground.positions().items():
        assert positions == sorted(positions), f"{account} took effect in the order {positions}"


def _isolated(stage: Stage) -> None:
    """Two messages that run beside others, as after the death of a process that held them, and one that runs alone."""
    has(message("m1"), message("m2"), message("m3"))(stage)
    stage.ground.change("UPDATE onceward_queue SET isolation = 3")
    stage.ground.change("UPDATE onceward_queue SET isolation = 1 WHERE seq = (SELECT max(seq) FROM onceward_queue)")


LATER = timedelta(hours=1)


def _due_now(stage: Stage) -> None:
    """The second one of a key came first, with a time that has come by now; so it comes behind the first one."""
    has({**keyed("a", 2), "delay": LATER}, {**keyed("b", 1), "delay": LATER}, keyed("a", 1))(stage)
    stage.ground.change("UPDATE onceward_queue SET due_at = 1 WHERE state = 'scheduled'")


def _cancel(service: Service, _: Tell) -> None:
    service.inbox.admin.cancel(type="plain", reason="a test", actor="operator")


def _hasten(service: Service, _: Tell) -> None:
    service.inbox.admin.hasten(type="plain", reason="a test", actor="operator")
    service.drain()


def _bodies_are_gone(ground: Ground) -> None:
    assert ground.number("SELECT count(*) FROM onceward_body WHERE body IS NOT NULL") == 0


STOPPING = [message(f"m{n}", do={"stop": True} if n == 2 else {}) for n in range(1, 7)]
STALLED = message("m1", do={"stop": True, "hold": "before"})


def _stop_with_handler(service: Service, _: Tell) -> None:
    service.inbox.drain()  # with a loop of its own also for async handlers: a stop leaves it behind


# Inline


def make_store_first(inbox: Inbox) -> None:
    """A process died while it worked inline, so messages are stored and claimed first."""
    context, store = inbox.context, inbox.store
    perform(store, lambda: register(context, process="dead", host="here", pid=1, inline=True))
    assert perform(store, lambda: take_over_process(context, "dead", "a test")) == 1


def _store_first(stage: Stage) -> None:
    make_store_first(stage.service.inbox)


# Numbers within a key


def counted(position: int, name: str = "") -> Any:
    """A message that waits for the one before it."""
    return message(name or f"a{position}", "counted", account="a", position=position)


def _hold_and_go_on(service: Service, tell: Tell) -> None:
    """The second is there and waits; then the first comes."""
    service.drain()
    receives(counted(1))(service, tell)
    service.drain()


def _counted_to_two(stage: Stage) -> None:
    stage.service.receive_many([counted(1), counted(2)])
    stage.service.drain()


def _late(stage: Stage) -> None:
    _counted_to_two(stage)
    stage.service.receive(**counted(1, "late"))


LOOSE = [message(f"a{n}", "loose", account="a", position=n, do={"reject": True} if n == 1 else {}) for n in (1, 2, 3)]
GONE_ON = {**ends("dead", "a1"), **ends("done", "a2", "a3")}

# Beyond the transaction

SENDER = message("m1", do={"send": 2})


def _sent_with_its_cause(ground: Ground) -> None:
    """The outgoing messages are there exactly when their cause is done (I4)."""
    assert len(ground.outgoing()) == 2 * (ground.statuses().get("default/m1") == "done")


def published(count: int) -> Callable[[Ground], None]:
    """So many messages were sent and published."""

    def check(ground: Ground) -> None:
        """All of them, in order, at least once and never under two ids."""
        assert set(ground.outgoing().values()) == {"done"}
        assert list(dict.fromkeys(ground.lines("published"))) == list(ground.outgoing())
        assert len(ground.outgoing()) == count

    return check


def _send(service: Service, _: Tell) -> None:
    service.inbox.send("note", {"text": "hello"}, id="out1")
    service.drain()


def _send_in_own_transaction(service: Service, _: Tell) -> None:
    _in_own_transaction(service, lambda tx: service.inbox.send("note", {"text": "hello"}, id="out1", tx=tx))
    service.drain()


def _say_what_happened(service: Service) -> None:
    """What a person does about an effect whose outcome nobody knows: look at the other side."""
    for effect in service.inbox.admin.effects():
        service.inbox.admin.settle_effect(effect.seq, effect.name, happened=service.has_charged(), actor="operator")
    service.inbox.admin.redrive(type="plain", actor="operator")
    service.drain()


def _charged_once(ground: Ground) -> None:
    assert ground.lines("charged") == ["m1"]


def _charged_again_perhaps(ground: Ground) -> None:
    """The other side recognises the key of the repeated call."""
    assert ground.lines("charged") in (["m1"], ["m1", "m1"])


def _unknown(stage: Stage) -> None:
    """A call was begun for m1, and nobody knows what became of it."""
    _finished_m1(stage)
    (seq,) = stage.service.inbox.admin.find(SOURCE, "m1")
    values = f"'{identity.effect_key('default', SOURCE, 'm1', 'charge')}', {seq}, 'charge', 1, 0"
    key = "`key`" if stage.ground.dialect == "mysql" else "key"
    stage.ground.change(f"INSERT INTO onceward_effect ({key}, seq, name, worker, started_at) VALUES ({values})")


def _say_it_happened(service: Service, _: Tell) -> None:
    (seq,) = service.inbox.admin.find(SOURCE, "m1")
    service.inbox.admin.settle_effect(seq, "charge", happened=True, reason="a test", actor="operator")


# Operators


def _edit(service: Service, _: Tell) -> None:
    (seq,) = service.inbox.admin.find(SOURCE, "m1")
    service.inbox.admin.edit(seq, data=M1["data"], reason="a test", actor="operator")


def _edited(ground: Ground) -> None:
    """One line, and both bodies are known."""
    _audited(ground)
    assert ground.rows("SELECT resolution, copies FROM onceward_quarantine") == [("revision", 0), ("revision", 0)]


def _pause_and_resume(service: Service, _: Tell) -> None:
    service.inbox.admin.pause(type="plain", reason="a test", actor="operator")
    service.inbox.admin.resume(type="plain", reason="a test", actor="operator")


def _paused_once(ground: Ground) -> None:
    """As often paused as resumed, and as often as the audit says."""
    lines = [action for (action,) in ground.rows("SELECT action FROM onceward_audit ORDER BY id")]
    assert lines == ["pause", "resume"] * (len(lines) // 2)
    assert lines
    over = ground.number("SELECT count(*) FROM onceward_pause WHERE ended_at IS NOT NULL")
    assert (ground.number("SELECT count(*) FROM onceward_pause"), over) == (len(lines) // 2, len(lines) // 2)


def _unblock_head(service: Service, _: Tell) -> None:
    service.inbox.admin.unblock(type="keyed", reason="a test", actor="operator")


def _dead_m1(stage: Stage) -> None:
    stage.service.receive(**REJECTED)
    stage.service.drain()


def _redrive_all(service: Service, _: Tell) -> None:
    service.inbox.admin.redrive(type="plain", reason="a test", actor="operator")


def _discard_all(service: Service, _: Tell) -> None:
    service.inbox.admin.discard(type="plain", reason="a test", actor="operator")


def _discard_head(service: Service, _: Tell) -> None:
    service.inbox.admin.discard(type="keyed", reason="a test", actor="operator")


def _unsubscribe(service: Service, _: Tell) -> None:
    inbox = service.inbox
    inbox.admin.unsubscribe(inbox.context.service, "plain", discard=True, reason="a test", actor="operator")


def _retired(ground: Ground) -> None:
    """D31: what was discarded has its one line."""
    actions = [action for (action,) in ground.rows("SELECT action FROM onceward_audit")]
    assert actions.count("discard") == 1
    assert "unsubscribe" in actions


def _audited(ground: Ground) -> None:
    """One line for what was done once, however often it was asked for (I13)."""
    assert ground.rows("SELECT actor, reason FROM onceward_audit") == [("operator", "a test")]


def _redriven(ground: Ground) -> None:
    """Each redrive that changed something has its line; it is rejected again each time."""
    lines = ground.number("SELECT count(*) FROM onceward_audit WHERE action = 'redrive'")
    assert lines == ground.charges("error")["m1"] - 1
    assert lines in (1, 2)


def _given_up(stage: Stage) -> None:
    """A counted message is dead and its key has gone on without it."""
    stage.service.receive(**message("a1", "counted", account="a", position=1, do={"reject": True}))
    stage.service.drain()
    assert stage.service.inbox.admin.unblock(type="counted") == 1


def _redrive_out_of_order(service: Service, _: Tell) -> None:
    service.inbox.admin.redrive(type="counted", out_of_order=True, reason="a test", actor="operator")


def _redriven_out_of_order(ground: Ground) -> None:
    lines = ground.number("SELECT count(*) FROM onceward_audit WHERE action = 'redrive'")
    assert lines == ground.charges("error")["a1"] - 1
    assert lines in (1, 2)


def _quarantined(stage: Stage) -> None:
    _finished_m1(stage)
    assert stage.service.receive(**FORGED).status == "mismatch"


def _renamed(stage: Stage) -> None:
    """The same bytes came under the same id, and under another type."""
    _finished_m1(stage)
    assert stage.service.receive(**{**M1, "type": "bulk"}).status == "mismatch"


def _keep_first(service: Service, _: Tell) -> None:
    service.inbox.admin.keep_first(source=SOURCE, type="bulk", reason="a test", actor="operator")


def _resolves(resolution: Any) -> Callable[[Service, Tell], None]:
    def act(service: Service, _: Tell) -> None:
        for case in service.inbox.admin.quarantine():
            service.inbox.admin.resolve(case.case, resolution, reason="a test", actor="operator")

    return act


def _accepted(stage: Stage) -> None:
    """The second body was accepted as a message of its own, and comes again."""
    _quarantined(stage)
    _resolves("accept-as-new")(stage.service, lambda *_: None)


def _case_is_gone(ground: Ground) -> None:
    _audited(ground)
    with Inbox(ground.url) as inbox:
        assert [row.status for row in inbox.admin.messages()] == ["done"], "the case was discarded, not the message"


def _accepted_id() -> str:
    digest = hashlib.sha256(payload.encode(FORGED["data"])).hexdigest()
    return f"m1#{digest}.{identity.type_hash(FORGED['type'], 1) % 2**64:016x}"


# Polled APIs

PAGES = (b'{"name": "first"}', b'{"name": "second"}')


def _poll(service: Service, _: Tell) -> None:
    """Two responses, each stored with its cursor; what a process that died had is free after its patience."""
    inbox = service.inbox

    def pages(cursor: int | None) -> Iterator[Response]:
        for number in range(cursor or 0, len(PAGES)):
            yield Response(PAGES[number], cursor=number + 1)

    async def pages_async(cursor: int | None) -> AsyncIterator[Response]:
        for page in pages(cursor):
            yield page

    with suppress(ConfigurationError):  # played for the second time
        register = inbox.add_poll(every=timedelta(hours=1), source="api", type="plain", timeout=timedelta(seconds=0.3))
        register(pages if service.kind == "sync" else pages_async)
    while [row.responses for row in inbox.admin.polls()] != [len(PAGES)]:
        service.poll_now("api")


def _cursor_and_responses_agree(ground: Ground) -> None:
    """Never one without the other."""
    stored = ground.number("SELECT count(*) FROM onceward_ledger")
    kept = ground.rows("SELECT p.number, p.cursor FROM onceward_poll p")
    assert kept in ([(stored, str(stored))], [(0, None)] if not stored else None, [] if not stored else None)


# The dead and the living

KILLER = message("m1", do={"die": "oom"})
GROUP_WITH_KILLER = [message("m1"), message("m2", do={"die": "oom"}), message("m3")]


def _left_behind(*messages: Any) -> Callable[[Stage], None]:
    """A worker has died with these in its hands, and its lease is over."""

    def prepare(stage: Stage) -> None:
        stage.service.receive_many(list(messages))
        stage.kill_a_worker()
        stage.ground.let_leases_lapse()

    return prepare


def _take_over(service: Service, _: Tell) -> None:
    context = service.inbox.context
    perform(service.inbox.store, lambda: take_over_lapsed(context, 0))


def _take_over_as_supervisor(service: Service, _: Tell) -> None:
    context = service.inbox.context
    for worker in service.inbox.admin.workers():
        perform(service.inbox.store, partial(take_over_process, context, worker.process, "a test"))


def _renew(service: Service, _: Tell) -> None:
    """One turn of a worker's heartbeat, and one of what it owes the others."""
    membership = Membership(service.inbox.context, service.inbox.store)
    membership.start()
    for rounds in membership._rounds:
        rounds._once()
    membership.stop()


@contextmanager
def _claimed(service: Service) -> Iterator[tuple[Membership, Lane]]:
    """A process that has claimed what is due, and runs none of it."""
    context, store = service.inbox.context, service.inbox.store
    membership = Membership(context, store)
    perform(store, partial(introduce, context))
    membership.start()
    lane = Lane(
        context=context,
        worker=membership.number,
        new_token=membership.token,
        subscriptions=list(context.cache.catalog.subscriptions.values()),
        stopping=lambda: False,
        isolation=membership.isolation,
    )
    perform(store, partial(next_batch, lane))
    yield membership, lane
    membership.stop()


def _let_go_of_strays(service: Service, _: Tell) -> None:
    """A claim whose lane is gone, as after a cancellation, is let go of in the next turn of the duties."""
    with _claimed(service) as (membership, lane):
        membership.isolation.leave(lane)
        for rounds in membership._rounds:
            rounds._once()


def _interrupt(service: Service, _: Tell) -> None:
    """What a worker has in hand is taken away from it, twice, and its key goes on without it."""
    (seq,) = service.inbox.admin.find(SOURCE, "a1")
    with _claimed(service):
        for _again in range(2):
            service.inbox.admin.interrupt(seq, reason="a test", actor="operator")


def _interrupted_or_rejected(ground: Ground) -> None:
    """An interruption has its line, and its attempt, or neither: then the handler has rejected the message."""
    lines = ground.rows("SELECT actor, action, reason FROM onceward_audit")
    attempts = ground.number("SELECT count(*) FROM onceward_attempt WHERE error LIKE 'Interrupted: by operator%'")
    assert lines == [("operator", "interrupt", "a test")] * attempts


SCENARIOS: dict[str, Scenario] = {
    "receive new": Scenario(receives(M1), ends("done", "m1")),
    "receive duplicate": Scenario(receives(M1), ends("done", "m1"), has(M1), check=_copies_are_counted),
    "receive duplicate of finished": Scenario(
        receives(M1), ends("done", "m1"), _finished_m1, check=_copies_are_counted
    ),
    "receive mismatch": Scenario(receives(FORGED), ends("done", "m1"), has(M1), check=_one_case),
    "receive accepted mismatch": Scenario(receives(FORGED), ends("done", "m1", _accepted_id()), _accepted),
    "receive many": Scenario(_receive_many, ends("done", "m1", "m2", "m3", "m4"), has(message("m3"))),
    "receive for two consumers": Scenario(
        receives(LATE[0]), {**ends("done", "p1"), **ends("done", "p1", consumer="audit")}
    ),
    "receive in own transaction": Scenario(
        _receive_in_own_transaction, ends("done", "m1"), kinds=("sync",), always=_own_row_comes_with_the_message
    ),
    "fan out": Scenario(drains, LATE_ENDS, _unhandled),
    "fan out what two services have": Scenario(drains, LATE_ENDS, _unhandled_in_two_services),
    "receive a copy before it is fanned out": Scenario(receives(LATE[0]), LATE_ENDS, _unhandled),
    "fan out a large one": Scenario(
        drains, {**ends("done", "p1"), **ends("done", "p1", consumer="audit")}, _unhandled_and_large
    ),
    "handle one": Scenario(drains, ends("done", "m1"), has(M1)),
    "handle a group": Scenario(drains, GROUP_ENDS, has(*GROUP)),
    "fetch a body": Scenario(drains, ends("done", "m1", "m2"), has(message("m1", filling=TOO_LONG), message("m2"))),
    "handle secrets": Scenario(
        drains, ends("done", "m1", "m2"), has(message("m1", "secret"), message("m2", "secret")), check=_bodies_are_gone
    ),
    "handle isolated": Scenario(drains, ends("done", "m1", "m2", "m3"), _isolated),
    "handle keys": Scenario(drains, TWO_KEYS_END, has(*TWO_KEYS), always=_in_order, numbers={"group": 2}),
    "handle and promote": Scenario(
        drains, ends("done", "a1", "a2", "a3"), _promoting, errors={"a1": 3}, always=_in_order
    ),
    "join a key": Scenario(drains, ends("done", "a1", "a2", "b1"), _due_now, always=_in_order),
    "cancel": Scenario(_cancel, ends("discarded", "m1"), has({**M1, "delay": LATER}), ("sync",), check=_audited),
    "hasten by hand": Scenario(_hasten, ends("done", "m1"), has({**M1, "delay": LATER}), ("sync",), check=_audited),
    "settle for retry": Scenario(drains, ends("done", "m1"), has(FAILING), errors={"m1": 2}),
    "settle as dead": Scenario(drains, ends("dead", "m1"), has(HOPELESS), errors={"m1": 3}),
    "settle a reject": Scenario(drains, ends("dead", "m1"), has(REJECTED), errors={"m1": 1}),
    "settle one of a group": Scenario(drains, ends("done", "m1", "m2", "m3"), has(*FLAWED_GROUP), errors={"m2": 1}),
    "step back in a group": Scenario(
        _drains_warily, ends("done", "m1", "m2", "m3", "m4"), has(*FLAWED_TWICE), errors={"m2": 1, "m3": 1}
    ),
    "settle the head of a key": Scenario(
        drains, ends("done", "a1", "a2", "a3"), has(*FLAWED_KEY), errors={"a1": 1}, always=_in_order
    ),
    "postpone": Scenario(drains, ends("done", "m1"), has(message("m1", do={"unavailable": True}))),
    "hasten": Scenario(drains, ends("done", "m1", "m2"), has(*FRAIL), errors={"m1": 1}),
    "leave to others": Scenario(
        drains, ends("done", "m1"), _staged, errors=None, aftercare=_redrive_what_came_too_late
    ),
    "move to its key": Scenario(drains, ends("done", "g1", "g2"), _grown, check=_moved_once),
    "stop in the middle": Scenario(
        drains, ends("done", *(one["id"] for one in STOPPING)), has(*STOPPING), numbers={"group": 2}
    ),
    "deregister with a claim": Scenario(
        _stop_with_handler, ends("done", "m1"), has(STALLED), numbers={"stop_timeout": 0.05}
    ),
    "process": Scenario(processes(M1), ends("done", "m1")),
    "process duplicate": Scenario(processes(M1), ends("done", "m1"), has(M1)),
    "process mismatch": Scenario(processes(FORGED), ends("done", "m1"), has(M1), check=_one_case),
    "process in own transaction": Scenario(
        _process_in_own_transaction(M1), ends("done", "m1"), kinds=("sync",), always=_own_row_comes_with_the_message
    ),
    "process in own transaction, raising": Scenario(
        _process_in_own_transaction(FLAWED),
        ends("done", "m1"),
        kinds=("sync",),
        errors={"m1": 1},
        always=_own_row_comes_with_the_message,
    ),
    "process raising": Scenario(processes(FAILING), ends("done", "m1"), errors={"m1": 2}),
    "process rejected": Scenario(processes(REJECTED), ends("dead", "m1"), errors={"m1": 1}),
    "process with a free key": Scenario(
        processes(keyed("a", 1), keyed("a", 2)), ends("done", "a1", "a2"), always=_in_order
    ),
    "process behind its key": Scenario(
        processes(keyed("a", 2)), ends("done", "a1", "a2"), has(keyed("a", 1)), always=_in_order
    ),
    "process stored first": Scenario(processes(M1), ends("done", "m1"), _store_first),
    "process stored first raising": Scenario(processes(FAILING), ends("done", "m1"), _store_first, errors={"m1": 2}),
    "process for two consumers": Scenario(
        processes(LATE[0]), {**ends("done", "p1"), **ends("done", "p1", consumer="audit")}
    ),
    "read in order": Scenario(_reads, ends("done", "m1", "m2"), always=_position_comes_with_what_was_read),
    "direct batch": Scenario(batch(M1, message("m2"), M1), ends("done", "m1", "m2")),
    "direct batch, one raising": Scenario(batch(*FLAWED_GROUP), ends("done", "m1", "m2", "m3"), errors={"m2": 1}),
    "direct batch, known in part": Scenario(batch(M1, message("m2")), ends("done", "m1", "m2"), has(M1)),
    "direct batch with keys": Scenario(
        batch(*FLAWED_KEY), ends("done", "a1", "a2", "a3"), errors={"a1": 1}, always=_in_order
    ),
    "direct batch behind its key": Scenario(
        batch(keyed("a", 2), keyed("b", 1), keyed("a", 3)),
        ends("done", "a1", "a2", "a3", "b1"),
        has(keyed("a", 1)),
        always=_in_order,
    ),
    "direct batch, counted": Scenario(
        batch(counted(1), counted(2), counted(1, "late")),
        {**ends("done", "a1", "a2"), **ends("skipped", "late")},
        always=_in_order,
    ),
    "direct batch, relay": Scenario(
        batch(SENDER, M9), ends("done", "m1", "m9"), check=published(2), always=_sent_with_its_cause, relay=True
    ),
    "direct batch stored first": Scenario(batch(M1, message("m2")), ends("done", "m1", "m2"), _store_first),
    "hold and go on": Scenario(_hold_and_go_on, ends("done", "a1", "a2"), has(counted(2)), always=_in_order),
    "skip": Scenario(drains, {**ends("done", "a1", "a2"), **ends("skipped", "late")}, _late),
    "process counted": Scenario(
        processes(counted(1), counted(2), counted(1, "late")),
        {**ends("done", "a1", "a2"), **ends("skipped", "late")},
        always=_in_order,
    ),
    "go on without the dead": Scenario(drains, GONE_ON, has(*LOOSE), errors={"a1": 1}, always=_in_order),
    "handle a batch": Scenario(
        drains, ends("done", "m1", "m2", "m3"), has(*(message(f"m{n}", "bulk") for n in (1, 2, 3)))
    ),
    "settle one of a batch": Scenario(
        drains,
        ends("done", "m1", "m2", "m3"),
        has(*(message(f"m{n}", "bulk", do={"raise": 1} if n == 2 else {}) for n in (1, 2, 3))),
        errors={"m2": 1},
    ),
    "relay": Scenario(
        drains, ends("done", "m1"), has(SENDER), check=published(2), always=_sent_with_its_cause, relay=True
    ),
    "process and relay": Scenario(
        processes(SENDER), ends("done", "m1"), check=published(2), always=_sent_with_its_cause, relay=True
    ),
    "send": Scenario(_send, {}, kinds=("sync",), check=published(1), relay=True),
    "send in own transaction": Scenario(
        _send_in_own_transaction,
        {},
        kinds=("sync",),
        check=published(1),
        always=_own_row_comes_with_the_message,
        relay=True,
    ),
    "once": Scenario(
        drains,
        ends("done", "m1"),
        has(message("m1", do={"once": "first"})),
        errors=None,
        aftercare=_say_what_happened,
        check=_charged_once,
    ),
    "once more": Scenario(
        drains, ends("done", "m1"), has(message("m1", do={"once": "again"})), check=_charged_again_perhaps
    ),
    "once, but not at first": Scenario(
        drains,
        ends("done", "m1"),
        has(message("m1", do={"once": "undone"})),
        errors=None,
        aftercare=_say_what_happened,
        check=_charged_once,
    ),
    "settle an effect": Scenario(_say_it_happened, ends("done", "m1"), _unknown, ("sync",), check=_audited),
    "unblock a key": Scenario(_unblock_head, GONE_ON, _parked, ("sync",), {"a1": 3}, check=_audited, always=_in_order),
    "redrive": Scenario(_redrive_all, ends("dead", "m1"), _dead_m1, ("sync",), None, check=_redriven),
    "redrive out of order": Scenario(
        _redrive_out_of_order, ends("dead", "a1"), _given_up, ("sync",), None, check=_redriven_out_of_order
    ),
    "discard": Scenario(_discard_all, ends("discarded", "m1"), _dead_m1, ("sync",), {"m1": 1}, check=_audited),
    "edit": Scenario(_edit, ends("done", "m1"), _dead_m1, ("sync",), {"m1": 1}, check=_edited),
    "pause and resume": Scenario(_pause_and_resume, ends("done", "m1"), has(M1), ("sync",), check=_paused_once),
    "unsubscribe": Scenario(_unsubscribe, ends("discarded", "m1"), _dead_m1, ("sync",), {"m1": 1}, check=_retired),
    "discard and promote": Scenario(
        _discard_head,
        {**ends("discarded", "a1"), **ends("done", "a2", "a3")},
        _parked,
        ("sync",),
        {"a1": 3},
        check=_audited,
        always=_in_order,
    ),
    "quarantine: keep first": Scenario(
        _resolves("keep-first"), ends("done", "m1"), _quarantined, ("sync",), check=_audited
    ),
    "quarantine: keep first of a type": Scenario(_keep_first, ends("done", "m1"), _renamed, ("sync",), check=_audited),
    "quarantine: accept as new": Scenario(
        _resolves("accept-as-new"),
        ends("done", "m1", _accepted_id()),
        _quarantined,
        ("sync",),
        check=_audited,
    ),
    "quarantine: discard": Scenario(
        _resolves("discard"), ends("done", "m1"), _quarantined, ("sync",), check=_case_is_gone
    ),
    "poll": Scenario(_poll, ends("done", "response 1", "response 2"), always=_cursor_and_responses_agree),
    "take over one": Scenario(_take_over, ends("done", "m1"), _left_behind(KILLER), ("sync",), crashes={"m1": 1}),
    "take over a group": Scenario(
        _take_over, ends("done", "m1", "m2", "m3"), _left_behind(*GROUP_WITH_KILLER), ("sync",), crashes={}
    ),
    "take over as supervisor": Scenario(
        _take_over_as_supervisor, ends("done", "m1"), _left_behind(KILLER), ("sync",), crashes={"m1": 1}
    ),
    "interrupt": Scenario(
        _interrupt,
        GONE_ON,
        has(*LOOSE),
        ("sync",),
        {"a1": 1},
        crashes=None,
        always=_interrupted_or_rejected,
    ),
    "let go of strays": Scenario(_let_go_of_strays, ends("done", "m1"), has(M1), ("sync",)),
    "renew the lease": Scenario(_renew, ends("done", "m1"), _left_behind(KILLER), ("sync",), crashes={"m1": 1}),
}
