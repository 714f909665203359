"""Handlers: who handles which type, by what policy, with which guarantee, and what keeps it from working now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from onceward.admin import guarantees, overview
from onceward.domain.pauses import Pauses
from onceward.domain.text import count, span
from onceward.registry import OUTBOX, Handler, Promise
from onceward.retry import RetryPolicy
from onceward.runtime.runner import perform
from onceward.steps.context import Context
from onceward.stores.moves.reports import WorkerRow
from onceward.stores.protocol import Store

_Open = Mapping[tuple[str, str], Sequence[float]]
"""For how many seconds each circuit stays open, in each process in which it does."""


@dataclass(frozen=True, slots=True)
class HandlerRow:
    """A handler; of one that only other programs have, what the database knows."""

    consumer: str
    type: str
    """Of the relay: the destination."""
    outgoing: bool
    name: str | None
    """None where this program has no such handler: then the policy is not known either."""
    key: str | None
    on_dead: str
    is_async: bool | None = None
    attempts: int | None = None
    max_age_seconds: float | None = None
    timeout_seconds: float | None = None
    group: int | None = None
    guarantee: Promise | None = None
    """What is in force."""
    circuit_open_seconds: float = 0.0
    """For how long its circuit stays open, at most, as of the last heartbeats."""
    circuit_open_in: int = 0
    """In how many running processes it is open: each has its own."""
    paused: str | None = None
    """What is paused, by whom, since when and why."""
    reasons: tuple[str, ...] = ()
    """Why no more than this guarantee is in force."""
    retries: str = ""
    """Its policy, in words;"""
    circuit: str = ""
    """and when its circuit opens."""


def handlers(context: Context, store: Store) -> list[HandlerRow]:
    """The handlers of this program, then the subscriptions that only others handle."""
    rows = perform(store, context.moves.catalog.load_catalog)
    pauses, opened = Pauses(rows.pauses), _open(perform(store, context.moves.reports.workers))
    found = {(one.consumer, one.type): one for one in guarantees.in_force(context, store)}
    mine = [_row(handler, found[handler.consumer, handler.type], pauses, opened) for handler in context.registry]
    known = {(one.consumer, one.type) for one in mine}
    others = [one for one in rows.subscriptions if not one.retired and one.consumer != OUTBOX]
    return mine + [
        HandlerRow(
            one.consumer,
            one.type,
            outgoing=False,
            name=None,
            key="(a function)" if one.key_function else one.key_path,
            on_dead=one.on_dead,
            paused=_paused(pauses, one.consumer, one.type),
            circuit_open_seconds=max(opened.get((one.consumer, one.type), ()), default=0.0),
            circuit_open_in=len(opened.get((one.consumer, one.type), ())),
        )
        for one in others
        if (one.consumer, one.type) not in known
    ]


def _open(workers: Iterable[WorkerRow]) -> _Open:
    """The open circuits of the processes that run."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for circuit in chain.from_iterable(one.open_circuits for one in workers if one.lease_seconds > 0):
        found[circuit.consumer, circuit.type].append(circuit.seconds)
    return found


def _row(handler: Handler, in_force: guarantees.Guarantee, pauses: Pauses, opened: _Open) -> HandlerRow:
    age, seconds = handler.retry.max_age, opened.get((handler.consumer, handler.type), ())
    return HandlerRow(
        handler.consumer,
        handler.type,
        outgoing=handler.external,
        name="the relay" if handler.external else handler.name,
        key="(a function)" if callable(handler.key) else handler.key,
        on_dead=handler.on_dead,
        is_async=handler.is_async,
        attempts=handler.retry.attempts,
        max_age_seconds=None if age is None else age.total_seconds(),
        timeout_seconds=handler.timeout.total_seconds(),
        group=handler.group,
        guarantee=in_force.level,
        reasons=in_force.reasons,
        retries=_retries(handler.retry),
        circuit=_circuit(handler),
        circuit_open_seconds=max(seconds, default=0.0),
        circuit_open_in=len(seconds),
        paused=_paused(pauses, handler.consumer, handler.type),
    )


def _retries(policy: RetryPolicy) -> str:
    waits = f"first after {span(policy.first.total_seconds())}, then up to {span(policy.cap.total_seconds())}"
    return f"{count(policy.attempts, 'attempt')}, {waits}"


def _circuit(handler: Handler) -> str:
    if handler.breaker is None:
        return ""
    rule = handler.breaker.circuit
    which = "" if rule.counts is None else "; only some errors count"
    return f"opens for {span(rule.pause.total_seconds())} after {count(rule.failures, 'failure')} in a row{which}"


def _paused(pauses: Pauses, consumer: str, message_type: str) -> str | None:
    found = overview.pause_among(pauses, consumer, message_type, message_type)
    return None if found is None else f"{found.subject} is {found.told}"
