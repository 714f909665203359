"""The doctor: looks at everything that can quietly be wrong with an inbox, and says what to do about it.

It never raises for what it finds; only an unreachable database is an error of its own. It changes nothing, and leaves
nothing behind: the one thing it writes is a blob, which it removes again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

from onceward.admin import guarantees
from onceward.admin.messages import Stats
from onceward.domain.reference import new_name
from onceward.errors import BlobsUnavailable, ConfigurationError
from onceward.flow import Query
from onceward.inbox import Inbox
from onceward.registry import OUTBOX, Subscription
from onceward.runtime.runner import perform
from onceward.sources.protocol import BrokerUnavailable, Shared
from onceward.steps.blob import know_folder
from onceward.steps.context import look

Level = Literal["ok", "warning", "error"]

OLD = timedelta(minutes=5)
"""Work that may run and was not taken for this long is worth a warning."""

NEWEST = 10_000
"""So many of the newest messages are looked at for their keys."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how it is, and what to do if anything."""

    level: Level
    what: str
    advice: str = ""


def examine(inbox: Inbox, *, program: bool | None = None) -> list[Finding]:
    """Everything the doctor has to say. `program` says whether the handlers are here to be compared with."""
    has_handlers = len(inbox.context.registry) > 0
    try:
        newer = inbox.store.check_schema()
    except ConfigurationError as error:
        what, _, advice = str(error).partition("; ")
        return [Finding("error", what, advice)]
    stats = inbox.admin.stats()
    return [
        Finding("ok", f"the tables {inbox.store.prefix}* are there and {_version(newer)}"),
        *_store(inbox),
        *_handlers(inbox, program=has_handlers if program is None else program),
        *_guarantees(inbox),
        *_keys(inbox),
        *_rows(inbox),
        *_workers(inbox, stats),
        *_backlog(inbox, stats),
        *_people(inbox, stats),
        *_retention(inbox),
        *_polls(inbox),
        *_sources(inbox),
        *_blobs(inbox),
    ]


def _version(newer: list[str]) -> str:
    if not newer:
        return "of the version this onceward needs"
    return f"newer than this onceward, which works with them: {', '.join(newer)}"


def _store(inbox: Inbox) -> Iterator[Finding]:
    """What the database itself has to say, and whether it has room for our connections."""
    destinations = sum(1 for handler in inbox.context.registry if handler.external)
    for level, what, advice in inbox.store.findings(destinations):
        yield Finding(cast("Level", level), what, advice)


def _ask(inbox: Inbox, statement: str, **params: Any) -> list[tuple[Any, ...]]:
    (rows,) = perform(inbox.store, lambda: look(inbox.context, Query(statement, params)))
    return rows


def _handlers(inbox: Inbox, *, program: bool) -> Iterator[Finding]:
    """Whether what waits is what this program handles."""
    if not program:
        return
    registry = inbox.context.registry
    if not len(registry):
        yield Finding(
            "error", "no handlers are registered", "import the modules with @inbox.on(...) where the inbox is made"
        )
        return
    types = sorted({handler.type for handler in registry if not handler.external})
    yield Finding("ok", f"{_some(len(types), 'type')} of message handled: {', '.join(types) or 'none, only a relay'}")
    for message_type, consumer, destination, number, _ in _ask(inbox, "unserved"):
        if registry.of_type(consumer, destination or message_type) is not None:
            continue
        if consumer == OUTBOX:
            yield Finding(
                "warning",
                f"{_some(number, 'outgoing message')} to {destination} due: no sink of that name here",
                f"run the program that has it, or register it: inbox.add_sink({destination!r}, ...)",
            )
        else:
            yield Finding(
                "warning",
                f"{_some(number, 'due message')} of type {message_type} for consumer {consumer}: no handler here",
                f"run the program that has the handler, or retire it: onceward unsubscribe {consumer} {message_type}",
            )


def _guarantees(inbox: Inbox) -> Iterator[Finding]:
    """What is truly guaranteed for each handler that is here."""
    for one in guarantees.in_force(inbox.context, inbox.store):
        what = f"{one.handler} ({one.type} for {one.consumer}): {one.level}"
        if one.is_broken:
            yield Finding("error", f"{what}, and {one.declared} is declared", "; ".join(one.reasons))
        elif one.is_observed:
            advice = "write its effects through tx, call others through message.once, or send"
            yield Finding("warning", f"{what}: {'; '.join(one.reasons)}", advice)
        elif one.level == "weaker":
            yield Finding("warning", f"{what}: {guarantees.MEANINGS[one.level]}", "; ".join(one.reasons))
        else:
            yield Finding("ok", f"{what}: {guarantees.MEANINGS[one.level]}")


