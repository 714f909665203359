"""`onceward bench`: the measurement (`onceward.admin.measurement`) of a store, on a terminal."""

from __future__ import annotations

import os

import click

from onceward.admin.measurement import measure
from onceward.cli.failure import WRONG_USAGE, Failure
from onceward.cli.output import print_json, print_table
from onceward.cli.target import as_json
from onceward.cli.text import examples, say


@click.command(
    short_help="Measure how many messages a second an inbox handles on your database.",
    epilog=examples(
        "onceward bench --store postgresql://shop@localhost/shop",
        "onceward bench --store sqlite:///shop.db --messages 20000 --json",
    ),
)
@click.option("--store", metavar="URL", help="The database to measure. [default: ONCEWARD_STORE]")
@click.option(
    "--messages",
    type=click.IntRange(min=100),
    default=5000,
    show_default=True,
    help="Messages in each part of the measurement.",
)
@as_json
def bench(*, store: str | None, messages: int, as_json: bool) -> None:
    """Measure receiving, draining, handling and inline work on a store, beside plain INSERTs into it.

    It works in tables under a prefix of its own, which it makes and removes: the role must be allowed to create
    tables. One process with default settings; every tenth message comes twice. Effects are counted: a measurement
    that is not exact fails.
    """
    url = store or os.environ.get("ONCEWARD_STORE")
    if not url:
        raise Failure("name the database with --store URL, or set ONCEWARD_STORE", WRONG_USAGE)
    figures = measure(url, messages)
    if as_json:
        print_json({"messages": messages, "figures": figures})
        return
    rows = [
        (
            figure.name,
            f"{figure.per_second:,.0f}",
            "" if figure.ratio is None else f"{figure.ratio:.2f} of {figure.beside}",
        )
        for figure in figures
    ]
    print_table(("what", "messages/s", "beside plain inserts"), rows, right=("messages/s",))
    say("exact: every message took effect once")
