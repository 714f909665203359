"""A lane: one loop of a worker with a connection of its own; it knows which of its claims are open.

Invariant: every token it ever wrote and has not finished is in `open_tokens`, so that whatever the outcome of a
lost answer was, the rows can be found and let go.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from onceward.domain.marks import Mark
from onceward.domain.pauses import rested
from onceward.domain.reference import Reference, split
from onceward.errors import NeedsAlone, OutcomeUnknown, StoreUnavailable
from onceward.flow import Call, Do, Flow, Outcome
from onceward.message import NO_HEADERS, Message, Outgoing, moment
from onceward.registry import Handler, Subscription
from onceward.retry import Again, Dead, RetryPolicy, decide
from onceward.steps.context import Context, Try
from onceward.steps.isolation import Isolation
from onceward.steps.lot import Lot
from onceward.steps.order import Place, check_key, check_sequence, elsewhere_in_order
from onceward.steps.read import data_of, find_key_again
from onceward.stores.moves.claims import ClaimedRow, Verdict

T = TypeVar("T")


def _nobody() -> None:
    """Nothing waits."""


class OffloadedBody(NamedTuple):
    """A claimed row whose body is large, to be fetched before it is run: from the blob store, or from its own row."""

    row: ClaimedRow
    verdict: Verdict
    reference: Reference | None


class About(NamedTuple):
    """Which message it is, for people."""

    type: str
    id: str
    source: str


@dataclass(slots=True, eq=False)
class Claimed:
    """A message that this lane has claimed."""

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
    offloaded: OffloadedBody | None = None
    """Its body is not here yet; then there is no call either."""
    about: About | None = None
    """What is known of a message that has no call."""
    elsewhere: Place | None = None
    """Its handler finds another key, or number, than it was received with: it goes there instead of running."""
    ran: float = 0.0
    """For how many seconds its handler has run."""
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
        mine, other = self.handler, first.handler
        if mine is None or other is None or self.call is None or first.call is None:
            return False  # nothing to run; or a large body: it is fetched, run and forgotten before the next one
        if mine is not other and (mine.batch or other.batch):
            return False
        if (mine.outside or other.outside) and not mine.batch:
            return False  # what surrounds an attempt surrounds its transaction
        return size <= mine.group and size <= other.group

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


IN_KEY = attrgetter("place", "seq")
"""The order of claimed messages within their keys."""


@dataclass(slots=True, eq=False)
class Lane:
    """One loop: which subscriptions it serves, under which worker, and what it holds."""

    context: Context
    worker: Callable[[], int]
    new_token: Callable[[], int]
    subscriptions: list[Subscription]
    stopping: Callable[[], bool]
    isolation: Isolation
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
    isolated: Lot = field(init=False)
    """The isolated ones among the messages of all of them."""
    counts: bool = field(init=False)
    """Some of its messages are numbered within their key: a claim is looked at before it is committed."""
    finished: int = 0
    destination: str | None = None
    """Where it publishes to, if it is a lane of the relay."""
    linger: float = float("inf")
    """For how many seconds it stays when there is nothing to do."""
    active_at: float = field(init=False)
    """When it last had something to do."""
    has_handled: bool = False
    """It has had something to do."""
    notify: Callable[[], None] = _nobody
    """Called when messages that a handler sent are committed, so that a relay need not look for them."""
    effects: Callable[..., Any] | None = None
    """What `message.once` calls."""
    alone: bool = True
    """The message that runs now has its transaction to itself."""
    receiving: bool = False
    """The transaction of the message that runs now also receives it, so it has begun before the handler did."""
    inside: bool = False
    """The transaction is that of a caller, where a handler may have written past its own connection;"""
    tells_commit: bool = False
    """and something tells when that caller has committed."""
    unknown: str | None = None
    """The handler that runs now met an effect of unknown outcome."""
    called_once: bool = False
    """The handler that runs now has called something through `message.once`."""
    needs_alone: bool = False
    """The handler that runs now was told to run alone."""
    wants_alone: bool = False
    """An isolated message waits, and this lane has asked the others to let it run alone."""
    looked_at: float = float("-inf")
    """When it last looked for isolated messages."""
    woken_at: float = field(init=False)
    """When it was last woken: there may be something since, also where it does not look every time."""
    current_at: float = float("-inf")
    """How current the catalog was that it last looked with."""
    had_isolated: bool = False
    """Its last claim was one of isolated messages: the next one is for other messages, if there are any."""
    marks: Sequence[Mark] = ()
    """How far a source was read with what is handled as it comes; kept with it."""
    share: float = 1.0
    """How much of the usual time a batch may take that is handled as it comes: less where there is one writer."""
    first_try: Try | None = None
    """It works inline, and this was its first try in which the answer to a commit was lost."""
    began: float = 0.0
    """When the present try of its call began."""
    committed: set[int] = field(default_factory=set)
    """The numbers of what it has stored inline and seen committed, in any try of its call."""
    owner: int = 0
    """The worker number under which the open tokens were written."""
    raised: BaseException | None = None
    """What the handler of a message that is processed inline raised; the message is stored."""

    def __post_init__(self) -> None:
        self.counts, self.active_at = False, self.context.clock()
        self.woken_at = self.active_at
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
        self.isolated = Lot(subscriptions, max((lot.group for lot in self.lots), default=1), seconds, has_keys=True)
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
        return any(lot.is_empty and lot.rests_until <= now for lot in self.lots)

    def size(self, lot: Lot) -> int:
        """How many messages a claim of a lot takes."""
        return min(lot.size, self.most)

    def group_succeeded(self) -> None:
        """A group of a claim went well: the next one may be larger, up to what its handlers want."""
        self.most = min(self.most + max(1, self.most // 10), sys.maxsize)

    def claim_less(self, lot: Lot) -> None:
        """A claim was not answered in time: perhaps what it brings is too much at once."""
        self.most, lot.has_backlog = max(1, self.size(lot) // 2), False

    def measure(self) -> None:
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


def committing(lane: Lane, move: Flow[T], numbers: Collection[int] | None = None) -> Flow[T]:
    """Ask for a move that stores what is handled inline (under these numbers, if they are known), and commits.

    A repetition takes for its own what is in `committed`, and where an answer was lost what was stored during that try;
    any other error has undone the move, and what is there by then is another process's.
    """
    try:
        return (yield from move)
    except StoreUnavailable:
        only = None if numbers is None else frozenset(numbers)
        lane.first_try = lane.first_try or Try(lane.began, lane.context.clock(), only=only)
        raise


def hand_on(lane: Lane, promoted: Collection[int]) -> None:
    """Messages of these subscriptions go on in their keys: those of others are for other lanes, which may be asleep."""
    if not {one.id for one in lane.subscriptions}.issuperset(promoted):
        lane.notify()


def let_go(lane: Lane, *tokens: int) -> None:
    """Forget tokens whose rows are known to be gone; the lane leaves when none is left."""
    lane.open_tokens.difference_update(tokens)
    if not lane.open_tokens:
        lane.isolation.leave(lane)


def open_tokens(isolation: Isolation) -> set[int]:
    """Every claim of a process that may be written: a lane has entered before it makes one, and until it has none."""
    lanes = [who for who in isolation.inside() if isinstance(who, Lane)]
    return set().union(*(lane.open_tokens for lane in lanes))  # each is copied in one go, while its lane works on


def fetched(lane: Lane, group: list[Claimed]) -> Flow[list[Claimed]]:
    """A group that is about to run, with its body, if that is large: no transaction is open yet."""
    message, offloaded = group[0], group[0].offloaded
    if offloaded is None or message.problem is not None:
        return group
    if offloaded.reference is None:  # it may take as long as its handler: over a slow link large ones take their time
        body = yield from lane.context.moves.claims.body_of(message.seq, message.timeout)
    else:
        outcome: Outcome = yield Do(partial(lane.context.large.fetch, offloaded.reference))
        if isinstance(outcome.error, Exception):
            return [replace(message, problem=outcome.error)]
        body = outcome.value
    return [replace(claimed(lane, message.token, offloaded.row, offloaded.verdict, body), worker=message.worker)]


def claimed(lane: Lane, token: int, row: ClaimedRow, verdict: Verdict, fetched: bytes | None = None) -> Claimed:
    """A claimed row, with the call of its handler; without it while the body is elsewhere."""
    catalog = lane.context.cache.catalog
    consumer = catalog.subscriptions[row.subscription].consumer
    handled_as = lane.destination or row.type
    handler = call = problem = offloaded = about = elsewhere = None
    try:
        headers, reference = split(row.headers) if row.headers else ({}, None)
        handler, upcasters = lane.context.registry.find(consumer, handled_as, row.version)
        if (reference is not None or row.body is None) and fetched is None and not verdict.stale:
            if verdict.late:
                check_sequence(handler, row.sequence, verdict)
            offloaded = OffloadedBody(row, verdict, reference)
        else:
            raw = bytes(row.body or b"") if fetched is None else fetched
            message = Message(
                id=row.id,
                source=catalog.numbers[row.source],
                type=row.type,
                version=row.version + len(upcasters),
                data=data_of(handler, raw, upcasters),
                body=raw,
                headers=headers or NO_HEADERS,
                key=row.key,
                seq=row.seq,
                attempt=row.attempts + 1,
                received_at=moment(row.received_at),
                consumer=consumer,
                to=row.destination,
                outbox=Outgoing(lane.context.service, handler.outlets),
                effects=lane.effects,
            )
            if handler.key is not None:
                find_key_again(handler, message)
                if row.key_from is None and (row.key is None or upcasters):
                    elsewhere = elsewhere_in_order(lane.context, handler, message, row.sequence, upcasters)
                if elsewhere is None:
                    check_key(handler, row.key)
            if elsewhere is None and (handler.sequence is not None or verdict.late):
                check_sequence(handler, row.sequence, verdict)
            call = Call(handler, message)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it is recorded as its attempt
        problem = None if verdict.stale else error  # what is skipped need not be readable
        about = About(row.type, row.id, catalog.numbers[row.source])
        handler = handler or lane.context.registry.of_type(consumer, handled_as)  # its type's policy holds all the same
    age = row.age
    if catalog.pauses.rows:  # what is paused does not age
        rests = catalog.pauses.rests(consumer, row.type, lane.context.clock(), destination=lane.destination)
        age -= rested(age, rests)
    columns = (row.seq, lane.owner, token, row.key_hash, row.place, row.sequence, row.attempts, age)
    return Claimed(*columns, handler, call, problem, verdict.stale, offloaded, about, elsewhere)