def _keys(inbox: Inbox) -> Iterator[Finding]:
    """Whether keys are found, and whether types share them that perhaps should not."""
    for kind, consumer, path, number in _ask(inbox, "keyless", newest=NEWEST):
        where = f"nothing is at {path!r}" if path else "its function found none"
        yield Finding(
            "warning",
            f"{number} of the newest messages of type {kind} for consumer {consumer} came without a key ({where}), and "
            "are not kept in order",
            "correct key= of the handler, or the sender",
        )
    spaces: dict[tuple[str, str | None], dict[str, str]] = {}
    for one in (Subscription(*row) for row in _ask(inbox, "subscriptions")):
        if not one.retired and (one.key_path is not None or one.key_function):
            spaces.setdefault((one.consumer, one.aggregate), {})[one.type] = one.key_path or "a function"
    for (consumer, _), paths in sorted(spaces.items(), key=str):
        if len(set(paths.values())) > 1:
            types = ", ".join(f"{kind} ({path})" for kind, path in sorted(paths.items()))
            yield Finding(
                "warning",
                f"types of consumer {consumer} share their keys under different paths: {types}. A dead message of one "
                "holds equal keys of the others",
                'if they are not about the same things, give them namespaces: @inbox.on(..., aggregate="order")',
            )


def _rows(inbox: Inbox) -> Iterator[Finding]:
    """Whether every unfinished message has somebody who will move it."""
    stuck = _ask(inbox, "illegal")[0][0]
    if stuck:
        yield Finding(
            "error",
            f"{_some(stuck, 'row')} in a state that nobody would ever move",
            "something other than onceward has written to its tables; find out what, and report it if it was not that",
        )
    else:
        yield Finding("ok", "every unfinished message is within somebody's reach")


def _workers(inbox: Inbox, stats: Stats) -> Iterator[Finding]:
    """Who is running, and who only seems to."""
    for worker in inbox.admin.workers():
        if worker.lease_seconds < 0:
            yield Finding(
                "warning",
                f"worker {worker.id} (process {worker.pid} on {worker.host}) has been silent since its lease ended, "
                f"{-worker.lease_seconds:.0f} s ago, and holds {_some(worker.holds, 'message')}",
                "any running worker takes them over by itself; start one if none is running",
            )
    if stats.workers:
        yield Finding("ok", f"{_some(stats.workers, 'worker')} running")
    elif stats.due or stats.retrying or stats.waiting:
        unfinished = stats.due + stats.retrying + stats.waiting
        yield Finding(
            "warning", f"{_some(unfinished, 'message')} waiting, and no worker is running", "start one: onceward run"
        )


def _backlog(inbox: Inbox, stats: Stats) -> Iterator[Finding]:
    """Whether work is taken up in time."""
    age = timedelta(seconds=int(stats.oldest_due_seconds))
    if stats.due and age >= OLD:
        yield Finding(
            "warning",
            f"{_some(stats.due, 'message')} due, and the oldest has waited for {age} (h:mm:ss)",
            "look at the workers with `onceward status`; add processes if they are busy",
        )
    elif stats.due:
        yield Finding("ok", f"{_some(stats.due, 'message')} due, the oldest for {age} (h:mm:ss)")
    else:
        yield Finding("ok", "no message is due")
    ((refused, first),) = _ask(inbox, "refused")
    if refused:
        yield Finding(
            "warning",
            f"{_some(refused, 'message')} cannot be given to consumers, for the database refuses the rows; the first "
            f"is #{first}. Later messages of the same key wait behind",
            "the log of the worker has the database's error: mend what refuses them, or discard them",
        )
    if stats.unhandled - refused:
        types = sorted({name for name, _ in _ask(inbox, "unhandled_types")})
        yield Finding(
            "warning",
            f"{_some(stats.unhandled - refused, 'message')} of a type nobody handles: {', '.join(types)}",
            "they wait; run a program that handles the type (and has its key function), or discard them",
        )


