"""The doctor: looks at everything that can quietly be wrong with an inbox, and returns what to do about it.

It never raises for what it finds; only an unreachable database is an error of its own. It changes nothing, and leaves
nothing behind: the one thing it writes is a blob, which it removes again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, cast

from onceward.admin import guarantees
from onceward.admin.backlog import backlog
from onceward.admin.messages import Stats
from onceward.brokers.protocol import BrokerUnavailable, Positioned, Shared, Source
from onceward.domain.reference import new_name
from onceward.domain.text import count, long, span
from onceward.errors import BlobsUnavailable, ConfigurationError
from onceward.inbox import Inbox
from onceward.registry import OUTBOX, Handler
from onceward.runtime.runner import perform
from onceward.steps.blob import know_folder
from onceward.stores.protocol import EVERYTHING, LACKS

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
    """Return every finding. `program`: whether the program's handlers are here to be compared with the messages."""
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
        *_paused(inbox),
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
    """What is wrong with the database itself, and whether it has room for our connections."""
    destinations = sum(1 for handler in inbox.context.registry if handler.external)
    for level, what, advice in inbox.store.findings(destinations):
        yield Finding(cast("Level", level), what, advice)
    for missing in sorted(EVERYTHING - inbox.store.capabilities):
        advice = "use a store on a disk, for example sqlite:///path" if missing == "durability" else ""
        yield Finding("warning" if advice else "ok", f"the store {LACKS[missing]}", advice)


def _handlers(inbox: Inbox, *, program: bool) -> Iterator[Finding]:
    """Whether what waits is what this program handles."""
    if not program:
        return
    registry = inbox.context.registry
    if not len(registry):
        yield Finding(
            "error", "no handlers are registered", "import the modules that have @inbox.on(...) where the inbox is made"
        )
        return
    types = sorted({handler.type for handler in registry if not handler.external})
    yield Finding("ok", f"{count(len(types), 'type')} of message handled: {', '.join(types) or 'none, only a relay'}")
    for message_type, consumer, destination, number, _ in perform(inbox.store, inbox.context.moves.reports.unserved):
        handler = registry.of_type(consumer, destination or message_type)
        if handler is not None:
            yield from _unserved(inbox, handler, number)
            continue
        if consumer == OUTBOX:
            yield Finding(
                "warning",
                f"{count(number, 'outgoing message')} to {destination} due: no sink of that name here",
                f"run the program that has it, or register it: inbox.add_sink({destination!r}, ...)",
            )
        else:
            yield Finding(
                "warning",
                f"{count(number, 'due message')} of type {message_type} for consumer {consumer}: no handler here",
                "run the program that has the handler, or retire the consumer: ",
            )


def _unserved(inbox: Inbox, handler: Handler, number: int) -> Iterator[Finding]:
    """Due messages whose handler is here, and which no process runs, though some are running."""
    of_type = f"\n{handler.consumer}\t{handler.type}\t"
    lines = [line for line in inbox.context.registry.lines() if line.startswith(of_type)]
    alive = any(one.lease_seconds > 0 and not one.inline for one in inbox.admin.workers())
    claims = inbox.context.moves.claims
    if handler.external or not alive or perform(inbox.store, lambda: claims.handled_elsewhere(lines)):
        return
    what = f"{count(number, 'due message')} of type {handler.type} for consumer {handler.consumer}"
    yield Finding(
        "warning",
        f"{what}: the running workers leave this type out",
        f"run it: {inbox.context.hint('run', '--only', handler.type)}; or change --only, --except of the others",
    )


def _guarantees(inbox: Inbox) -> Iterator[Finding]:
    """What is truly guaranteed for each handler that is here."""
    for one in guarantees.in_force(inbox.context, inbox.store):
        what = f"{one.handler} ({one.type} for {one.consumer}): {one.level}"
        if one.is_broken:
            yield Finding("error", f"{what}, and {one.declared} is declared", "; ".join(one.reasons))
        elif one.is_observed and one.declared != one.level:
            advice = "write its effects through tx, call others through message.once, or send"
            yield Finding("warning", f"{what}: {'; '.join(one.reasons)}", advice)
        elif one.level == "weaker":
            yield Finding("warning", f"{what}: {guarantees.MEANINGS[one.level]}", "; ".join(one.reasons))
        else:
            yield Finding("ok", f"{what}: {guarantees.MEANINGS[one.level]}")


