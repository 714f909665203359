"""What commands that change messages have in common: a preview, a reason, and a question before the change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from onceward.cli.failure import WRONG_USAGE, Failure

preview_option = click.option("--preview", is_flag=True, help="Show what was found, and stop.")
reason_option = click.option("--reason", metavar="TEXT", help="Why; kept in the audit.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def asking(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --preview, --reason and --yes."""
    return preview_option(reason_option(yes_option(function)))


def must_ask(*, preview: bool, yes: bool, as_json: bool, reason: str | None = "") -> bool:
    """Return whether the operator is to be asked before anything changes; raises where that cannot be done."""
    if preview:
        return False
    if reason is None:
        raise Failure(
            "--reason is missing: add --reason TEXT (it is kept in the audit), or look first with --preview",
            WRONG_USAGE,
        )
    if not yes and (as_json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise Failure("Not a terminal: run with --preview first, then with --yes", WRONG_USAGE)
    return not yes
