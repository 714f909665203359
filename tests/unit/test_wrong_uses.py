"""Checks at the door: what is wrong when it is written is refused there, in a sentence (D50, D60).

Each case is one wrong use of the public API and the sentence that comes back: it names the argument, what was given and
what is allowed.
"""

# ruff: noqa: E501 - a line for each case

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from onceward import Circuit, Inbox, Message, OncewardError, Reject, Response, Retry, RetryPolicy, Settings
from onceward.admin.alerts import Rules
from onceward.domain.checks import shown
from onceward.integrations.idempotency import IdempotencyKeys
from onceward.retention.replay import replay
from onceward.webhooks import Limits

SECOND = timedelta(seconds=1)
Use = Callable[[Any], Any]
"""A use of an inbox; what is wrong is of a wrong type too, so none of it is typed."""


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    """An inbox with a handler and a sink; nothing here ever reaches its database."""
    with Inbox("sqlite://") as made:
        made.on("known")(good)
        made.add_sink("default", Sink())
        made.add_sink("mail", Sink())
        yield made


class Sink:
    """Publishes nowhere."""

    def publish(self, message: Message) -> None:
        """Not called."""


def good(message: Message, tx: Any) -> None:
    """A handler."""


def alone(message: Message) -> None:
    """Lacks `tx`."""


def three(message: Message, tx: Any, more: Any) -> None:
    """Wants more than it gets."""


def named(message: Message, *, tx: Any) -> None:
    """Wants `tx` by its name."""


def generating(message: Message, tx: Any) -> Iterator[int]:
    """Would do nothing when called."""
    del message, tx
    yield 1


async def generating_async(message: Message, tx: Any) -> AsyncIterator[int]:
    """Would do nothing when awaited."""
    del message, tx
    yield 1


class Handling:
    """A class: calling it makes an object and handles nothing."""

    def __init__(self, message: Message, tx: Any) -> None:
        """As if it were a handler."""


def on(**options: Any) -> Use:
    """Register a handler with these options."""
    return lambda inbox: inbox.on("order.paid", **options)(good)


def handle(function: Any) -> Use:
    """Register this as a handler."""
    return lambda inbox: inbox.on("order.paid")(function)


def receive(**changes: Any) -> Use:
    """Receive a message with these changes; a value of `...` leaves an argument out."""
    arguments = {"source": "shop", "id": "evt_1", "type": "known", "data": {}, **changes}
    return lambda inbox: inbox.receive(**{name: value for name, value in arguments.items() if value is not ...})


loose: Any = SimpleNamespace(
    Inbox=Inbox,
    Settings=Settings,
    RetryPolicy=RetryPolicy,
    Circuit=Circuit,
    Rules=Rules,
    Limits=Limits,
    Retry=Retry,
    Response=Response,
    IdempotencyKeys=IdempotencyKeys,
    replay=replay,
    good=good,
)
"""The public names without their types, which would refuse most of this before it is run."""

HANDLER = "a handler is def f(message, tx) or async def f(message, tx)"
ON = "@inbox.on('order.paid')"
DURATION = "must be a timedelta above zero, for example timedelta(seconds=30)"

