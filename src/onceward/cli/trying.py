"""`onceward try`: run a handler on a stored message, show what it does, undo it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from onceward.admin.dry_run import Trial
from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.messages import body_text
from onceward.cli.output import heading, print_fields, print_json, print_table
from onceward.cli.target import Target, as_json, numbers, on_target
from onceward.cli.text import count, examples, say


@click.command(
    "try",
    short_help="Run a message's handler, show what it does, and undo it.",
    epilog=examples("onceward try shop:inbox 17", "onceward try shop:inbox 17 --json | jq .changes"),
)
@on_target(rest="SEQ")
@as_json
def try_message(target: Target, words: list[str], *, as_json: bool) -> None:
    """Run the handler on a stored message (dead, queued or done) in a transaction that is rolled back.

    Shows the outcome, every SQL statement and every row that it changed. Calls through message.once are stopped and
    shown; a call that the handler makes in any other way happens in earnest. Exit code 1 when there is no such message,
    or the handler raised.
    """
    if len(words) != 1:
        raise Failure("say which message: one SEQ", WRONG_USAGE)
    if not target.program:
        raise Failure("a handler is needed: name the program, MODULE:ATTR, instead of --store", WRONG_USAGE)
    (seq,) = numbers(words, "SEQ")
    with target.open() as inbox:
        try:
            trial = inbox.admin.dry_run(seq)
        except LookupError as error:
            raise Failure(str(error.args[0]), NOT_SO) from None
    if as_json:
        print_json(trial)
    else:
        _print(trial)
    if trial.ended == "raised":
        raise SystemExit(NOT_SO)


def _print(trial: Trial) -> None:
    print_fields(
        [
            ("message", trial.seq),
            ("handler", trial.handler),
            ("ended", trial.ended),
            ("result", "" if trial.result is None else json.dumps(trial.result, ensure_ascii=False)),
            ("error", trial.error),
            ("would be", trial.decision),
        ]
    )
    heading(count(len(trial.statements), "statement"))
    for statement in trial.statements:
        say(" ".join(statement.sql.split()) + (f"  {statement.parameters}" if statement.parameters else ""))
    heading(count(len(trial.changes), "changed row"))
    if trial.changes:
        rows = [(change.kind, change.table, _difference(change.before, change.after)) for change in trial.changes]
        print_table(("what", "table", "row"), rows)
    if trial.unseen:
        say(trial.unseen)
    if trial.calls:
        heading("external calls")
        calls = [
            (call.name, "answered from the record" if call.recorded else "stopped", call.key) for call in trial.calls
        ]
        print_table(("name", "what", "idempotency key"), calls)
    if trial.sent:
        heading("would send")
        print_table(
            ("type", "to", "key", "body"),
            [(one.type, one.to, one.key or "", body_text(one.body)) for one in trial.sent],
        )
    if trial.traceback:
        heading("traceback")
        say(trial.traceback.rstrip())
    say()
    say("all of it was rolled back")


def _difference(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """A row, or what changed in it."""
    if before is None or after is None:
        return json.dumps(before or after, ensure_ascii=False)
    same = {name for name in after if name in before and before[name] == after[name]}
    kept = json.dumps({name: after[name] for name in list(after)[:1]}, ensure_ascii=False)
    parts = (
        f"{name}: {json.dumps(before.get(name))} -> {json.dumps(after[name])}" for name in after if name not in same
    )
    return f"{kept} {', '.join(parts)}"