def _people(inbox: Inbox, stats: Stats) -> Iterator[Finding]:
    """What waits for a person."""
    if stats.dead:
        yield Finding(
            "warning",
            f"{_some(stats.dead, 'dead message')}; later messages of the same key wait behind",
            "see `onceward list --status dead`, then redrive or discard them",
        )
    if stats.outbox_dead:
        yield Finding(
            "warning",
            f"{_some(stats.outbox_dead, 'dead outgoing message')}; later ones of the same key wait behind",
            "see `onceward list --outgoing --status dead`, then redrive or discard them",
        )
    if stats.quarantined:
        yield Finding(
            "warning",
            f"{_some(stats.quarantined, 'id')} came again with other bytes or another type",
            "see `onceward quarantine list`, then resolve each case",
        )
    # One that was begun a moment ago is simply running.
    begun_before = datetime.now(UTC) - inbox.settings.handler_timeout
    unknown = [effect for effect in inbox.admin.effects() if effect.started_at < begun_before]
    if unknown:
        yield Finding(
            "warning",
            f"{_some(len(unknown), 'external call')} with unknown outcome",
            "see `onceward effects list`, find out whether each happened, then settle it",
        )


def _retention(inbox: Inbox) -> Iterator[Finding]:
    """Whether messages are remembered for long enough, and whether what waits on the disk gets in."""
    kept = inbox.context.settings.dedupe_retention
    for source, seconds in _ask(inbox, "latest_source"):
        window = timedelta(seconds=seconds)
        if window > kept:
            yield Finding(
                "error",
                f"source {source} redelivers for up to {window}, and messages are forgotten after {kept}",
                f"set Settings(dedupe_retention=...) to {window} or more in every program on these tables",
            )
        else:
            yield Finding("ok", f"messages are remembered for {kept}; {source} redelivers latest, for up to {window}")
    if inbox.retention.spooled:
        yield Finding(
            "warning",
            "messages wait in the spool of this host",
            "it is drained by any process that has it open; if none runs, start one",
        )


def _polls(inbox: Inbox) -> Iterator[Finding]:
    """Whether the polled APIs answer, and whether anybody asks them."""
    for poll in inbox.admin.polls():
        if poll.failures:
            yield Finding(
                "warning",
                f"the poll of {poll.source} failed {_some(poll.failures, 'time')} in a row: {poll.error}",
                "it is tried again by itself, later each time, from where its stored responses end",
            )
        elif -poll.due_seconds >= OLD.total_seconds():
            late = timedelta(seconds=int(-poll.due_seconds))
            yield Finding(
                "warning",
                f"the poll of {poll.source} has been due for {late} (h:mm:ss), and nobody takes its turn",
                "run the program that has it: onceward run",
            )
        else:
            yield Finding("ok", f"the poll of {poll.source} goes well, {_some(poll.responses, 'response')} so far")


def _sources(inbox: Inbox) -> Iterator[Finding]:
    """Whether the brokers answer that can be asked without disturbing those who read, and who has nothing to read."""
    for intake in inbox.ingress.intakes:
        source = intake.source
        if not isinstance(source, Shared):
            continue
        try:
            parts, readers = source.shares()
        except BrokerUnavailable as error:
            yield Finding(
                "error",
                f"{source.name} cannot be asked: {error}",
                "messages wait in the broker meanwhile; look whether it runs, and at the address and the password",
            )
            continue
        what = f"{source.name} has {_some(parts, 'partition')}, shared by {_some(readers, 'reader')}"
        if readers <= parts:
            yield Finding("ok", what)
        else:
            does = "get and handle nothing" if intake.inline else "get nothing, they only handle what others have read"
            yield Finding(
                "warning",
                f"{what}: {readers - parts} of them {does}",
                f"give the topic {readers} partitions or more, or let no more than {parts} processes read it",
            )


def _blobs(inbox: Inbox) -> Iterator[Finding]:
    """Whether large bodies can be put away, read and removed."""
    large = inbox.context.large
    if large.store is None:
        return
    above = f"bodies of more than {large.above} bytes"
    perform(inbox.store, lambda: know_folder(inbox.context))
    # A name as any other: should the doctor die here, the collector removes it.
    name, body = new_name(large.folder), b"the doctor was here"
    try:
        large.store.put(name, body)
        kept = large.store.get(name)
        large.store.delete(name)
    except BlobsUnavailable as error:
        yield Finding(
            "error",
            f"{above} have no place to go: {error}",
            "messages with one are not taken in, and those that wait for theirs are not handled, until the blob store "
            "can be reached and this program may write, read and remove there",
        )
        return
    if kept == body:
        yield Finding("ok", f"{above} can be put into the blob store, read and removed")
    else:
        yield Finding(
            "error",
            f"the blob store did not give back what was put there a moment ago ({name})",
            "use one that answers a read with what was last written",
        )


def _some(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
