"""A recorded day, played with duplicates, deaths and another order where that is allowed: the effect stays the same.

Invariant: a play differs from the recorded day in nothing that senders, networks and kernels may not do: copies come
after the first, messages with the same key stay in their order, and a process that dies is taken over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from onceward.domain.archived import Record
from onceward.domain.text import count
from onceward.errors import ConfigurationError
from onceward.inbox import Inbox
from onceward.registry import Handler
from onceward.retention.replay import as_received, recorded
from onceward.testing.fault import Fault, Moment, Place
from onceward.testing.harness import Findings, Harness, Subject
from onceward.testing.looking import Check
from onceward.testing.report import NotExactlyOnce, brief, compared

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

MOST = 12
"""How many messages of the day are played together, unless said otherwise."""
RARELY = 9
"""One delivery in so many and one more is met by the death of its receiver."""
_ROUNDS = 8
_WORKER_FAULTS: tuple[tuple[str, str, Place], ...] = (
    ("crash", "before", "commit"),
    ("crash", "after", "commit"),
    ("crash", "before", 1),
    ("crash", "before", 2),
    ("loss", "before", "commit"),
    ("loss", "after", "commit"),
    ("raise", "after", "end"),
)
_DEEDS = {"crash": "the process dies", "loss": "the connection is lost", "raise": "the handler raises"}


@dataclass(frozen=True, slots=True)
class Event:
    """What happens next: a message is delivered, or the workers run."""

    what: Literal["deliver", "work"]
    message: int = 0
    """Which one is delivered, or meets the fault."""
    fault: tuple[str, str, Place] | None = None
    """Deed, moment and place, as in `Fault`."""


class RecordedDay:
    """Messages of an archive (a folder or a bucket), as `onceward archive --copy` writes it, or of an inbox itself."""

    def __init__(
        self,
        where: Inbox | str | os.PathLike[str],
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> None:
        self.records: list[Record] = []
        """In the order in which they came, each once."""
        self._keys: list[set[tuple[str, str]]] = []
        """Of each: the keys that it had, by consumer."""
        places: dict[tuple[str, str], int] = {}
        for record in sorted(recorded(where, since, until), key=lambda one: (one["received_at"], one["seq"])):
            place = places.setdefault((record["source"], record["id"]), len(self.records))
            if place == len(self.records):
                self.records.append(record)
                self._keys.append(set())
            if record["key"] is not None:
                self._keys[place].add((record["consumer"], record["key"]))
        if not self.records:
            raise ConfigurationError(
                f"{where} has no finished message. Record a day: onceward archive shop:inbox tests/day --copy"
            )

    def plays(self, *, most: int = MOST) -> SearchStrategy[Play]:
        """A strategy of Hypothesis: some messages of the day that came one after the other, played in another way."""
        try:
            from hypothesis import strategies as st  # noqa: PLC0415 - only who asks for it has it
        except ImportError as error:
            raise ConfigurationError("plays() is a strategy of Hypothesis: pip install hypothesis") from error

        @st.composite
        def plays(draw: DrawFn) -> Play:
            start = draw(st.integers(0, len(self.records) - 1))
            end = start + draw(st.integers(1, most))
            return Play(self.records[start:end], tuple(_drawn(draw, st, self._keys[start:end])))

        return plays()


def _drawn(draw: DrawFn, st: Any, keys: Sequence[AbstractSet[Any]]) -> Iterator[Event]:
    """The less is drawn, the nearer it is to the day as it was: that is where Hypothesis shrinks to."""
    waiting, delivered = list(range(len(keys))), list[int]()
    while waiting:
        free = list(_free(waiting, keys))
        message = free[draw(st.integers(0, len(free) - 1))]
        waiting.remove(message)
        if draw(st.integers(0, RARELY)) == RARELY:  # the sender has no answer, and sends again
            yield Event("deliver", message, ("crash", draw(st.sampled_from(["before", "after"])), "store"))
        yield Event("deliver", message)
        delivered.append(message)
        for _ in range(draw(st.integers(0, 2))):
            other = draw(st.sampled_from(delivered))
            kind = draw(st.sampled_from(["work", "copy", "fault"]))
            if kind == "copy":
                yield Event("deliver", other)
            else:
                yield Event("work", other, draw(st.sampled_from(_WORKER_FAULTS)) if kind == "fault" else None)


def _free(waiting: Sequence[int], keys: Sequence[AbstractSet[Any]]) -> Iterator[int]:
    """The messages that may come next: none that waits and came earlier has a key of theirs."""
    taken: set[Any] = set()
    for message in waiting:
        if taken.isdisjoint(keys[message]):
            yield message
        taken |= keys[message]


@dataclass(frozen=True)
class Play:
    """Some messages of a day and what happens to them."""

    records: Sequence[Record]
    events: tuple[Event, ...]

    def __repr__(self) -> str:
        return f"Play({'; '.join(self.steps())})"

    def steps(self) -> Iterator[str]:
        """What happens, in words."""
        seen: set[int] = set()
        for event in self.events:
            record = self.records[event.message]
            name = f"{record['type']} {record['id']} of {record['source']}"
            again = " again" if event.message in seen else ""
            fault = ""
            if event.fault:
                deed, moment, place = event.fault
                at = f"statement {place}" if isinstance(place, int) else f"the {place}"
                of = "" if event.what == "deliver" else f" of {name}"
                fault = f", {_DEEDS[deed]} {moment} {at}{of}"
            yield (f"{name} is delivered{again}" if event.what == "deliver" else "the workers run") + fault
            if event.what == "deliver" and not event.fault:
                seen.add(event.message)

    def prove(  # noqa: PLR0913 - what a proof needs to know
        self,
        inbox: Inbox,
        *,
        check: Check,
        external: Callable[[], Any] | None = None,
        external_at_least_once: bool = False,
        setup: Callable[[], object] | None = None,
        reset: Callable[[], object] | None = None,
    ) -> None:
        """Raise `NotExactlyOnce` unless the play has the effect that these messages have in their order, each once.

        The arguments are those of `prove_exactly_once`; the database must be as disposable, and is put back.
        """
        inbox.store.make_missing()
        messages = [dict(as_received(record)) for record in self.records]
        subject = Subject(
            inbox=inbox,
            handler=_handler(inbox, messages),
            message=messages[0],
            others=(),
            check=check,
            external=external,
            at_least_once=external_at_least_once,
            setup=setup,
            reset=reset,
        )
        harness = Harness(subject)
        try:
            plain = tuple(Event("deliver", number) for number in range(len(messages)))
            expected = _played(harness, messages, plain)
            found = _played(harness, messages, self.events)
        finally:
            harness.end()
        if why := _difference(harness, expected, found):
            steps = "\n".join(f"  {number}. {step}" for number, step in enumerate(self.steps(), start=1))
            raise NotExactlyOnce(f"{why}\nwhen, of {count(len(messages), 'message')},\n{steps}")


def _handler(inbox: Inbox, messages: Sequence[Mapping[str, Any]]) -> Handler:
    """One that handles some of them; the report is about all."""
    types = {message["type"] for message in messages}
    handlers = [handler for handler in inbox.context.registry if not handler.external]
    for handler in handlers:
        if handler.type in types:
            return handler
    raise ConfigurationError(
        f"no handler of the inbox is registered for a message of the day: {', '.join(sorted(types))}"
    )


Statuses = list[tuple[str, str, str]]


def _played(
    harness: Harness, messages: Sequence[Mapping[str, Any]], events: Iterable[Event]
) -> tuple[Findings, Statuses]:
    """What there is when everything has happened, and the workers have done what was left."""
    harness.begin()
    for event in events:
        message = messages[event.message]
        process = harness.process(_fault(event))
        process.watch.concerns = partial(_is, (message["source"], message["id"]))
        if event.what == "deliver":
            process.receive(message)
        else:
            process.work()
        if process.crashed:
            harness.process().take_over(process.name)
    _settle_down(harness, messages)
    return harness.look(), _statuses(harness.inbox, messages)


def _fault(event: Event) -> Fault | None:
    if event.fault is None:
        return None
    deed, moment, place = event.fault
    return Fault(cast("Literal['crash', 'loss', 'raise']", deed), cast("Moment", moment), place)


def _is(identity: tuple[str, str], message: Any) -> bool:
    return (message.source, message.id) == identity


def _settle_down(harness: Harness, messages: Sequence[Mapping[str, Any]]) -> None:
    """Make what waits for a retry due, and work, until nothing changes: what is dead stays."""
    for _ in range(_ROUNDS):
        if not harness.unfinished():
            return
        harness.work(lambda: any(status == "due" for *_, status in _statuses(harness.inbox, messages)))


def _statuses(inbox: Inbox, messages: Sequence[Mapping[str, Any]]) -> Statuses:
    found = []
    for message in messages:
        for seq in inbox.admin.find(message["source"], message["id"]):
            detail = inbox.admin.message(seq)
            if detail is not None:
                found.append((detail.id, detail.consumer, detail.status))
    return sorted(found)


def _difference(harness: Harness, expected: tuple[Findings, Statuses], found: tuple[Findings, Statuses]) -> str:
    """How the effects differ; empty where they do not."""
    (wanted, statuses), (actual, others) = expected, found
    initial = harness.initial
    for what, before, one, other in (
        ("the effect", initial.effect, wanted.effect, actual.effect),
        ("what was sent", initial.sent, wanted.sent, actual.sent),
    ):
        if kind := compared(before, one, other):
            return f"{kind.upper()}: {what} should be {brief(one)}, and is {brief(other)}"
    if statuses != others:
        return f"UNFINISHED: the messages should be {brief(statuses)}, and are {brief(others)}"
    calls, made = wanted.calls or 0, actual.calls or 0
    if made < calls or (made > calls and not harness.subject.at_least_once):
        return f"{'LOST' if made < calls else 'DOUBLED'}: external calls: {made} instead of {calls}"
    return ""
