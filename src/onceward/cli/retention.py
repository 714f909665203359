"""`onceward prune`: remove what is older than the retention, now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import click

from onceward.cli.failure import WRONG_USAGE, Failure
from onceward.cli.output import console, print_json
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import count, examples, say
from onceward.steps.prune import Pruned

_DAYS = click.FloatRange(min=0, max=36_500)


@click.command(
    short_help="Remove what is older than the retention.",
    epilog=examples(
        "onceward prune shop:inbox",
        "onceward prune --store postgresql:///shop --body-days 7 --dedupe-days 30",
    ),
)
@on_target()
@click.option("--body-days", type=_DAYS, metavar="DAYS", help="Keep bodies this long. [default: body_retention]")
@click.option("--dedupe-days", type=_DAYS, metavar="DAYS", help="Remember ids this long. [default: dedupe_retention]")
@as_json
def prune(target: Target, *, body_days: float | None, dedupe_days: float | None, as_json: bool) -> None:
    """Remove bodies and the memory of finished messages once they are older than the retention.

    Workers do this by themselves; this command does it now. Unfinished, dead and quarantined messages stay, however
    old. --store needs both numbers of days: only the program knows how long copies may come.
    """
    if target.program is None and (body_days is None or dedupe_days is None):
        raise Failure("--store needs --body-days and --dedupe-days: only the program knows its retention", WRONG_USAGE)
    with target.open() as inbox:
        settings = inbox.context.settings
        inbox.context.settings = replace(
            settings,
            body_retention=settings.body_retention if body_days is None else timedelta(days=body_days),
            dedupe_retention=settings.dedupe_retention if dedupe_days is None else timedelta(days=dedupe_days),
        )
        with _progress() as told:
            pruned = inbox.retention.prune(progress=told)
    if as_json:
        print_json(pruned)
        return
    say(f"removed: {_words(pruned)}")


@contextmanager
def _progress() -> Iterator[Callable[[Pruned], None]]:
    """What was removed so far, on a terminal."""
    out = console(stderr=True)
    with out.status("pruning") as status:
        yield lambda pruned: status.update(f"pruning: {_words(pruned)}")


def _words(pruned: Pruned) -> str:
    bodies = count(pruned.bodies, "body")
    blobs = f", {count(pruned.blobs, 'blob')}" if pruned.blobs else ""
    partitions = f"{count(pruned.partitions, 'partition')} of bodies"
    return f"{bodies}, {partitions}, {count(pruned.messages, 'message')} forgotten{blobs}"