# fmt: off
WRONG: Mapping[str, tuple[Use, str]] = {
    # The inbox
    "Inbox(None)": (lambda _: loose.Inbox(None), "Inbox: store=None must be a URL, for example sqlite:///shop.db or postgresql://host/shop, or a store"),
    "Inbox(oracle)": (lambda _: loose.Inbox("oracle://host/db"), "no store for 'oracle' URLs; installed are: dynamodb, mariadb, mysql, postgres, postgresql, redis, rediss, sqlite. Use sqlite:///path, sqlite:// (memory), postgresql://"),
    "Inbox(settings={})": (lambda _: loose.Inbox("sqlite://", settings={}), "Inbox: settings={} must be Settings(...)"),
    "Inbox(service=5)": (lambda _: loose.Inbox("sqlite://", service=5), "service must be text, not int: 5"),
    "Inbox(service=reserved)": (lambda _: loose.Inbox("sqlite://", service="onceward.outbox"), "service 'onceward.outbox' is reserved: names that begin with 'onceward.' belong to onceward itself"),
    "Inbox(prefix=5)": (lambda _: loose.Inbox("sqlite://", prefix=5), "prefix 5 must be lower-case letters, digits and underscores"),
    "Inbox(prefix=pg_)": (lambda _: loose.Inbox("sqlite://", prefix="pg_inbox_"), "prefix 'pg_inbox_' is reserved: names that begin with 'pg_' or 'sqlite_' belong to the database"),
    "Inbox(prefix=sqlite_)": (lambda _: loose.Inbox("sqlite://", prefix="sqlite_"), "prefix 'sqlite_' is reserved"),
    "Inbox(code_version=3)": (lambda _: loose.Inbox("sqlite://", code_version=3), "Inbox: code_version=3 must be text"),
    "Inbox(spool=True)": (lambda _: loose.Inbox("sqlite://", spool=True), "Inbox: spool=True must be a path"),
    "Inbox(archive=5)": (lambda _: loose.Inbox("sqlite://", archive=5), "Inbox: archive=5 must be a path"),
    "Inbox(blobs=5)": (lambda _: loose.Inbox("sqlite://", blobs=5), "Inbox: blobs=5 must be text that is not empty"),
    "Inbox(blob_above=-1)": (lambda _: loose.Inbox("sqlite://", blob_above=-1), "Inbox: blob_above=-1 must be a whole number, at least 0"),
    # Handlers
    "on without parentheses": (lambda inbox: inbox.on(good), "@inbox.on needs the type of the messages in parentheses: @inbox.on('order.paid')"),
    "on(5)": (lambda inbox: inbox.on(5)(good), "type must be text, not int: 5"),
    "on('*')": (lambda inbox: inbox.on("*")(good), "good: the type '*' and consumers that begin with 'onceward.' are reserved"),
    "three parameters": (handle(three), f"{ON}: more has no type; parameters beyond message and tx are filled by their types"),
    "tx by name": (handle(named), f"{ON}: tx has no type; parameters beyond message and tx are filled by their types"),
    "no parameters": (handle(lambda: None), f"<lambda> has no parameters; {HANDLER}"),
    "a generator": (handle(generating), f"{ON}: generating is a generator, which would never run; {HANDLER}"),
    "an async generator": (handle(generating_async), f"{ON}: generating_async is a generator, which would never run; {HANDLER}"),
    "a class": (handle(Handling), f"{ON}: Handling is a class; {HANDLER}"),
    "not callable": (handle("good"), f"{ON}: 'good' cannot be called; {HANDLER}"),
    "a partial without message": (handle(functools.partial(loose.good, None, None)), f"has no parameters; {HANDLER}"),
    "key=5": (on(key=5), f"{ON}: key=5 must be a field, a dotted path, header:NAME, or a function of the message"),
    "key=''": (on(key=""), f"{ON}: key='' must be a field, a dotted path, header:NAME, or a function of the message"),
    "key=function of nothing": (on(key=lambda: 1), "must be a function of 1 argument, not of no arguments"),
    "retry=3": (on(retry=3), f"{ON}: retry=3 must be a RetryPolicy, for example RetryPolicy(attempts=5)"),
    "timeout='10s'": (on(timeout="10s"), f"{ON}: timeout='10s' must be a timedelta above zero, or a number of seconds above 0"),
    "timeout=-1": (on(timeout=-1), f"{ON}: timeout=-1 must be a timedelta above zero, or a number of seconds above 0"),
    "timeout=0": (on(timeout=timedelta(0)), f"{ON}: timeout=datetime.timedelta(0) {DURATION}"),
    "group=0": (on(group=0), f"{ON}: group=0 must be a whole number, at least 1"),
    "group='many'": (on(group="many"), f"{ON}: group='many' must be a whole number, at least 1"),
    "version='1'": (on(version="1"), f"{ON}: version='1' must be a whole number, at least 0"),
    "version=True": (on(version=True), f"{ON}: version=True must be a whole number, at least 0"),
    "raw='no'": (on(raw="no"), f"{ON}: raw='no' must be True or False"),
    "keep_body=0": (on(keep_body=0), f"{ON}: keep_body=0 must be True or False"),
    "batch=10": (on(batch=10), f"{ON}: batch=10 must be True or False"),
    "sequence without key": (on(sequence="number"), f"{ON}: sequence= counts within a key, so it needs key="),
    "sequence=5": (on(key="k", sequence=5), f"{ON}: sequence=5 must be a field, a dotted path, header:NAME"),
    "gap=5": (on(key="k", sequence="n", gap=5), f"{ON}: gap=5 must be a timedelta of at least 0 s, for example timedelta(seconds=30)"),
    "on_dead='skip'": (on(on_dead="skip"), f"{ON}: on_dead='skip' must be one of 'block', 'continue'"),
    "guarantee='at-most-once'": (on(guarantee="at-most-once"), f"{ON}: guarantee='at-most-once' must be one of 'exactly-once', 'at-least-once', 'weaker'"),
    "circuit=5": (on(circuit=5), f"{ON}: circuit=5 must be a Circuit, for example Circuit(failures=5), or None"),
    "consumer=5": (on(consumer=5), "consumer must be text, not int: 5"),
    "consumer=reserved": (on(consumer="onceward.audit"), "good: the type '*' and consumers that begin with 'onceward.' are reserved"),
    "upcast version": (lambda inbox: inbox.upcast("known", "1")(dict), "@inbox.upcast('known'): version='1' must be a whole number, at least 0"),
    "upcast function": (lambda inbox: inbox.upcast("known", 1)(good), "@inbox.upcast('known'): function="),
    "upcast(a function)": (lambda inbox: inbox.upcast(alone, 1)(alone), "type must be text, not function"),
    # Messages in
    "receive without id": (receive(id=...), "receive() needs id=: the producer's message id"),
    "receive without source": (receive(source=...), "receive() needs source=: the name of the producer"),
    "receive without type": (receive(type=...), "receive() needs type=: what kind of message it is, for example 'order.paid'"),
    "receive(idd=)": (receive(idd="x"), "receive() has no argument idd=; its arguments are source, id, type, data, body, headers, key, version, position, at, delay, tx"),
    "receive(destination=)": (receive(destination="x"), "receive() has no argument destination=; its arguments are"),
    "receive(id=5)": (receive(id=5), "id must be text, not int: 5"),
    "receive(id='')": (receive(id=""), "id is empty; every message needs one that its producer chose"),
    "receive(body=text)": (receive(data=..., body="text"), "body must be bytes, not str; use data= for JSON"),
    "receive(data and body)": (receive(body=b"x", data={}), "pass data= or body=, not both"),
    "receive(headers=list)": (receive(headers=[("a", "b")]), "headers must be a mapping of text to text, not list"),
    "receive(version='1')": (receive(version="1"), "version must be a whole number from 0, not '1'"),
    "receive(position=1.5)": (receive(position=1.5), "position must be a whole number, not 1.5"),
    "process without id": (lambda inbox: inbox.process(source="shop", type="known"), "process() needs id=: the producer's message id"),
    "process(raise_on_failure='no')": (lambda inbox: inbox.process(source="shop", id="1", type="known", raise_on_failure="no"), "process(): raise_on_failure='no' must be True or False"),
    "receive_many(one)": (lambda inbox: inbox.receive_many({"source": "shop", "id": "1", "type": "known"}), "receive_many(): messages="),
    "receive_many(lacking)": (lambda inbox: inbox.receive_many([{"source": "shop", "type": "known"}]), "receive_many() needs id=: the producer's message id"),
    # Messages out
    "send(5)": (lambda inbox: inbox.send(5), "type must be text, not int: 5"),
    "send(to='typo')": (lambda inbox: inbox.send("sent", {}, to="typo"), "send(): to='typo' must be one of the sinks of this process: 'default', 'mail'"),
    "send(two=)": (lambda inbox: inbox.send("sent", {}, two=1), "send() has no argument two=; its arguments are type, data, body, key, to, headers, version, id, at, delay, tx"),
    "send(destination=)": (lambda inbox: inbox.send("sent", {}, destination="mail"), "send() has no argument destination=; its arguments are"),
    "sink unhashable": (lambda inbox: inbox.add_sink(["x"], Sink()), "sink must be text, not list: ['x']"),
    "sink taken": (lambda inbox: inbox.add_sink("mail", Sink()), "there is a sink named 'mail' already"),
    "sink without publish": (lambda inbox: inbox.add_sink("x", good), "add_sink('x'): sink="),
    "sink scheme": (lambda inbox: inbox.add_sink("x", "smtp://host"), "no broker for"),
    "sink(retry=3)": (lambda inbox: inbox.add_sink("x", Sink(), retry=3), "add_sink('x'): retry=3 must be a RetryPolicy, for example RetryPolicy(attempts=5)"),
    "sink(circuit=3)": (lambda inbox: inbox.add_sink("x", Sink(), circuit=3), "add_sink('x'): circuit=3 must be a Circuit, for example Circuit(failures=5), or None"),
    # Work
    "run(concurrency=0)": (lambda inbox: inbox.run(concurrency=0), "concurrency=0 must be a whole number, at least 1"),
    "drain(concurrency='2')": (lambda inbox: inbox.drain(concurrency="2"), "concurrency='2' must be a whole number, at least 1"),
    "run(process=5)": (lambda inbox: inbox.run(process=5), "process=5 must be text"),
    # Reports
    "messages(status='ded')": (lambda inbox: inbox.admin.messages(status="ded"), "messages(): status='ded' must be one of 'due', 'running', 'retrying', 'scheduled', 'waiting', 'unhandled', 'dead', 'done', 'discarded', 'skipped'"),
    "messages(limit=0)": (lambda inbox: inbox.admin.messages(limit=0), "messages(): limit=0 must be a whole number, at least 1"),
    "messages(limit='9')": (lambda inbox: inbox.admin.messages(limit="9"), "messages(): limit='9' must be a whole number, at least 1"),
    "messages(since='today')": (lambda inbox: inbox.admin.messages(since="today"), "messages(): since='today' must be a datetime"),
    "messages(before='x')": (lambda inbox: inbox.admin.messages(before="x"), "messages(): before='x' must be a whole number, at least 0"),
    "messages(type=5)": (lambda inbox: inbox.admin.messages(type=5), "messages(): type=5 must be text"),
    "messages(key=7)": (lambda inbox: inbox.admin.messages(key=7), "messages(): key=7 must be text"),
    "messages(outgoing='yes')": (lambda inbox: inbox.admin.messages(outgoing="yes"), "messages(): outgoing='yes' must be True or False"),
    "message('7')": (lambda inbox: inbox.admin.message("7"), "message(): seq='7' must be a whole number, at least 0"),
    "explain('7')": (lambda inbox: inbox.admin.explain("7"), "explain(): seq='7' must be a whole number, at least 0"),
    "dry_run('7')": (lambda inbox: inbox.admin.dry_run("7"), "dry_run(): seq='7' must be a whole number, at least 0"),
    "find(5)": (lambda inbox: inbox.admin.find("shop", 5), "find(): id=5 must be text that is not empty"),
    "find_anywhere(5)": (lambda inbox: inbox.admin.find_anywhere(5), "find_anywhere(): id=5 must be text that is not empty"),
    "quarantine(limit=0)": (lambda inbox: inbox.admin.quarantine(limit=0), "quarantine(): limit=0 must be a whole number, at least 1"),
    "running(limit=0)": (lambda inbox: inbox.admin.running(limit=0), "running(): limit=0 must be a whole number, at least 1"),
    "dead_groups(limit=0)": (lambda inbox: inbox.admin.dead_groups(limit=0), "dead_groups(): limit=0 must be a whole number, at least 1"),
    "blocked_keys(limit=0)": (lambda inbox: inbox.admin.blocked_keys(limit=0), "blocked_keys(): limit=0 must be a whole number, at least 1"),
    "effects(limit=0)": (lambda inbox: inbox.admin.effects(limit=0), "effects(): limit=0 must be a whole number, at least 1"),
    "audit(before='x')": (lambda inbox: inbox.admin.audit(before="x"), "audit(): before='x' must be a whole number, at least 0"),
    "traffic(minutes=0)": (lambda inbox: inbox.admin.traffic(minutes=0), "traffic(): minutes=0 must be a whole number, at least 1"),
    "failing(times=0)": (lambda inbox: inbox.admin.failing(times=0), "failing(): times=0 must be a whole number, at least 1"),
    "add_hook(5)": (lambda inbox: inbox.add_hook(5), "add_hook(): hook=5 must be a function"),
    # Decisions
    "redrive('7')": (lambda inbox: inbox.admin.redrive("7"), "redrive(): seq='7' must be a whole number, at least 0"),
    "redrive(typ=)": (lambda inbox: inbox.admin.redrive(typ="known"), "redrive() has no argument typ=; its arguments are type, key, source, since, until, fingerprint, outgoing"),
    "redrive(both)": (lambda inbox: inbox.admin.redrive(7, type="known"), "redrive(): name messages or filters, not both: 7 and type="),
    "discard(status=)": (lambda inbox: inbox.admin.discard(status="done"), "discard(): status='done' must be one of 'dead', 'retrying'"),
    "redrive(status=)": (lambda inbox: inbox.admin.redrive(status="dead"), "redrive() has no argument status=; its arguments are type"),
    "unblock(since='now')": (lambda inbox: inbox.admin.unblock(since="now"), "unblock(): since='now' must be a datetime"),
    "discard(reason=5)": (lambda inbox: inbox.admin.discard(1, reason=5), "discard(): reason=5 must be text"),
    "resolve(word)": (lambda inbox: inbox.admin.resolve(1, "keep"), "resolve(): resolution='keep' must be one of 'keep-first', 'accept-as-new', 'discard'"),
    "resolve('1')": (lambda inbox: inbox.admin.resolve("1", "discard"), "resolve(): case='1' must be a whole number, at least 0"),
    "settle_effect(happened='no')": (lambda inbox: inbox.admin.settle_effect(1, "charge", happened="no"), "settle_effect(): happened='no' must be True or False"),
    # Retention
    "prune(progress=5)": (lambda inbox: inbox.retention.prune(progress=5), "prune(): progress=5 must be a function"),
    "archive(None)": (lambda inbox: inbox.retention.archive(None), "archive(): folder=None must be a path"),
    "erase('7')": (lambda inbox: inbox.retention.erase("7", reason="x"), "erase(): seq='7' must be a whole number, at least 0"),
    "erase(reason='')": (lambda inbox: inbox.retention.erase(7, reason=""), "erase(): reason='' must be text that is not empty"),
    "personal()": (lambda inbox: inbox.retention.personal(), "give one of: key=, field=(path, value), or source= and id="),
    "personal(field='x')": (lambda inbox: inbox.retention.personal(field="email"), "field='email' must be a pair of a path and a value, for example ('customer.email', 'a@b.example')"),
    "collect(older_than=5)": (lambda inbox: inbox.retention.collect(older_than=5), "collect(): older_than=5 must be a timedelta, for example timedelta(days=1)"),
    "declare_source(5)": (lambda inbox: inbox.retention.declare_source("shop", redelivers_for=5), "declare_source(): redelivers_for=5 must be a timedelta of at least 0 s"),
    "replay(again=5)": (lambda inbox: loose.replay(inbox, again=5), "replay(): again=5 must be a label for this replay, for example a date"),
    "replay(typ=)": (lambda inbox: loose.replay(inbox, typ="known"), "replay() has no argument typ=; its arguments are type, key, source, id, since, until"),
    "replay(since='x')": (lambda inbox: loose.replay(inbox, since="x"), "replay(): since='x' must be a datetime"),
    # Sources, polls, webhooks, alerts
    "source(5)": (lambda inbox: inbox.add_source(5, source="shop"), "add_source(): url=5 must be text that is not empty"),
    "source(batch=0)": (lambda inbox: inbox.add_source("redis://h/0?stream=x", source="shop", batch=0), "add_source(): batch=0 must be a whole number, at least 1"),
    "source(mode='inline')": (lambda inbox: inbox.add_source("redis://h/0?stream=x", source="shop", mode="inline"), "add_source(): mode='inline' must be one of 'store-first', 'direct'"),
    "source(rate='fast')": (lambda inbox: inbox.add_source("redis://h/0?stream=x", source="shop", rate="fast"), "rate='fast' must be a number a second, one a minute at least"),
    "source(redelivers_for=5)": (lambda inbox: inbox.add_source("redis://h/0?stream=x", source="shop", redelivers_for=5), "add_source(): redelivers_for=5 must be a timedelta of at least 0 s"),
    "poll(every=5)": (lambda inbox: inbox.add_poll(every=5, source="api")(generating), f"@inbox.add_poll(source='api'): every=5 {DURATION}"),
    "poll(timeout=0)": (lambda inbox: inbox.add_poll(every=SECOND, timeout=timedelta(0), source="api")(generating), f"@inbox.add_poll(source='api'): timeout=datetime.timedelta(0) {DURATION}"),
    "poll(retry=3)": (lambda inbox: inbox.add_poll(every=SECOND, retry=3, source="api")(generating), "@inbox.add_poll(source='api'): retry=3 must be a RetryPolicy"),
    "poll(not a generator)": (lambda inbox: inbox.add_poll(every=SECOND, source="api")(alone), "poll of 'api': the function must yield its responses: yield Response(body, cursor=...)"),
    "poll_now(unknown)": (lambda inbox: inbox.ingress.poll_now("api"), "there is no poll of 'api'; register one with @inbox.add_poll(source=...)"),
    "webhooks(list)": (lambda inbox: inbox.webhooks(["/stripe"]), "webhooks(): endpoints=['/stripe'] must be a mapping of paths to verifiers, for example {'/stripe': Stripe(secret)}"),
    "webhooks(secret)": (lambda inbox: inbox.webhooks({"/stripe": "secret"}), "webhooks(): the endpoint '/stripe' must be a verifier, for example Stripe(secret), not str"),
    "webhooks(limits=5)": (lambda inbox: inbox.webhooks({}, limits=5), "webhooks(): limits=5 must be Limits(...)"),
    "alert(5)": (lambda inbox: inbox.admin.alert(5), "alert(): hook=5 must be a function"),
    "alert(of nothing)": (lambda inbox: inbox.admin.alert(lambda: None), "must be a function of 1 argument, not of no arguments"),
    "alert(rules={})": (lambda inbox: inbox.admin.alert(rules={}), "alert(): rules={} must be Rules(...)"),
    "IdempotencyKeys(tenant='x')": (lambda inbox: loose.IdempotencyKeys(None, inbox=inbox, tenant="x"), "IdempotencyKeys: tenant='x' must be a function"),
    "IdempotencyKeys(methods='POST')": (lambda inbox: loose.IdempotencyKeys(None, inbox=inbox, tenant=str, methods="POST"), "IdempotencyKeys: methods='POST' must be a collection of methods"),
    "Response('text')": (lambda _: loose.Response("text"), "Response: body='text' must be bytes, as the API sent them"),
    # Values
    "Rules(every=5)": (lambda _: loose.Rules(every=5), f"Rules: every=5 {DURATION}"),
    "Rules(failures=0)": (lambda _: loose.Rules(failures=0), "Rules: failures=0 must be a whole number, at least 1"),
    "Limits(body=0)": (lambda _: loose.Limits(body=0), "Limits: body=0 must be a whole number, at least 1"),
    "Limits(read=10)": (lambda _: loose.Limits(read=10), f"Limits: read=10 {DURATION}"),
    "Limits(memory<body)": (lambda _: loose.Limits(body=10, memory=9), "Limits: memory=9 must be a whole number, at least 10"),
    "Settings(lease=5)": (lambda _: loose.Settings(lease=5), "Settings: lease=5 must be a timedelta of at least 1 s"),
    "Settings(poll=0)": (lambda _: loose.Settings(poll=timedelta(0)), f"Settings: poll=datetime.timedelta(0) {DURATION}"),
    "Settings(group='x')": (lambda _: loose.Settings(group="x"), "Settings: group='x' must be a whole number, at least 1"),
    "Settings(retry=3)": (lambda _: loose.Settings(retry=3), "Settings: retry=3 must be a RetryPolicy"),
    "Settings(maintenance=5)": (lambda _: loose.Settings(maintenance=5), "Settings: maintenance=5 must be a timedelta of at least 1 s"),
    "Settings(archive_first=1)": (lambda _: loose.Settings(archive_first=1), "Settings: archive_first=1 must be True or False"),
    "RetryPolicy(attempts=0)": (lambda _: loose.RetryPolicy(attempts=0), "RetryPolicy: attempts=0 must be a whole number, at least 1"),
    "RetryPolicy(attempts=2.5)": (lambda _: loose.RetryPolicy(attempts=2.5), "RetryPolicy: attempts=2.5 must be a whole number, at least 1"),
    "RetryPolicy(first=10)": (lambda _: loose.RetryPolicy(first=10), "RetryPolicy: first=10 must be a timedelta of at least 0 s"),
    "RetryPolicy(max_age=3)": (lambda _: loose.RetryPolicy(max_age=3), "RetryPolicy: max_age=3 must be a timedelta of at least 0 s"),
    "RetryPolicy(factor='2')": (lambda _: loose.RetryPolicy(factor="2"), "RetryPolicy: factor='2' must be a number from 1"),
    "RetryPolicy(jitter=2)": (lambda _: loose.RetryPolicy(jitter=2), "RetryPolicy: jitter=2 must be a number from 0 to 1"),
    "Circuit(failures=0)": (lambda _: loose.Circuit(failures=0), "Circuit: failures=0 must be a whole number, at least 1"),
    "Circuit(pause=30)": (lambda _: loose.Circuit(pause=30), f"Circuit: pause=30 {DURATION}"),
    "Circuit(counts=5)": (lambda _: loose.Circuit(counts=5), "Circuit: counts=5 must be a function"),
    "Retry(after='5')": (lambda _: loose.Retry(after="5"), "Retry: after='5' must be a timedelta, or a number of seconds from 0"),
    "Retry(after=-1)": (lambda _: loose.Retry(after=-1), "Retry: after=-1 must be a timedelta, or a number of seconds from 0"),
}
# fmt: on


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_use_is_refused_in_a_sentence(inbox: Inbox, name: str) -> None:
    """At once, with an error of ours, in one line that says what is wrong with what."""
    use, sentence = WRONG[name]
    with pytest.raises(OncewardError, match=re.escape(sentence)) as caught:
        use(inbox)
    assert "\n" not in str(caught.value)


