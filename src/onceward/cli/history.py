"""`onceward history`: what happened, by minute, hour or day."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from onceward.admin.history import LENGTHS, PERS, RANGES, Per, Period
from onceward.cli.output import print_json, print_table, wide_option
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import examples, say, span
from onceward.domain.histogram import Histogram

_DURATIONS = ("lateness", "wait", "run")
_NUMBERS = ("received", "done", "failed", "dead", "copies", "backlog", "oldest", "wait p50", "p95", "run p50", "p95 ")


@click.command(
    short_help="Show what happened, by minute, hour or day.",
    epilog=examples(
        "onceward history shop:inbox",
        "onceward history shop:inbox --range week --per type",
        "onceward history shop:inbox --range day --type order.paid --json",
    ),
)
@on_target()
@click.option("--range", "reach", type=click.Choice(list(RANGES)), default="hour", help="How far back. [default: hour]")
@click.option("--by", type=click.Choice(list(LENGTHS)), help="The period of a line. [default: by the range]")
@click.option(
    "--per", type=click.Choice(list(PERS)), default="total", help="A line for each of these. [default: total]"
)
@click.option("--type", metavar="TYPE", help="Only messages of this type.")
@click.option("--source", metavar="SOURCE", help="Only messages from this source.")
@click.option("--consumer", metavar="CONSUMER", help="Only messages for this consumer.")
@wide_option
@as_json
def history(  # noqa: PLR0913 - the options of the command
    target: Target, *, reach: str, by: str | None, per: Per, wide: bool, as_json: bool, **filters: str | None
) -> None:
    """Show what happened: received, done and failed messages, copies, and how long messages waited and ran.

    Minutes are kept for 48 hours, hours for 14 days, days for 90. Durations are upper bounds of what half of the
    messages (p50) and 95 of 100 (p95) took.
    """
    since, usual = RANGES[reach]
    asked: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    with target.open() as inbox:
        periods = inbox.admin.history(since=since, by=by or usual, per=per, **asked)
    if as_json:
        print_json([shown(period) for period in periods])
    elif not periods:
        say(f"Nothing happened in the last {reach}. Workers and receivers write their counts every 10 seconds.")
    else:
        names = {"total": (), "type": ("consumer", "type"), "source": ("source",)}[per]
        rows = [(*_time(period), *(getattr(period, name) for name in names), *_numbers(period)) for period in periods]
        more = ("consumer", "dead", "copies", "oldest", "wait p50", "run p50")
        print_table(("time", *names, *_NUMBERS), rows, right=_NUMBERS, more=more, wide=wide)


def shown(period: Period) -> dict[str, Any]:
    """A period as JSON: durations as count, p50 and p95 in seconds."""
    fields = {**asdict(period), "length": period.length.total_seconds()}
    return {**fields, **{name: _percentiles(getattr(period, name)) for name in _DURATIONS}}


def _percentiles(durations: Histogram) -> dict[str, float | int | None]:
    return {"count": durations.count, **{f"p{percent}": durations.percentile(percent) for percent in (50, 95)}}


def _time(period: Period) -> Iterable[str]:
    local: datetime = period.start.astimezone()
    yield f"{local:%Y-%m-%d}" if period.length >= LENGTHS["day"] else f"{local:%m-%d %H:%M}"


def _numbers(period: Period) -> Iterable[str]:
    for number in (period.received, period.done, period.failed, period.dead, period.duplicates):
        yield f"{number:,}"
    yield "" if period.backlog is None else f"{period.backlog:,}"
    yield "" if period.oldest_seconds is None else span(period.oldest_seconds)
    for durations in (period.wait, period.run):
        for percent in (50, 95):
            seconds = durations.percentile(percent)
            yield "" if seconds is None else brief(seconds)


def brief(seconds: float) -> str:
    """A duration that may be short."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else span(seconds)
