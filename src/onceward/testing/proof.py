"""`prove_exactly_once`: run a handler without faults to learn what it does, then through every case, and compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onceward.errors import ConfigurationError
from onceward.inbox import Inbox
from onceward.registry import Handler
from onceward.testing.cases import INLINE, NO_FAULT, STORE_FIRST, Bench, Plan
from onceward.testing.fault import Watch
from onceward.testing.harness import Findings, Harness, Subject
from onceward.testing.looking import Check
from onceward.testing.outside import Outside, open_connections
from onceward.testing.report import Case, Report, brief
from onceward.testing.verdict import Verdicts

_CLOCK = (
    "a clock, a random number or a uuid is part of the effect, so a retry does something else than the attempt "
    "it repeats. Take it from the message (message.idempotency_key(...)), or leave it out of check="
)
_UNCOUNTED = (
    "a crash after such a call and before the commit makes it again. Count the calls of a fake with external=, "
    "make them through message.once(...), or pass external_at_least_once=True"
)


def prove_exactly_once(  # noqa: PLR0913 - what a proof needs to know
    inbox: Inbox,
    message: Mapping[str, Any],
    *,
    check: Check,
    handler: Callable[..., Any] | str | None = None,
    others: Iterable[Mapping[str, Any]] = (),
    external: Callable[[], Any] | None = None,
    external_at_least_once: bool = False,
    setup: Callable[[], object] | None = None,
    reset: Callable[[], object] | None = None,
    modes: Sequence[str] = (STORE_FIRST, INLINE),
    real_processes: bool = False,
) -> Report:
    """Run the handler of a message through every case and report what was lost or doubled.

    `check(connection)` returns the effect, as something to compare; annotated `session: Session` it gets a Session, and
    with Django's ORM it has no arguments. The database of the inbox must be disposable: it
    is put back to how it was before each case, and at the end; `reset` replaces how. `setup` runs before each case,
    for fakes of your own. `handler`, a function or a consumer's name, chooses where several handle the type. `others`
    are messages that run beside it. `external` returns a list of the calls that a fake has seen, or their number; they
    must not repeat unless `external_at_least_once`; without it a handler that opens a connection or starts a program
    is not called exactly once. `real_processes` kills forked children instead of simulating.

    >>> inbox = Inbox("sqlite://")
    >>> applied = inbox.migrate()
    >>> with inbox.transaction() as tx:
    ...     _ = tx.execute("CREATE TABLE paid (order_id integer)")
    >>> @inbox.on("order.paid")
    ... def pay(message, tx):
    ...     tx.execute("INSERT INTO paid VALUES (?)", [message.data["order_id"]])
    >>> order = {"source": "shop", "id": "evt_1", "type": "order.paid", "data": {"order_id": 7}}
    >>> report = prove_exactly_once(inbox, order, check=lambda c: c.execute("SELECT * FROM paid").fetchall())
    >>> report.ok
    True
    >>> inbox.close()
    """
    unknown = set(modes) - {STORE_FIRST, INLINE}
    if unknown or not modes:
        raise ConfigurationError(f"modes={modes!r}: choose from {STORE_FIRST!r} and {INLINE!r}")
    if real_processes and inbox.url in ("sqlite://", "sqlite:///:memory:"):
        raise ConfigurationError("a database in memory cannot be shared with a real process; use a file")
    subject = Subject(
        inbox=inbox,
        handler=handler_of(inbox, message, handler),
        message=dict(message),
        others=[dict(other) for other in others],
        check=check,
        external=external,
        at_least_once=external_at_least_once,
        setup=setup,
        reset=reset,
    )
    inbox.store.make_missing()
    return report_on(subject, tuple(modes), real_processes=real_processes)


def report_on(subject: Subject, modes: tuple[str, ...], *, real_processes: bool = False) -> Report:
    """Run every case, and leave the database as it was."""
    harness = Harness(subject)
    try:
        return _Proof(harness, modes, real_processes=real_processes).report()
    finally:
        harness.end()


def handler_of(inbox: Inbox, message: Mapping[str, Any], wanted: Callable[..., Any] | str | None) -> Handler:
    """The handler that is proven."""
    known = [one for one in inbox.context.registry if one.type == message.get("type") and not one.external]
    found = [one for one in known if wanted is None or wanted in (one.function, one.consumer)]
    consumers = sorted({one.consumer for one in found})
    if not consumers:
        raise ConfigurationError(f"no handler for {message.get('type')!r} is registered that fits handler={wanted!r}")
    if len(consumers) > 1:
        raise ConfigurationError(f"{consumers} each handle {message['type']!r}; name the one to prove with handler=")
    return inbox.context.registry.find(consumers[0], message["type"], message.get("version", 1))[0]


class _Proof:
    def __init__(self, harness: Harness, modes: tuple[str, ...], *, real_processes: bool) -> None:
        self._harness = harness
        self._modes = modes
        self._real_processes = real_processes
        self._notes: list[str] = []
        self._connections: list[str] = []
        self._plan = Plan((), (), modes)

    def report(self) -> Report:
        """Run everything."""
        cases = tuple(self._cases())
        subject = self._harness.subject
        made = max((case.external_calls or 0 for case in cases), default=0)
        usual = cases[0].external_calls or 0
        if made > usual and all(case.ok for case in cases):
            self._notes.append(f"the external effect is at least once: up to {made} times instead of {usual}")
        if self._harness.subject.others and subject.handler.key is None:
            self._notes.append("the handler has no key=, so the order of the messages is not kept")
        return Report(subject.handler.name, cases, self._plan.statements, tuple(self._notes), tuple(self._unseen()))

    def _unseen(self) -> Iterator[str]:
        """What no case has looked at, so that it is not taken for proven."""
        subject = self._harness.subject
        if subject.external is None:
            if self._connections:
                yield f"what goes over connections that were open before: to {', '.join(self._connections)}"
            yield "calls of a driver written in C, such as psycopg, on connections of its own; external= counts them"
        if (subject.handler.key or subject.handler.sequence) and not subject.others:
            yield "order: other messages of the same key, others=[...]"
        if not self._real_processes:
            yield "what a killed process takes with it beside its database; real_processes=True kills real ones"

    def _cases(self) -> Iterator[Case]:
        expected, watch = self._without_fault()
        with self._harness.connection() as connection:
            self._connections = open_connections(connection)
        verdicts = Verdicts(self._harness, expected)
        self._plan = self._planned(watch)
        first = verdicts.case(NO_FAULT, STORE_FIRST)
        yield first
        if not first.ok:
            self._notes.append("the other cases were not tried: the handler does not finish even without a fault")
            return
        again, _ = self._without_fault()
        if again != expected:
            yield self._unrepeatable(expected, again)
            return
        if expected.effect == self._harness.initial.effect and not expected.sent and not expected.calls:
            self._notes.append("the message changed nothing that check= shows; is this the effect you mean?")
        yield from self._uncounted(watch.outside)
        bench = Bench(self._harness, verdicts, self._plan)
        if INLINE in self._plan.modes:
            inline = bench.inline_without_fault()
            yield inline
            if not inline.ok:
                self._plan = replace(self._plan, modes=tuple(mode for mode in self._plan.modes if mode != INLINE))
                self._notes.append(
                    "the other inline cases were not tried: it does not finish inline even without a fault"
                )
        yield from Bench(self._harness, verdicts, self._plan).alone()
        if self._harness.subject.others:
            yield from self._with_others()

    def _uncounted(self, outside: Outside) -> Iterator[Case]:
        """Calls to the outside that are not counted may happen twice in every case, unseen."""
        subject = self._harness.subject
        if subject.external is not None:
            return
        if outside.files:
            self._notes.append(f"files the handler writes are not compared: {', '.join(outside.files)}; see external=")
        if outside.calls and subject.at_least_once:
            self._notes.append(f"calls to the outside were not counted: it {'; it '.join(outside.calls)}")
        elif outside.calls:
            yield Case(
                "it called the outside, and nothing counts those calls",
                STORE_FIRST,
                "uncounted",
                tuple(f"it {call}" for call in outside.calls),
                _UNCOUNTED,
            )

    def _without_fault(self, *, others: bool = False) -> tuple[Findings, Watch]:
        self._harness.begin()
        subject = self._harness.subject
        for message in [subject.message, *(subject.others if others else [])]:
            self._harness.process().receive(message)
        process = self._harness.process()
        process.work()
        return self._harness.look(), process.watch

    def _planned(self, watch: Watch) -> Plan:
        modes = self._modes
        if watch.effects and self._harness.inbox.store.single_writer and INLINE in modes:
            modes = tuple(mode for mode in modes if mode != INLINE)
            self._notes.append("inline was left out: on SQLite a handler that uses message.once is for store-first")
        return Plan(tuple(watch.statements), tuple(watch.effects), modes, self._real_processes)

    @staticmethod
    def _unrepeatable(expected: Findings, again: Findings) -> Case:
        one, two = (expected.effect, again.effect) if expected.effect != again.effect else (expected.sent, again.sent)
        return Case(
            "it ran twice, without a fault, each time from the same start",
            STORE_FIRST,
            "unrepeatable",
            (
                f"first time:  {brief(one)}",
                f"second time: {brief(two)}",
                "the other cases were not tried: there is nothing to compare them with",
            ),
            _CLOCK,
        )

    def _with_others(self) -> Iterator[Case]:
        expected, _ = self._without_fault(others=True)
        bench = Bench(self._harness, Verdicts(self._harness, expected), self._plan)
        yield from bench.with_others()
