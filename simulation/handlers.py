"""Simulated handlers: scripts that write effects, send, call the outside world, and fail as their plan says."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

from onceward.domain.breaker import Breaker
from onceward.flow import Call
from onceward.message import Message
from onceward.registry import OUTBOX, Handler, Registry
from onceward.retry import Reject, Retry, RetryPolicy
from onceward.runtime.relay import CIRCUIT, relay_handler
from simulation.clock import Clock
from simulation.history import ExternalCall, Publication
from simulation.observer import Observer
from simulation.requests import Die, Pause, Script, Write
from simulation.themes import SERVICE
from simulation.workload import Kind, Plan, Scenario

TIMEOUT = 6.0


def registry_of(scenario: Scenario, clock: Clock, start: int) -> Registry:
    """The handlers of the process that is started as number so and so."""
    registry = Registry()
    for kind in scenario.kinds:
        for consumer in kind.consumers:
            if start >= scenario.since[kind.type, consumer]:
                version = kind.versions if start >= scenario.modern_since else 1
                registry.add(_handler(kind, consumer, scenario, clock, version))
        if kind.versions > 1 and start >= scenario.modern_since:
            registry.add_upcaster(kind.type, 1, lambda data: data)
    if scenario.deploying:  # each program handles something that none before it did
        registry.add(_handler(Kind(f"of {start}"), SERVICE, scenario, clock))
    for destination in scenario.sinks(start):
        relay = relay_handler(
            destination,
            _NoSink(),
            retry=RetryPolicy(attempts=4, first=timedelta(seconds=1), jitter=1),
            circuit=CIRCUIT,
            timeout=timedelta(seconds=TIMEOUT),
            group=2,
        )
        registry.add_relay(replace(relay, breaker=Breaker(CIRCUIT, clock.monotonic)))
    return registry


class _NoSink:
    """What the relay publishes is a script here."""

    def publish(self, message: Message) -> None:
        raise NotImplementedError(message.id)


def _handler(kind: Kind, consumer: str, scenario: Scenario, clock: Clock, version: int = 1) -> Handler:
    return Handler(
        function=lambda _message, _tx: None,
        type=kind.type,
        consumer=consumer,
        version=version,
        key=kind.key,
        retry=scenario.retry,
        timeout=timedelta(seconds=TIMEOUT),
        group=min(kind.group, scenario.settings.group),
        batch=kind.batch,
        keep_body=kind.keep_body,
        sequence=kind.sequence,
        gap=timedelta(seconds=kind.gap),
        on_dead=kind.on_dead,  # type: ignore[arg-type] # drawn from the two words that are allowed
        breaker=Breaker(kind.circuit, clock.monotonic) if kind.circuit else None,
    )


class Scripts:
    """Makes the script of each call; knows the plans and how calm the world is."""

    def __init__(self, scenario: Scenario, observer: Observer, database: Any, chance: random.Random) -> None:
        self._scenario, self._observer, self._database, self._chance = scenario, observer, database, chance
        self._kinds = {kind.type: kind for kind in scenario.kinds}
        self._killed: dict[tuple[str, str], int] = {}
        self.calm = False
        """Faults are over: everything succeeds."""

    def script(self, call: Call) -> Script:
        """The script of one call."""
        if call.handler.consumer == OUTBOX:
            return self._publish(call.message, call.handler.type)
        if call.handler.forgets_failures:
            return self._answer(call, self._observer.service)
        if call.handler.batch:
            return self._batch(call.message)
        return self._single(call.message)

    def plan_of(self, message: Message) -> Plan | None:
        """What is planned for a message; None for one that an operator accepted as new."""
        return self._scenario.plans.get((message.source, message.id))

    def _batch(self, messages: list[Message]) -> Script:
        results = []
        for message in messages:
            result = yield from self._single(message)
            results.append(result)
        return results if self._chance.random() < 0.7 else None

    def _single(self, message: Message) -> Script:
        plan, kind = self.plan_of(message), self._kinds[message.type]
        fails = plan is not None and not self.calm and message.attempt <= plan.fails
        if plan is not None and plan.pause:
            yield Pause(plan.pause)
        if plan is not None and not self.calm and self._kills(plan, message.consumer):
            yield Die()
        if kind.once:
            yield message.once("charge", self._external(message, kind), idempotent=kind.idempotent)
        if fails and plan is not None and not plan.late_failure:
            yield from _fail(plan.failure)
        yield _written(message)
        for index in range(kind.sends):
            to = tuple(self._scenario.destinations)[(message.seq + index) % len(self._scenario.destinations)]
            message.send("note", {"of": message.id, "index": index}, key=message.data["key"], to=to)
        if fails and plan is not None:
            yield from _fail(plan.failure)
        return {"seq": message.seq}

    def _answer(self, call: Call, service: str) -> Script:
        """An endpoint that somebody waits for."""
        message: Message = call.message[0] if isinstance(call.message, list) else call.message
        yield _written(message)
        if not self.calm and self._chance.random() < 0.2:
            raise ValueError("the endpoint has answered with an error")
        return {"service": service}

    def _kills(self, plan: Plan, consumer: str) -> bool:
        if consumer != SERVICE:
            return False
        identity = (plan.delivery.source, plan.delivery.id)
        done = self._killed.get(identity, 0)
        self._killed[identity] = done + 1
        return done < plan.kills

    def _external(self, message: Message, kind: Kind) -> Any:
        key = message.idempotency_key("charge")

        def call() -> dict[str, str]:
            intended = self._database.has_effect_intent(key)
            refused = not self.calm and self._chance.random() < 0.1
            record = ExternalCall(
                self._observer.step, key, intended, kind.idempotent, refused, self._observer.caller_holds
            )
            self._observer.history.calls.append(record)
            if refused:
                raise Retry("the other side is closed", after=1)
            return {"charged": key[:8]}

        return call

    def _publish(self, message: Message, sink: str) -> Script:
        yield Pause(0.0)
        if not self.calm and self._scenario.hangs(message.to or ""):
            self._observer.sometimes("destination hangs")
            yield Pause(TIMEOUT * 2)
        if not self.calm and self._chance.random() < self._scenario.faults.sink_away:
            raise ConnectionError("the sink is away")
        committed = self._database.has_outgoing(message.id)
        named = (message.source, message.id, message.to or "")
        now = self._database.clock.wall()
        record = Publication(self._observer.step, *named, message.key, committed, now, sink)
        history = self._observer.history
        if committed or message.id not in history.lost:
            history.publications.append(record)
        if not self.calm and self._chance.random() < self._scenario.faults.publish_crash:
            yield Die()
        yield Pause(0.0)


def _written(message: Message) -> Write:
    """The effect of a message."""
    data = json.loads(message.body)
    return Write(
        {
            "consumer": message.consumer,
            "source": message.source,
            "message": message.id,
            "seq": message.seq,
            "key": data["key"],
            "number": data.get("n"),
            "hash": hashlib.sha256(message.body).digest(),
            "attempt": message.attempt,
        }
    )


def _fail(failure: str) -> Script:
    if failure == "timeout":
        yield Pause(TIMEOUT * 2)
    if failure == "retry":
        raise Retry("not now", after=0.5)
    if failure == "reject":
        raise Reject("never")
    raise ValueError("the handler raised")