def test_what_is_right_is_taken(inbox: Inbox) -> None:
    """The usual ways to write a handler, and the ends of what is allowed."""

    class Handles:
        def method(self, message: Message, tx: Any) -> None:
            """A bound method."""

        def __call__(self, message: Message, tx: Any) -> None:
            """An object."""

        async def awaited(self, message: Message, tx: Any) -> None:
            """A bound method that is awaited."""

    class Awaits:
        async def __call__(self, message: Message, tx: Any) -> None:
            """An object that is awaited."""

    def defaulted(message: Message, tx: Any, more: int = 1) -> None:
        """More than it gets, all optional."""

    def anything(*arguments: Any, **options: Any) -> None:
        """Wrapped by a decorator."""

    one = Handles()
    functions: list[Any] = [one.method, one, one.awaited, Awaits(), defaulted, anything, functools.partial(good), good]
    for number, function in enumerate(functions):
        inbox.on(f"type {number}", timeout=0.5, version=0, circuit=None, group=1)(function)
    found = {handler.type: handler.is_async for handler in inbox.context.registry}
    assert [found[f"type {number}"] for number in range(len(functions))] == [False, False, True, True, *[False] * 4]
    inbox.on("by function", key=lambda message: message.id)(good)
    RetryPolicy(attempts=1, first=timedelta(0), cap=timedelta(0), factor=1, jitter=0)
    Settings(body_retention=timedelta(0), maintenance=None)
    assert Retry(after=0).after == timedelta(0)
    assert str(Reject("no")) == "no"


