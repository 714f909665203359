"""`onceward status`: the number of messages in each status, once or refreshed in place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from onceward.admin.guarantees import APART
from onceward.admin.messages import Stats, WorkerRow
from onceward.cli.output import STYLES, console, print_json, styled
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import ago, examples, say, span
from onceward.inbox import Inbox
from onceward.steps.context import Context
from onceward.stores.migrate import masked

MEANINGS = {
    "due": "may run now",
    "running": "being handled",
    "retrying": "failed, will be tried again",
    "scheduled": "not due yet",
    "waiting": "behind an earlier message of their key",
    "unhandled": "of a type without a handler",
    "dead": "not tried again",
    "quarantined": "mismatches: known id, other bytes or type",
    "done": "effects committed",
    "discarded": "taken out by an operator",
    "skipped": "older than what their key has already seen",
    "duplicates": "copies suppressed",
    "failures": "failed attempts and crashes, ever",
    "outbox_unsent": "outgoing, not published yet",
    "outbox_dead": "outgoing, not tried again",
    "outbox_sent": "outgoing, published",
    "polls_failing": "polled APIs that failed last time",
}
MORE = {
    "scheduled": ("list", "--status", "scheduled"),
    "dead": ("list", "--status", "dead"),
    "quarantined": ("quarantine list",),
    "outbox_dead": ("list", "--outgoing", "--status", "dead"),
    "polls_failing": ("doctor",),
}
"""What shows which ones they are."""


@click.command(
    short_help="Show the number of messages in each status, and the workers.",
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
    """Show how many messages are due, running, retrying, dead and done, and which workers run."""
    with target.open() as inbox:
        if not watch:
            _print_once(inbox, as_json=as_json)
            return
        with suppress(KeyboardInterrupt):
            _watch(inbox, every, as_json=as_json)


def _print_once(inbox: Inbox, *, as_json: bool) -> None:
    if as_json:
        outside = [one._asdict() for one in inbox.admin.effects_outside()]
        more = {"effects_outside": outside, "paused": inbox.admin.pauses()}
        print_json({**asdict(inbox.admin.stats()), **more})
    else:
        console().print(picture(inbox), crop=False)


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
    more = (*_hints(stats, inbox.context), *_paused(inbox), *_outside(inbox), _workers(workers, inbox))
    return Group(head, Text(""), _numbers(stats), Text(""), *more)


def _paused(inbox: Inbox) -> Iterator[RenderableType]:
    """What operators have stopped."""
    for one in inbox.admin.pauses():
        yield styled(one.told, "yellow")


def _outside(inbox: Inbox) -> Iterator[RenderableType]:
    """Handlers that are not exactly once because of what they were seen to do (D48)."""
    for one in inbox.admin.effects_outside():
        what = f"{APART}: {one.type} for {one.consumer}, so at-least-once: {inbox.context.hint('doctor')}"
        yield _whole(what, "yellow")


def _hints(stats: Stats, context: Context) -> Iterator[RenderableType]:
    """The command that shows which ones they are; in one piece, so that it can be copied."""
    for name, words in MORE.items():
        if getattr(stats, name):
            yield _whole(f"{name.replace('_', ' ')}: {context.hint(*words)}")
    if any(getattr(stats, name) for name in MORE):
        yield Text("")


def _whole(text: str, style: str = "") -> Text:
    line = styled(text, style)
    line.no_wrap, line.overflow = True, "ignore"
    return line


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


def _workers(workers: list[WorkerRow], inbox: Inbox) -> RenderableType:
    if not workers:
        return _whole(f"no worker is running; start one with: {inbox.context.hint('run')}", "yellow")
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
