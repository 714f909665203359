"""`onceward keys`, `sources`, `workers`, `handlers`, `audit`, `storage`, `polls`: the parts of an inbox, one by one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from onceward.cli.output import print_json, print_table, styled, wide_option
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import ago, count, examples, say, span

_LIMIT = click.option(
    "--limit", type=click.IntRange(min=1, max=100_000), default=100, show_default=True, help="How many at most."
)


@click.command(epilog=examples("onceward keys shop:inbox", "onceward keys shop:inbox --json | jq '.[].key'"))
@on_target()
@_LIMIT
@wide_option
@as_json
def keys(target: Target, *, limit: int, wide: bool, as_json: bool) -> None:
    """List the keys that a dead or unhandled message holds, those with most messages behind it first.

    Redrive, edit, discard or unblock the message that holds a key.
    """
    with target.open() as inbox:
        found = inbox.admin.blocked_keys(limit=limit)
    if as_json:
        print_json(found)
    elif not found:
        say("no key is blocked")
    else:
        columns = ("seq", "state", "key", "behind", "type", "consumer", "received")
        rows = [
            (one.seq, one.state, one.key or "", one.behind, one.type, one.consumer, ago(one.received_at, units=1))
            for one in found
        ]
        print_table(columns, rows, right=("seq", "behind"), cut=True, more=("consumer", "received"), wide=wide)


@click.command(epilog=examples("onceward sources shop:inbox", "onceward sources shop:inbox --json"))
@on_target()
@as_json
def sources(target: Target, *, as_json: bool) -> None:
    """List the sources: how late each may redeliver, and what the newest 20,000 messages show."""
    with target.open() as inbox:
        found = inbox.admin.sources()
        paused = {one.name for one in inbox.admin.pauses() if one.kind == "source"}
    if as_json:
        print_json(found)
    elif not found:
        say("no source has sent anything, and none is declared")
    else:
        rows = [
            (
                one.name,
                "" if one.redelivers_for is None else span(one.redelivers_for.total_seconds()),
                f"{one.recent:,}",
                f"{one.duplicates:,}",
                ago(one.last_at, units=1),
                "paused" if one.name in paused else "",
            )
            for one in found
        ]
        columns = ("source", "may redeliver for", "newest", "copies", "last", "")
        print_table(columns, rows, right=("newest", "copies"), cut=True)


@click.command(epilog=examples("onceward workers shop:inbox", "onceward workers shop:inbox --wide"))
@on_target()
@wide_option
@as_json
def workers(target: Target, *, wide: bool, as_json: bool) -> None:
    """List the processes that run handlers, with what each runs now and which of its circuits are open."""
    with target.open() as inbox:
        found, running = inbox.admin.workers(), inbox.admin.running()
    if as_json:
        held = {one.id: [row for row in running if row.worker == one.id] for one in found}
        print_json([{**_fields(one), "running": held[one.id]} for one in found])
    elif not found:
        say(f"no worker is running; start one with: {inbox.context.hint('run')}")
    else:
        columns = ("worker", "process", "host", "pid", "code", "started", "lease", "holds", "runs now")
        rows = []
        for one in found:
            lease = span(one.lease_seconds) if one.lease_seconds > 0 else f"over since {span(-one.lease_seconds)}"
            mine = [f"{row.type} #{row.seq}" for row in running if row.worker == one.id]
            mine += [f"circuit of {opened.type} open for {span(opened.seconds)}" for opened in one.open_circuits]
            style = "" if one.lease_seconds > 0 else "yellow"
            process = f"{one.process} (inline)" if one.inline else one.process
            when = ago(one.started_at, units=1)
            what = ", ".join(mine)
            head = (one.id, process, one.host, one.pid, one.code_version)
            rows.append((*head, when, styled(lease, style), one.holds, what))
        more = ("process", "host", "code", "started")
        print_table(columns, rows, right=("pid", "holds"), cut=True, more=more, wide=wide)


@click.command(epilog=examples("onceward handlers shop:inbox", "onceward handlers --store sqlite:///shop.db"))
@on_target()
@wide_option
@as_json
def handlers(target: Target, *, wide: bool, as_json: bool) -> None:
    """List handlers and destinations: policy, guarantee in force, circuit and pause.

    Of handlers that only other programs have, the database knows the type, the consumer and the key.
    """
    with target.open() as inbox:
        found = inbox.admin.handlers()
    if as_json:
        print_json(found)
    elif not found:
        say("no handler is known here; name the program, for example: onceward handlers shop:inbox")
    else:
        columns = ("type", "consumer", "handler", "key", "tries", "timeout", "group", "guarantee", "state")
        rows = []
        for one in found:
            where = f"circuit open in {count(one.circuit_open_in, 'process')} for {span(one.circuit_open_seconds)}"
            circuit = where if one.circuit_open_in else ""
            state = styled(one.paused or circuit, "yellow")
            limits = ("" if one.timeout_seconds is None else span(one.timeout_seconds), one.group or "")
            whose = (one.type, one.consumer, one.name or "(another program)", one.key or "")
            rows.append((*whose, one.attempts or "", *limits, one.guarantee or "", state))
        more = ("consumer", "key", "timeout", "group")
        print_table(columns, rows, right=("tries", "timeout", "group"), cut=True, more=more, wide=wide)


@click.command(
    epilog=examples("onceward audit shop:inbox", "onceward audit shop:inbox --before 1200      (the page before)")
)
@on_target()
@click.option("--before", type=click.IntRange(min=1, max=2**63 - 1), metavar="LINE", help="Only earlier lines.")
@_LIMIT
@as_json
def audit(target: Target, *, before: int | None, limit: int, as_json: bool) -> None:
    """List what operators did to messages, who and why, newest first."""
    with target.open() as inbox:
        found = inbox.admin.audit(before=before, limit=limit)
    if as_json:
        print_json(found)
    elif not found:
        say("no line matches")
    else:
        rows = [(one.id, _when(one.at), one.actor, one.action, one.seq or "", one.reason) for one in found]
        print_table(("line", "time", "who", "what", "message", "why"), rows, right=("line", "message"), cut=True)
        if len(found) == limit:
            say(f"There may be more; for earlier ones add --before {found[-1].id}")


@click.command(epilog=examples("onceward storage shop:inbox", "onceward storage shop:inbox --json"))
@on_target()
@as_json
def storage(target: Target, *, as_json: bool) -> None:
    """Show how much is kept, and since when: the size of each table, the oldest id and the oldest body."""
    with target.open() as inbox:
        found = inbox.admin.storage()
    if as_json:
        print_json(found)
        return
    rows = [(one.name, _number(one.rows), _number(one.bytes)) for one in found.tables]
    print_table(("table", "rows", "bytes"), rows, right=("rows", "bytes"))
    say(f"ids are remembered since {_when(found.ledger_since)}, bodies since {_when(found.bodies_since)}")
    say(f"next maintenance: {ago(found.maintenance_due_at) or 'none is planned'}")


@click.command(epilog=examples("onceward polls shop:inbox", "onceward polls shop:inbox --json | jq '.[].error'"))
@on_target()
@as_json
def polls(target: Target, *, as_json: bool) -> None:
    """List the polled APIs: how far each is, when it is due, how it went last."""
    with target.open() as inbox:
        found = inbox.admin.polls()
    if as_json:
        print_json(found)
    elif not found:
        say("no API is polled")
    else:
        rows = [
            (
                one.source,
                f"{one.responses:,}",
                "running" if one.running else _due(one.due_seconds),
                ago(one.ended_at, units=1),
                styled(count(one.failures, "failure") if one.failures else "", "yellow"),
                (one.error or "").partition("\n")[0],
            )
            for one in found
        ]
        print_table(("source", "responses", "next", "last", "", "error"), rows, right=("responses",), cut=True)


def _fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def _due(seconds: float) -> str:
    return f"in {span(seconds)}" if seconds > 0 else f"due for {span(-seconds)}"


def _when(at: datetime | None) -> str:
    return "the beginning" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
