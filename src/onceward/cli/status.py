"""`onceward status`: the inbox in numbers, once or again and again."""

from __future__ import annotations

import time
from contextlib import suppress

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from onceward.admin.messages import Stats, WorkerRow
from onceward.cli.output import STYLES, console, print_json, styled
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import ago, examples, say, span
from onceward.inbox import Inbox
from onceward.stores.migrate import masked

MEANINGS = {
    "due": "may run now",
    "running": "being handled",
    "retrying": "failed, will be tried again",
    "waiting": "behind an earlier message of their key",
    "unhandled": "of a type that nobody handles yet",
    "dead": "need a person: onceward list --status dead",
    "quarantined": "known id, other bytes: onceward quarantine list",
    "done": "effects committed",
    "discarded": "taken out by a person",
    "skipped": "older than what their key has already seen",
    "duplicates": "copies suppressed",
    "failures": "failed attempts and crashes, ever",
    "outbox_unsent": "outgoing, not published yet",
    "outbox_dead": "outgoing, need a person: onceward list --outgoing --status dead",
    "outbox_sent": "outgoing, published",
    "polls_failing": "polled APIs that failed last time: onceward doctor",
}


@click.command(
    short_help="Show the inbox in numbers.",
    epilog=examples(
        "onceward status shop:inbox",
        "onceward status --store sqlite:///shop.db --watch",
        "onceward status shop:inbox --json | jq .dead",
    ),
)
@on_target()
@click.option("--watch", is_flag=True, help="Refresh in place until Ctrl-C.")
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=1.0, metavar="SECONDS", help="With --watch. [default: 1]"
)
@as_json
def status(target: Target, *, watch: bool, every: float, as_json: bool) -> None:
    """Show the inbox in numbers: what is due, running, retrying, dead, done, and who is working."""
    with target.open() as inbox:
        if not watch:
            _print_once(inbox, as_json=as_json)
            return
        with suppress(KeyboardInterrupt):
            _watch(inbox, every, as_json=as_json)


def _print_once(inbox: Inbox, *, as_json: bool) -> None:
    if as_json:
        print_json(inbox.admin.stats())
    else:
        console().print(picture(inbox))


def _watch(inbox: Inbox, every: float, *, as_json: bool) -> None:
    out = console()
    if as_json or not out.is_terminal:
        while True:
            _print_once(inbox, as_json=as_json)
            if not as_json:
                say()
            time.sleep(every)
    with Live(picture(inbox), console=out, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(picture(inbox), refresh=True)


def picture(inbox: Inbox) -> RenderableType:
    """Everything `status` shows."""
    stats, workers = inbox.admin.stats(), inbox.admin.workers()
    head = Text.assemble((inbox.context.service, "bold"), f" in {masked(inbox.url)}, tables {inbox.store.prefix}*")
    return Group(head, Text(""), _numbers(stats), Text(""), _workers(workers))


def _numbers(stats: Stats) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, meaning in MEANINGS.items():
        number = getattr(stats, name)
        note = _note(name, stats) or meaning
        style = STYLES.get(name, "") if number else "dim"
        table.add_row(styled(name.replace("_", " "), style), styled(f"{number:,}", style), styled(note))
    return table


def _note(name: str, stats: Stats) -> str:
    if name == "due" and stats.due:
        return f"may run now; the oldest is {span(stats.oldest_due_seconds)} old"
    if name == "done" and stats.done_last_minute:
        return f"effects committed; {stats.done_last_minute:,} in the last minute"
    return ""


def _workers(workers: list[WorkerRow]) -> RenderableType:
    if not workers:
        return Text("no worker is running; start one with: onceward run MODULE:ATTR", style="yellow")
    table = Table.grid(padding=(0, 2))
    for worker in workers:
        overdue = -worker.lease_seconds
        table.add_row(
            styled(f"worker {worker.id}"),
            styled(f"process {worker.pid} on {worker.host}"),
            styled(f"started {ago(worker.started_at)}", "dim"),
            styled(f"holds {worker.holds}"),
            styled(f"lease over since {span(overdue)}" if overdue > 0 else "", "yellow"),
        )
    return table
