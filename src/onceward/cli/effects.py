"""`onceward effects`: external calls under `message.once` with unknown outcome, and what became of them."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.messages import only
from onceward.cli.output import print_json, print_table
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import ago, examples, say

ANSWERS = {"happened": True, "did-not-happen": False}
SEQ_NAME_ANSWER = 3


@click.group(short_help="List external calls with unknown outcome, and record what became of them.")
def effects() -> None:
    """List external calls (`message.once`) with unknown outcome, and record what became of them."""


@effects.command(
    "list", short_help="List the calls with unknown outcome.", epilog=examples("onceward effects list shop:inbox")
)
@on_target()
@click.option(
    "--limit", type=click.IntRange(min=1, max=100_000), default=50, show_default=True, help="How many at most."
)
@as_json
def list_effects(target: Target, *, limit: int, as_json: bool) -> None:
    """List calls that were begun and not recorded as done; one that was begun just now may still be running."""
    with target.open() as inbox:
        found = inbox.admin.effects(limit=limit)
    if as_json:
        print_json(found)
    elif found:
        rows = [(effect.seq, effect.name, ago(effect.started_at), effect.key) for effect in found]
        print_table(("message", "name", "begun", "idempotency key"), rows, right=("message",))
    else:
        say("no external call has an unknown outcome")


@effects.command(
    short_help="Record what became of a call.",
    epilog=examples(
        'onceward effects settle shop:inbox 17 charge happened --result \'{"id": "ch_1"}\' --reason "seen at the bank"',
        'onceward effects settle shop:inbox 17 charge did-not-happen --reason "not at the bank"',
    ),
)
@on_target(rest="SEQ|ID NAME happened|did-not-happen")
@click.option("--result", metavar="JSON", help="What the call returned, if it happened. [default: null]")
@click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the audit.")
@as_json
def settle(target: Target, words: list[str], *, result: str | None, reason: str, as_json: bool) -> None:
    """Record what became of a call whose outcome is unknown; then redrive its message.

    Exit code 1 when the call does not exist, or its outcome is known.
    """
    if len(words) != SEQ_NAME_ANSWER or words[2] not in ANSWERS:
        raise Failure(
            "give the message number, the name of the call and its outcome, for example: "
            'onceward effects settle shop:inbox 17 charge did-not-happen --reason "not at the bank"',
            WRONG_USAGE,
        )
    name, happened = words[1], ANSWERS[words[2]]
    value = _parsed(result) if result is not None else None
    with target.open() as inbox:
        seq = only(inbox, words[:1])
        try:
            settled = inbox.admin.settle_effect(seq, name, happened=happened, result=value, reason=reason)
        except LookupError as error:
            raise Failure(str(error.args[0]), NOT_SO) from None
        stored = inbox.admin.message(seq) is not None
    if not settled:
        raise Failure(f"the outcome of {name!r} of message {seq} is known already, or the message runs now", NOT_SO)
    if as_json:
        print_json({"seq": seq, "name": name, "happened": happened})
    else:
        again = inbox.context.hint("redrive", seq, "--reason", shlex.quote(reason))
        then = f"next: {again}" if stored else "its message is not stored, so there is nothing to redrive"
        say(f"{name} of message {seq}: {words[2].replace('-', ' ')}; {then}")


def _parsed(result: str) -> Any:
    try:
        return json.loads(result)
    except ValueError as error:
        raise Failure(f"--result is not JSON: {error}", WRONG_USAGE) from None
