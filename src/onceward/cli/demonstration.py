"""`onceward demo`: the demo (`onceward.demo.show`) on a terminal, live, or as lines where nobody watches."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from onceward.cli.failure import NOT_SO
from onceward.cli.output import console, print_json
from onceward.cli.target import as_json
from onceward.cli.text import examples, say
from onceward.demo.shop import SENDERS
from onceward.demo.show import FILE, Plan, Scene, Verdict, play

LINE_SECONDS = 1.0

Show = Callable[[Scene], None]


@click.command(
    epilog=examples(
        "onceward demo",
        "onceward demo --messages 20000 --kills 30",
        "onceward demo --keep /tmp/shop     (and then: onceward status --store sqlite:////tmp/shop/demo.db)",
    ),
)
@click.option("--messages", type=click.IntRange(min=10), default=3000, show_default=True, help="How many messages.")
@click.option("--processes", type=click.IntRange(min=1), default=3, show_default=True, help="How many workers.")
@click.option("--kills", type=click.IntRange(min=0), default=6, show_default=True, help="How often kill -9 strikes.")
@click.option("--seed", type=int, default=1, show_default=True, help="Other messages, duplicates and victims.")
@click.option("--keep", type=click.Path(path_type=Path), metavar="FOLDER", help="Keep the database in this folder.")
@as_json
def demo(  # noqa: PLR0913 - each is an option
    *, messages: int, processes: int, kills: int, seed: int, keep: Path | None, as_json: bool
) -> None:
    """Watch messages take effect exactly once, through duplicates, kill -9 and poison.

    Senders deliver payments, three in ten of them twice, at about the same time, from two processes. Workers book
    them and are killed on the way. Two messages are poison: one is rejected, one kills whoever handles it. At the end
    the tables are counted. Exit code 1 when a payment was lost or doubled.
    """
    plan = Plan(messages=messages, processes=processes, kills=kills, seed=seed)
    with _folder(keep) as folder, _view(plan, as_json=as_json) as show:
        verdict = play(plan, folder, show)
    if as_json:
        print_json(dataclasses.asdict(verdict) | {"holds": verdict.holds})
    else:
        console().print(_table(verdict))
        if keep:
            say(f"the database is kept: onceward status --store sqlite:///{(keep / FILE).resolve()}")
        say(verdict.line)
    if not verdict.holds:
        raise SystemExit(NOT_SO)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="onceward-demo-") as folder:
        yield Path(folder)


@contextmanager
def _view(plan: Plan, *, as_json: bool) -> Iterator[Show]:
    out = console()
    if as_json:
        yield lambda scene: None  # noqa: ARG005 - nobody watches
    elif not out.is_terminal:
        yield _lines(plan)
    else:
        with Live(console=out, auto_refresh=False, transient=True) as live:
            yield lambda scene: live.update(_picture(plan, scene), refresh=True)


def _lines(plan: Plan) -> Show:
    """A line about every second, for pipes and logs."""
    last = -LINE_SECONDS

    def show(scene: Scene) -> None:
        nonlocal last
        if scene.seconds - last >= LINE_SECONDS:
            last = scene.seconds
            now = scene.verdict
            say(
                f"{scene.seconds:5.1f} s  accepted {now.accepted}/{plan.messages}, duplicates {now.duplicates}, "
                f"effects {now.effects}, dead {now.dead}, kill -9: {scene.kills}/{plan.kills}"
            )

    return show


def _picture(plan: Plan, scene: Scene) -> RenderableType:
    now = scene.verdict
    bar = Table.grid(padding=(0, 2))
    for name, done, style in (
        ("accepted", now.accepted, "cyan"),
        ("effects", now.effects, "green"),
    ):
        bar.add_row(
            Text(name),
            ProgressBar(plan.messages, done, width=50, complete_style=style),
            Text(f"{done:,}/{plan.messages:,}"),
        )
    numbers = Table.grid(padding=(0, 2))
    numbers.add_column()
    numbers.add_column(justify="right")
    numbers.add_column(style="dim")
    for name, number, meaning in (
        ("duplicates", now.duplicates, "copies that were suppressed"),
        ("running", scene.running, "in the hands of a worker"),
        ("kill -9", scene.kills, f"of {plan.kills}: workers killed in the middle of their work"),
        ("crashes", scene.deaths - scene.kills, "workers killed by the poisonous message"),
        ("dead", now.dead, "messages that can never succeed, kept for a person"),
        ("doubled", now.doubled, "payments booked twice"),
    ):
        numbers.add_row(Text(name), Text(f"{max(0, number):,}"), Text(meaning))
    title = f"{plan.processes} workers, {SENDERS} senders, one SQLite file, {scene.seconds:.1f} s"
    return Group(Text(title, style="bold"), Text(""), bar, Text(""), numbers)


def _table(verdict: Verdict) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, number, meaning in (
        ("accepted", verdict.accepted, "messages in the ledger"),
        ("duplicates", verdict.duplicates, "copies suppressed"),
        ("effects", verdict.effects, "payments in the shop's table"),
        ("dead", verdict.dead, "kept for a person, with their history"),
        ("lost", verdict.lost, "acknowledged, and neither booked nor dead"),
        ("doubled", verdict.doubled, "effects applied twice"),
        ("unfinished", verdict.unfinished, "still in the queue"),
        ("wrong balances", verdict.wrong_balances, "accounts that are not the sum of their payments"),
    ):
        bad = number and name in ("lost", "doubled", "unfinished", "wrong balances")
        table.add_row(Text(name), Text(f"{number:,}", style="bold red" if bad else ""), Text(meaning))
    return table
