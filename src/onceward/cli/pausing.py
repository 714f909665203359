"""`onceward pause`, `resume` and `pauses`: stop something for a while, and let it go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.output import print_json, print_table
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import ago, examples, say


def _what(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name what is meant."""
    for option in (
        as_json,
        click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the audit."),
        click.option("--everything", is_flag=True, help="All handlers, all destinations, all brokers and polled APIs."),
        click.option("--destination", metavar="NAME", help="Nothing is published to this destination."),
        click.option("--source", metavar="NAME", help="This source is not read or polled; its webhooks are stored."),
        click.option("--consumer", metavar="NAME", help="No handler of this consumer runs."),
        click.option("--type", "type", metavar="TYPE", help="No handler of this type runs."),
        on_target(),
    ):
        function = option(function)
    return function


@click.command(
    epilog=examples(
        'onceward pause shop:inbox --type order.paid --reason "the bank is away"',
        'onceward pause shop:inbox --source stripe --reason "a storm of duplicates"',
        'onceward pause shop:inbox --everything --reason "restoring the database"',
    ),
)
@_what
def pause(target: Target, *, reason: str, as_json: bool, **given: Any) -> None:
    """Stop something until it is resumed; workers obey within a second.

    Messages are stored and wait, those given to process() too. A message that runs is finished. What a pause takes
    does not count for the age of messages. Exit code 1 when it is paused already.
    """
    what = _named(given)
    with target.open() as inbox:
        done = inbox.admin.pause(**what, reason=reason)
    _report(what, done, "paused", "paused already", as_json=as_json)


@click.command(
    epilog=examples(
        'onceward resume shop:inbox --type order.paid --reason "the bank is back"',
        'onceward resume shop:inbox --everything --reason "restored"',
    ),
)
@_what
def resume(target: Target, *, reason: str, as_json: bool, **given: Any) -> None:
    """Let something go on that was paused, named as it was paused.

    Exit code 1 when it is not paused. What is paused in another way too, by its type and by its consumer for example,
    stays so: see onceward pauses.
    """
    what = _named(given)
    with target.open() as inbox:
        done = inbox.admin.resume(**what, reason=reason)
    _report(what, done, "resumed", "not paused", as_json=as_json)


@click.command(epilog=examples("onceward pauses shop:inbox", "onceward pauses shop:inbox --ended --json"))
@on_target()
@click.option("--ended", is_flag=True, help="Also what was paused in the last 90 days.")
@as_json
def pauses(target: Target, *, ended: bool, as_json: bool) -> None:
    """List what is paused, since when, by whom and why."""
    with target.open() as inbox:
        found = inbox.admin.pauses(ended=ended)
    if as_json:
        print_json(found)
    elif not found:
        say("nothing is paused")
    else:
        rows = [(one.subject, ago(one.began_at), ago(one.ended_at), one.actor, one.reason) for one in found]
        print_table(("paused", "since", "until", "by", "reason"), rows, cut=True)


def _named(given: dict[str, Any]) -> Any:
    what = {name: value for name, value in given.items() if value}
    if len(what) != 1:
        raise Failure("name one of --type, --consumer, --source, --destination and --everything", WRONG_USAGE)
    return what


def _report(what: dict[str, Any], done: bool, past: str, otherwise: str, *, as_json: bool) -> None:  # noqa: FBT001 - told
    ((kind, name),) = what.items()
    subject = kind if kind == "everything" else f"{kind} {name}"
    if as_json:
        print_json({"changed": done, "kind": kind, "name": "" if kind == "everything" else name})
    else:
        say(f"{subject}: {past if done else otherwise}")
    if not done:
        raise SystemExit(NOT_SO)
