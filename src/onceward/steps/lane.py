"""A lane: one loop of a worker with a connection of its own; it knows which of its claims are open.

Invariant: every token it ever wrote and has not finished is in `open_tokens`, so that whatever the outcome of a
lost answer was, the rows can be found and let go.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from onceward.domain.reference import Reference, split
from onceward.errors import NeedsAlone, OutcomeUnknown
from onceward.flow import COMMIT, Call, Do, Flow, Outcome, Query
from onceward.message import NO_HEADERS, Delivery, Draft, Message, moment
from onceward.registry import Handler, Subscription
from onceward.retry import Again, Dead, RetryPolicy, decide
from onceward.steps.context import Context, Try
from onceward.steps.gate import Gate
from onceward.steps.lot import Lot
from onceward.steps.order import Place, Verdict, check_key, check_sequence, elsewhere_in_order
from onceward.steps.read import data_of, find_key_again


def _nobody() -> None:
    """Nobody waits."""


class Absent(NamedTuple):
    """A claimed row whose body is large, to be fetched before it is run: from the blob store, or from its own row."""

    row: tuple[Any, ...]
    verdict: Verdict
    reference: Reference | None


class About(NamedTuple):
    """Which message it is, for people."""

    type: str
    id: str
    source: str


@dataclass(slots=True, eq=False)
class Claimed:
    """A message that this lane has noted."""

    seq: int
    worker: int
    token: int
    key_hash: int | None
    place: int
    sequence: int | None
    attempts: int
    age: float
    handler: Handler | None
    call: Call | None
    problem: Exception | None
    """Why it cannot even be shown to a handler; then there is no call."""
    stale: bool = False
    """A later number of its key is applied already: it is finished without being run."""
    absent: Absent | None = None
    """Its body is not here yet; then there is no call either."""
    about: About | None = None
    """What is known of a message that has no call."""
    elsewhere: Place | None = None
    """Its handler finds another key, or number, than it was received with: it goes there instead of running."""
    failed: tuple[BaseException, Again | Dead] | None = None
    """What its attempt was settled with, for a caller of `process` who waits for it."""

    @property
    def request(self) -> Call:
        """The call of its handler."""
        if self.call is None:
            raise AssertionError("a message that cannot be read is never run")
        return self.call

    @property
    def timeout(self) -> float:
        """How many seconds its handler may take."""
        return self.handler.timeout.total_seconds() if self.handler else 0.0

    def follows(self, other: Claimed) -> bool:
        """Whether it must not run before the other: same key, later in it."""
        same_key = self.key_hash is not None and self.key_hash == other.key_hash
        return same_key and (self.place, self.seq) > (other.place, other.seq)

    def may_join(self, first: Claimed, size: int) -> bool:
        """Whether it may share the transaction that `first` begins, as the `size`-th message."""
        if self.handler is None or first.handler is None or self.absent or first.absent:
            return False  # a large body is fetched, run and forgotten before the next one
        if self.problem or first.problem:
            return False  # there is nothing to run
        if (self.handler.batch or first.handler.batch) and self.handler is not first.handler:
            return False
        return size <= min(self.handler.group, first.handler.group)

    @property
    def sent(self) -> list[Delivery]:
        """What its handler sent."""
        draft = self.call.message.draft if self.call and not self.stale else None
        return draft.deliveries if draft else []

    @property
    def continues(self) -> bool:
        """Whether its key goes on without it when it is dead."""
        return self.handler is not None and self.handler.on_dead == "continue"

    @property
    def policy(self) -> RetryPolicy:
        """How it is tried again."""
        if self.handler is None:
            return RetryPolicy()
        return self.handler.retry

    def decide(self, error: BaseException) -> Again | Dead:
        """What its handler's policy says to a failed attempt."""
        return decide(self.policy, error, attempt=self.attempts + 1, age=timedelta(seconds=self.age))

    @property
    def leaves_key(self) -> bool:
        """Whether its key goes on without it when it is dead."""
        return self.key_hash is not None and self.continues

    @property
    def external(self) -> bool:
        """Whether its effects are outside the transaction."""
        return self.handler is not None and self.handler.external


