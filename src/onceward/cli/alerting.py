"""`onceward alerts`: what needs an operator now, and a test of the hooks."""

from __future__ import annotations

from dataclasses import asdict

import click

from onceward.admin.alerts import RUNBOOKS
from onceward.admin.concerns import LIMITS, standing
from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.output import print_json, print_table
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import examples, say
from onceward.runtime.runner import perform


@click.group(
    short_help="Show what needs an operator, and test the hooks of alerts.",
    epilog=examples("onceward alerts list shop:inbox", "onceward alerts test shop:inbox"),
)
def alerts() -> None:
    """Show what needs an operator now, and test the hooks that alerts are sent to."""


@alerts.command(
    "list", short_help="Show what needs an operator now.", epilog=examples("onceward alerts list shop:inbox --json")
)
@on_target()
@as_json
def list_alerts(target: Target, *, as_json: bool) -> None:
    """Show what needs an operator now, the most important first, with the command that shows more and the runbook.

    With the thresholds of the program (`inbox.admin.alert(rules=...)`), where there is one. What is paused is shown and
    does not count. Exit code 1 when something needs a person.
    """
    with target.open() as inbox:
        rules = inbox.admin.alerts.rules if inbox.admin.alerts is not None else None
        limits = rules.limits if rules is not None else LIMITS
        _, found, pauses = perform(inbox.store, lambda: standing(inbox.context, limits))
    runbooks = rules.runbooks if rules is not None else RUNBOOKS
    rows = [(one.kind, one.what, one.help.command(inbox.context), f"{runbooks}{one.help.runbook}.md") for one in found]
    if as_json:
        print_json(
            [{**asdict(one), "command": row[2], "runbook": row[3]} for one, row in zip(found, rows, strict=True)]
        )
    elif rows:
        print_table(("alert", "what", "command", "runbook"), rows)
    else:
        say("Healthy: no message needs an operator")
    if not as_json:
        for one in pauses:
            say(one.told)
    if found:
        click.get_current_context().exit(NOT_SO)


@alerts.command(short_help="Send a test alert to every hook.", epilog=examples("onceward alerts test shop:inbox"))
@on_target()
@as_json
def test(target: Target, *, as_json: bool) -> None:
    """Send a test alert to every hook of the program, and show which of them failed.

    Exit code 1 when one failed.
    """
    with target.program_inbox() as (program, inbox):
        if inbox.admin.alerts is None:
            raise Failure(
                f"{program} has no alerts. Add inbox.admin.alert(slack_hook(URL)), or another hook", WRONG_USAGE
            )
        tested = inbox.admin.alerts.test()
    if as_json:
        print_json([one._asdict() for one in tested])
    else:
        print_table(("hook", "result"), [(one.hook, one.error or "sent") for one in tested])
    if any(one.error for one in tested):
        click.get_current_context().exit(NOT_SO)