def _keys(inbox: Inbox) -> Iterator[Finding]:
    """Whether keys are found, and whether types share them that perhaps should not."""
    for kind, consumer, path, number in perform(inbox.store, lambda: inbox.context.moves.reports.keyless(NEWEST)):
        where = f"nothing is at {path!r}" if path else "its function found none"
        yield Finding(
            "warning",
            f"{number} of the newest messages of type {kind} for consumer {consumer} came without a key ({where}), and "
            "are not kept in order",
            "correct key= of the handler, or the sender",
        )
    spaces: dict[tuple[str, str | None], dict[str, str]] = {}
    for one in perform(inbox.store, inbox.context.moves.catalog.load_catalog).subscriptions:
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
    """Whether some worker will move every unfinished message."""
    stuck = perform(inbox.store, inbox.context.moves.reports.unreachable)
    if stuck:
        yield Finding(
            "error",
            f"{count(stuck, 'row')} in a state that no worker would ever move",
            "something other than onceward has written to its tables; find out what, and report it if it was not that",
        )
    else:
        yield Finding("ok", "no stuck messages")


def _workers(inbox: Inbox, stats: Stats) -> Iterator[Finding]:
    """Who is running, and who only seems to."""
    for worker in inbox.admin.workers():
        if worker.lease_seconds < 0:
            yield Finding(
                "warning",
                f"worker {worker.id} (process {worker.pid} on {worker.host}) has been silent since its lease ended, "
                f"{-worker.lease_seconds:.0f} s ago, and holds {count(worker.holds, 'message')}",
                f"any running worker takes them over by itself; if none is running: {inbox.context.hint('run')}",
            )
    if stats.workers:
        yield Finding("ok", f"{count(stats.workers, 'worker')} running")
    elif stats.due or stats.retrying or stats.waiting:
        unfinished = stats.due + stats.retrying + stats.waiting
        yield Finding(
            "warning",
            f"{count(unfinished, 'message')} waiting, and no worker is running",
            f"start one: {inbox.context.hint('run')}",
        )


def _paused(inbox: Inbox) -> Iterator[Finding]:
    for one in inbox.admin.pauses():
        yield Finding(
            "warning", one.told, f"go on with: {inbox.context.hint('resume', f'--{one.subject}', '--reason TEXT')}"
        )


def _backlog(inbox: Inbox, stats: Stats) -> Iterator[Finding]:
    """Whether work is taken up in time."""
    waiting = perform(inbox.store, lambda: backlog(inbox.context, stats))  # what is paused is a finding of its own
    age = timedelta(seconds=int(waiting.oldest_seconds))
    if waiting.due and age >= OLD:
        yield Finding(
            "warning",
            f"{count(waiting.due, 'message')} due, and the oldest has waited for {span(age.total_seconds())}",
            f"look at the workers: {inbox.context.hint('status')}; add processes if they are busy",
        )
    elif waiting.due:
        yield Finding("ok", f"{count(waiting.due, 'message')} due, the oldest for {span(age.total_seconds())}")
    else:
        yield Finding("ok", "no message is due")
    refused, first = perform(inbox.store, inbox.context.moves.reports.refused)
    if refused:
        yield Finding(
            "warning",
            f"{count(refused, 'message')} cannot be given to consumers: the database refuses the rows; the first "
            f"is #{first}. Later messages of the same key wait behind",
            "the worker's log has the database's error: correct what refuses them, or discard them: ",
        )
    if stats.unhandled - refused:
        types = sorted({one.type for one in perform(inbox.store, inbox.context.moves.catalog.load_catalog).unhandled})
        yield Finding(
            "warning",
            f"{count(stats.unhandled - refused, 'message')} of a type without a handler: {', '.join(types)}",
            "they wait; run a program that handles the type (and has its key function), or discard them",
        )


def _people(inbox: Inbox, stats: Stats) -> Iterator[Finding]:
    """What an operator has to decide."""
    if stats.dead:
        yield Finding(
            "warning",
            f"{count(stats.dead, 'dead message')}; later messages of the same key wait behind",
            f"see {inbox.context.hint('list', '--status dead')}, then redrive or discard them",
        )
    if stats.outbox_dead:
        yield Finding(
            "warning",
            f"{count(stats.outbox_dead, 'dead outgoing message')}; later ones of the same key wait behind",
            f"see {inbox.context.hint('list', '--outgoing --status dead')}, then redrive or discard them",
        )
    if stats.quarantined:
        yield Finding(
            "warning",
            f"{count(stats.quarantined, 'id')} came again with other bytes or another type",
            f"see {inbox.context.hint('quarantine list')}, then resolve each mismatch",
        )
    # One that was begun a moment ago is simply running.
    begun_before = datetime.now(UTC) - inbox.settings.handler_timeout
    unknown = [effect for effect in inbox.admin.effects() if effect.started_at < begun_before]
    if unknown:
        yield Finding(
            "warning",
            f"{count(len(unknown), 'external call')} with unknown outcome",
            f"see {inbox.context.hint('effects list')}, find out whether each happened, then settle it",
        )