@dataclass(slots=True, eq=False)
class Lane:
    """One loop: which subscriptions it serves, under which worker, and what it holds."""

    context: Context
    worker: Callable[[], int]
    new_token: Callable[[], int]
    subscriptions: list[Subscription]
    stopping: Callable[[], bool]
    gate: Gate
    open_tokens: set[int] = field(default_factory=set)
    lots: list[Lot] = field(init=False)
    """What it claims, in turn."""
    turn: int = 0
    """Which of them is next."""
    lot: Lot | None = None
    """What it has claimed is of this one."""
    spent: float = 0.0
    """How many seconds the handlers of the running group have taken, for"""
    ran: int = 0
    """so many messages."""
    most: int = sys.maxsize
    """How many messages a claim takes at most, since one was not answered in time."""
    suspects: Lot = field(init=False)
    """The suspects among the messages of all of them."""
    counts: bool = field(init=False)
    """Some of its messages are numbered within their key: a claim is looked at before it is committed."""
    finished: int = 0
    destination: str | None = None
    """Where it publishes to, if it is a lane of the relay."""
    linger: float = float("inf")
    """For how many seconds it stays when there is nothing to do."""
    active_at: float = field(init=False)
    """When it last had something to do."""
    ring: Callable[[], None] = _nobody
    """Called when messages that a handler sent are committed, so that a relay need not look for them."""
    effects: Callable[..., Any] | None = None
    """What `message.once` calls."""
    alone: bool = True
    """The message that runs now has its transaction to itself."""
    receiving: bool = False
    """The transaction of the message that runs now also receives it, so it has begun before the handler did."""
    unknown: str | None = None
    """The handler that runs now met an effect whose outcome nobody knows."""
    called_once: bool = False
    """The handler that runs now has called something through `message.once`."""
    needs_alone: bool = False
    """The handler that runs now was told to run alone."""
    wants_alone: bool = False
    """A suspect waits, and this lane has asked the others to let it run alone."""
    looked_at: float = float("-inf")
    """When it last looked for suspects."""
    had_suspects: bool = False
    """Its last claim was one of suspects: the next one is for other messages, if there are any."""
    first_try: Try | None = None
    """It works inline, for the second time: this was the first."""
    owner: int = 0
    """The worker number under which the open tokens were written."""
    raised: BaseException | None = None
    """What the handler of a message that is processed inline raised; the message is stored."""

    def __post_init__(self) -> None:
        self.counts, self.active_at = False, self.context.clock()
        self.serve(self.subscriptions)

    def serve(self, subscriptions: list[Subscription]) -> None:
        """What it is to claim from now on: at the start, and when a subscription came later."""
        registry = self.context.registry
        lots: dict[tuple[Any, ...], Lot] = {}
        seconds = self.context.settings.claim_time.total_seconds()
        for one in subscriptions:
            handler = registry.of_type(one.consumer, self.destination or one.type)
            group, steady = (handler.group, handler.batch or self.outgoing) if handler else (1, False)
            has_key = handler is not None and handler.key is not None
            # Types that may share keys stay together: apart, each would wait for the other's claims.
            kind = (one.consumer, handler.aggregate) if handler and has_key else (group, steady)
            lots.setdefault(kind, Lot(seconds=seconds, has_keys=has_key)).add(one, group, steady=steady)
        self.lots = list(lots.values())
        self.suspects = Lot(subscriptions, max((lot.group for lot in self.lots), default=1), seconds, has_keys=True)
        self.counts = self.counts or any(subscription.sequence is not None for subscription in subscriptions)
        self.subscriptions = subscriptions

    @property
    def outgoing(self) -> bool:
        """Whether it is a lane of the relay."""
        return self.destination is not None

    def lots_in_turn(self) -> list[Lot]:
        """What is to be claimed next, in turn: the lots that are not known to be empty."""
        lots = self.lots  # another thread may replace them
        first = self.turn % max(len(lots), 1)
        return [lot for lot in (*lots[first:], *lots[:first]) if not lot.is_empty]

    def looks_around(self) -> bool:
        """Whether it is time to look for what the empty ones may have got."""
        now = self.context.clock()
        return any(lot.has_rested(now) for lot in self.lots)

    def size(self, lot: Lot) -> int:
        """How many messages a claim of a lot takes."""
        return min(lot.size, self.most)

    def go_on(self) -> None:
        """A claim went well: the next one may be larger, up to what its handlers want."""
        self.most = min(self.most + max(1, self.most // 10), sys.maxsize)

    def claim_less(self, lot: Lot) -> None:
        """A claim was not answered in time: perhaps what it brings is too much at once."""
        self.most, lot.ahead = max(1, self.size(lot) // 2), False

    def note_pace(self) -> None:
        """A group has run: its lot learns how long its handlers took."""
        if self.lot is not None and self.ran:
            self.lot.measured(self.spent, self.ran)
        self.spent, self.ran = 0.0, 0

    def begin_call(self) -> None:
        """A handler starts."""
        self.unknown, self.needs_alone, self.called_once = None, False, False

    def end_call(self, outcome: Outcome) -> Outcome:
        """A handler has ended; what `once` told it counts also when the handler swallowed it."""
        if self.needs_alone:
            return replace(outcome, error=NeedsAlone(), infrastructure=False)
        if self.unknown is not None:
            return replace(outcome, error=OutcomeUnknown(self.unknown), infrastructure=False)
        return outcome

    def token(self) -> int:
        """A fresh token, remembered until its rows are known to be gone."""
        token = self.new_token()
        self.open_tokens.add(token)
        return token


def open_tokens(gate: Gate) -> set[int]:
    """Every claim of a process that may have notes: a lane is inside the gate before it makes one, and while it has."""
    lanes = [who for who in gate.inside() if isinstance(who, Lane)]
    return set().union(*(lane.open_tokens for lane in lanes))  # each is copied in one go, while its lane works on


def fetched(lane: Lane, group: list[Claimed]) -> Flow[list[Claimed]]:
    """A group that is about to run, with its body, if that is large: no transaction is open yet."""
    message, absent = group[0], group[0].absent
    if absent is None or message.problem is not None:
        return group
    if absent.reference is None:  # it may take as long as its handler: over a slow link large ones take their time
        begin = replace(lane.context.long(message.timeout, ""), by_index=True)
        _, rows, _ = yield (begin, Query("body_of", {"seq": message.seq}), COMMIT)
        body = bytes(rows[0][0] or b"") if rows else b""  # gone with its message, which is no longer ours
    else:
        outcome: Outcome = yield Do(partial(lane.context.large.fetch, absent.reference))
        if isinstance(outcome.error, Exception):
            return [replace(message, problem=outcome.error)]
        body = outcome.value
    return [replace(claimed(lane, message.token, absent.row, absent.verdict, body), worker=message.worker)]


def claimed(lane: Lane, token: int, row: tuple[Any, ...], verdict: Verdict, fetched: bytes | None = None) -> Claimed:
    """A claimed row, with the call of its handler; without it while the body is elsewhere."""
    seq, subscription, key_hash, place, sequence, attempts, *content, received_at, age = row
    source, message_id, kind, version, key, stored, body, destination, key_from = content
    catalog = lane.context.cache.catalog
    consumer = catalog.subscriptions[subscription].consumer
    handled_as = lane.destination or kind
    handler = call = problem = absent = about = elsewhere = None
    try:
        headers, reference = split(stored)
        handler, upcasters = lane.context.registry.find(consumer, handled_as, version)
        if (reference is not None or body is None) and fetched is None and not verdict.stale:
            if verdict.late:
                check_sequence(handler, sequence, verdict)
            absent = Absent(row, verdict, reference)
        else:
            raw = bytes(body or b"") if fetched is None else fetched
            message = Message(
                id=message_id,
                source=catalog.numbers[source],
                type=kind,
                version=version + len(upcasters),
                data=data_of(handler, raw, upcasters),
                body=raw,
                headers=headers or NO_HEADERS,
                key=key,
                seq=seq,
                attempt=attempts + 1,
                received_at=moment(received_at),
                consumer=consumer,
                to=destination,
                draft=Draft(lane.context.service, handler.outlets),
                effects=lane.effects,
            )
            if handler.key is not None:
                find_key_again(handler, message)
                if key_from is None and (key is None or upcasters):
                    elsewhere = elsewhere_in_order(lane.context, handler, message, sequence)
                if elsewhere is None:
                    check_key(handler, key)
            if elsewhere is None:
                check_sequence(handler, sequence, verdict)
            call = Call(handler, message)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it is recorded as its attempt
        problem = None if verdict.stale else error  # what is skipped need not be readable
        about = About(kind, message_id, catalog.numbers[source])
        handler = handler or lane.context.registry.of_type(consumer, handled_as)  # its type's policy holds all the same
    note = (seq, lane.owner, token, key_hash, place, sequence, attempts, age)
    return Claimed(*note, handler, call, problem, verdict.stale, absent, about, elsewhere)
