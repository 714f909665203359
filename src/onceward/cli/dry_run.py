"""`onceward try`: run a handler on a stored message, show what it does, undo it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from onceward.admin.dry_run import DryRunReport
from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.messages import body_text, only
from onceward.cli.output import heading, print_fields, print_json, print_table
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import count, examples, say


@click.command(
    "try",
    short_help="Run a message's handler, show what it does, and undo it.",
    epilog=examples("onceward try shop:inbox 17", "onceward try shop:inbox 17 --json | jq .changes"),
)
@on_target(rest="SEQ|ID")
@as_json
def dry_run(target: Target, words: list[str], *, as_json: bool) -> None:
    """Run the handler on a stored message (dead, queued or done) in a transaction that is rolled back.

    Shows the outcome, every SQL statement and every row that it changed. Calls through message.once are stopped and
    shown. Calls that do not go through message.once are really made. Exit code 1 when there is no such message, or the
    handler raised.
    """
    if not target.program:
        raise Failure(
            "--store has no handlers; name the program instead, for example: onceward try shop:inbox 17", WRONG_USAGE
        )
    with target.open() as inbox:
        try:
            report = inbox.admin.dry_run(only(inbox, words))
        except LookupError as error:
            raise Failure(str(error.args[0]), NOT_SO) from None
    if as_json:
        print_json(report)
    else:
        _print(report)
    if report.ended == "raised":
        raise SystemExit(NOT_SO)


def _print(report: DryRunReport) -> None:
    print_fields(
        [
            ("message", report.seq),
            ("handler", report.handler),
            ("ended", report.ended),
            ("result", "" if report.result is None else json.dumps(report.result, ensure_ascii=False)),
            ("error", report.error),
            ("would be", report.decision),
        ]
    )
    heading(count(len(report.statements), "statement"))
    for statement in report.statements:
        say(" ".join(statement.sql.split()) + (f"  {statement.parameters}" if statement.parameters else ""))
    heading(count(len(report.changes), "changed row"))
    if report.changes:
        rows = [(change.kind, change.table, _difference(change.before, change.after)) for change in report.changes]
        print_table(("what", "table", "row"), rows)
    if report.unseen:
        say(report.unseen)
    if report.calls:
        heading("external calls")
        calls = [
            (call.name, "recorded result returned" if call.recorded else "stopped", call.key) for call in report.calls
        ]
        print_table(("name", "what", "idempotency key"), calls)
    if report.sent:
        heading("would send")
        print_table(
            ("type", "to", "key", "body"),
            [(one.type, one.to, one.key or "", body_text(one.body, indent=None)) for one in report.sent],
        )
    if report.traceback:
        heading("traceback")
        say(report.traceback.rstrip())
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