def _retention(inbox: Inbox) -> Iterator[Finding]:
    """Whether messages are remembered for long enough, and whether what waits on the disk gets in."""
    kept = inbox.context.settings.dedupe_retention
    for source, seconds in perform(inbox.store, inbox.context.moves.retention.latest_sources).items():
        window = timedelta(seconds=seconds)
        if window > kept:
            yield Finding(
                "error",
                f"source {source} may redeliver for up to {long(window)}, "
                f"and messages are forgotten after {long(kept)}",
                f"set Settings(dedupe_retention=...) to {long(window)} or more in every program on these tables",
            )
        else:
            yield Finding(
                "ok", f"messages are remembered for {long(kept)}; {source} may redeliver for up to {long(window)}"
            )
    if inbox.retention.spooled:
        yield Finding(
            "warning",
            "messages wait in the spool of this host",
            f"any process that has it open drains it; if none runs, start one: {inbox.context.hint('run')}",
        )


def _polls(inbox: Inbox) -> Iterator[Finding]:
    """Whether polls succeed, and whether some process runs them."""
    for poll in inbox.admin.polls():
        if poll.failures:
            yield Finding(
                "warning",
                f"the poll of {poll.source} failed {count(poll.failures, 'time')} in a row: {poll.error}",
                "it is tried again by itself, later each time, from where its stored responses end",
            )
        elif -poll.due_seconds >= OLD.total_seconds():
            late = span(-poll.due_seconds)
            yield Finding(
                "warning",
                f"the poll of {poll.source} has been due for {late}, and no process takes its turn",
                f"run the program that has it: {inbox.context.hint('run')}",
            )
        else:
            yield Finding("ok", f"the poll of {poll.source} works, {count(poll.responses, 'response')} so far")


def _reach(source: Source) -> Iterator[Finding]:
    """How far back a broker can fill a database that was restored."""
    if not isinstance(source, Positioned):
        return
    try:
        reach = source.reaches_back()
    except BrokerUnavailable:
        return  # a finding of its own
    kept = "everything" if reach is None else f"the last {span(reach.total_seconds())}"
    yield Finding(
        "ok",
        f"after a restore {source.name} is read again from where the database is; it keeps {kept}",
    )


def _sources(inbox: Inbox) -> Iterator[Finding]:
    """Whether the brokers can be reached, and which readers have nothing to read."""
    for consumer in inbox.ingress.consumers:
        source = consumer.source
        yield from _reach(source)
        if not isinstance(source, Shared):
            continue
        try:
            parts, readers = source.shares()
        except BrokerUnavailable as error:
            yield Finding(
                "error",
                f"{source.name} cannot be reached: {error}",
                "messages wait in the broker meanwhile; check that it runs, its address and the password",
            )
            continue
        what = f"{source.name} has {count(parts, 'partition')}, shared by {count(readers, 'reader')}"
        if readers <= parts:
            yield Finding("ok", what)
        else:
            is_direct = consumer.mode == "direct"
            does = "get and handle nothing" if is_direct else "get nothing, they only handle what others have read"
            yield Finding(
                "warning",
                f"{what}: {readers - parts} of them {does}",
                f"give the topic {readers} partitions or more, or let no more than {parts} processes read it",
            )


def _blobs(inbox: Inbox) -> Iterator[Finding]:
    """Whether large bodies can be offloaded, read and removed."""
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
            f"{above} cannot be stored: {error}",
            "messages with such a body are refused, and those that need theirs are not handled, until the blob store "
            "can be reached and this program may write, read and remove there",
        )
        return
    if kept == body:
        yield Finding("ok", f"{above} can be put into the blob store, read and removed")
    else:
        yield Finding(
            "error",
            f"the blob store did not return what was put there a moment ago ({name})",
            "use one that returns what was last written",
        )