def test_a_process_without_sinks_may_send_anywhere() -> None:
    """Another process relays; what it has is not known here."""
    with Inbox("sqlite://") as inbox:
        inbox.migrate()
        assert inbox.send("sent", {}, to="elsewhere")
        assert inbox.send("sent", {})


def test_a_handler_names_a_sink_of_its_process(inbox: Inbox) -> None:
    """At the line that sends: what it wrote is rolled back, and the message says why."""
    inbox.migrate()

    @inbox.on("sending")
    def sending(message: Message, tx: Any) -> None:
        del tx
        message.send("sent", {}, to="typo")

    receipt = inbox.process(source="shop", id="1", type="sending", data={})
    assert receipt.outcome == "retrying"
    assert receipt.error is not None
    assert receipt.error.text == "message.send(): to='typo' must be one of the sinks of this process: 'default', 'mail'"


def test_a_call_that_is_already_made_is_not_made_again(inbox: Inbox) -> None:
    """`once("charge", charge())` calls before it asks: dead at once, so that no retry repeats it."""
    inbox.migrate()
    calls: list[str] = []
    charge: Any = calls.append

    @inbox.on("charging")
    def charging(message: Message, tx: Any) -> None:
        del tx
        message.once("charge", charge(message.id))

    receipt = inbox.process(source="shop", id="1", type="charging", data={})
    assert (receipt.outcome, calls) == ("dead", ["1"])
    assert receipt.error is not None
    assert "call must be a function without arguments, not NoneType" in receipt.error.text


def test_values_are_shown_in_one_short_line() -> None:
    """Also those that cannot be printed."""

    class Broken:
        def __repr__(self) -> str:
            raise ValueError

    assert shown(Broken()) == "<Broken>"
    assert len(shown("x" * 1000)) == 80
