"""`onceward doctor`: the examination (`onceward.admin.doctor`) on a terminal."""

from __future__ import annotations

import click

from onceward.admin.doctor import examine
from onceward.cli.failure import NOT_SO
from onceward.cli.output import STYLES, console, print_json, styled
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import count, examples, say


@click.command(
    short_help="Check settings, tables and messages, and show what to do.",
    epilog=examples("onceward doctor shop:inbox", "onceward doctor --store postgresql://shop@localhost/shop --json"),
)
@on_target()
@as_json
def doctor(target: Target, *, as_json: bool) -> None:
    """Check the database's settings, the tables, stuck, dead and unserved messages; show what to do.

    With MODULE:ATTR it also compares the waiting messages with the handlers of that program. Exit code 1 when
    something is an error; warnings alone are exit code 0.
    """
    with target.open() as inbox:
        findings = examine(inbox, program=bool(target.program))
    errors = [finding for finding in findings if finding.level == "error"]
    if as_json:
        print_json(findings)
    else:
        out = console()
        for finding in findings:
            out.print(styled(f"{finding.level:8}", STYLES[finding.level]), styled(finding.what), soft_wrap=True)
            if finding.advice:
                out.print(styled(f"{'':8} -> {finding.advice}", "dim"), soft_wrap=True)
        warnings = sum(finding.level == "warning" for finding in findings)
        say(f"{count(len(errors), 'error')}, {count(warnings, 'warning')}")
    if errors:
        raise SystemExit(NOT_SO)
