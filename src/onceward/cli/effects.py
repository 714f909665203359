"""`onceward effects`: external calls under `message.once` whose outcome nobody knows, and what became of them."""

from __future__ import annotations

import json
from typing import Any

import click

from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.output import print_json, print_table
from onceward.cli.target import Target, as_json, numbers, on_target
from onceward.cli.text import ago, examples, say

ANSWERS = {"happened": True, "did-not-happen": False}
SEQ_NAME_ANSWER = 3


@click.group(short_help="Look at external calls with unknown outcome, and say what became of them.")
def effects() -> None:
    """Look at external calls (`message.once`) whose outcome nobody knows, and say what became of them."""


@effects.command("list", short_help="List the open ones.", epilog=examples("onceward effects list shop:inbox"))
@on_target()
@click.option(
    "--limit", type=click.IntRange(min=1, max=100_000), default=50, show_default=True, help="At most so many."
)
@as_json
def list_effects(target: Target, *, limit: int, as_json: bool) -> None:
    """List calls that were begun and not recorded as done; those begun just now may simply be running."""
    with target.open() as inbox:
        found = inbox.admin.effects(limit=limit)
    if as_json:
        print_json(found)
    elif found:
        rows = [(effect.seq, effect.name, ago(effect.started_at), effect.key) for effect in found]
        print_table(("message", "name", "begun", "idempotency key"), rows, right=("message",))
    else:
        say("no open effects")


@effects.command(
    short_help="Say what became of a call.",
    epilog=examples(
        'onceward effects settle shop:inbox 17 charge happened --result \'{"id": "ch_1"}\' --reason "seen at the bank"',
        'onceward effects settle shop:inbox 17 charge did-not-happen --reason "not at the bank"',
    ),
)
@on_target(rest="SEQ NAME happened|did-not-happen")
@click.option("--result", metavar="JSON", help="What the call returned, if it happened. [default: null]")
@click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the audit.")
@as_json
def settle(target: Target, words: list[str], *, result: str | None, reason: str, as_json: bool) -> None:
    """Say what became of a call whose outcome is unknown; then redrive its message.

    Exit code 1 when there is no such open effect.
    """
    if len(words) != SEQ_NAME_ANSWER or words[2] not in ANSWERS:
        raise Failure("say SEQ, the NAME of the effect, and happened or did-not-happen", WRONG_USAGE)
    (seq,), name, happened = numbers(words[:1], "SEQ"), words[1], ANSWERS[words[2]]
    value = _parsed(result) if result is not None else None
    with target.open() as inbox:
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
        then = f"next: onceward redrive ... {seq}" if stored else "its message is not stored, so nothing is to redrive"
        say(f"{name} of message {seq}: {words[2].replace('-', ' ')}; {then}")


def _parsed(result: str) -> Any:
    try:
        return json.loads(result)
    except ValueError as error:
        raise Failure(f"--result is not JSON: {error}", WRONG_USAGE) from None
