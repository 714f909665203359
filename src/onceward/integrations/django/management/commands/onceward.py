"""`manage.py onceward run|status|redrive|...`: the command line of onceward, about the inbox of the project."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.utils.autoreload import get_child_arguments

from onceward.cli import NEEDED


class Command(BaseCommand):
    """Hands the words over as they are."""

    help = "Run onceward's commands on the inbox of this project: run, status, redrive, ..."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """As typed; Django's own options for where the settings are were seen before."""
        where = CommandParser(add_help=False, allow_abbrev=False)
        where.add_argument("--settings")
        where.add_argument("--pythonpath")
        known, words = where.parse_known_args(argv[2:])
        path = ["--pythonpath", known.pythonpath] if known.pythonpath else []
        try:
            sys.exit(_run(words, path))
        finally:
            connections.close_all()

    def add_arguments(self, parser: CommandParser) -> None:
        """For `call_command("onceward", "status")`."""
        parser.add_argument("words", nargs=argparse.REMAINDER)

    def handle(self, *_: Any, **options: Any) -> None:
        """The same from Python; raises where the command ends with another exit code than 0."""
        code = _run(list(options["words"]), [])
        if code:
            raise CommandError(f"onceward {' '.join(options['words'])}: exit code {code}", returncode=code)

    def print_help(self, prog_name: str, subcommand: str) -> None:  # noqa: ARG002 - Django's signature
        """The help of the command line."""
        _run(["--help"], [])


def _run(words: list[str], path: list[str]) -> int:
    """Run the command line, and return its exit code."""
    if not all(map(find_spec, NEEDED)):
        raise CommandError("the command line needs: pip install 'onceward[cli]'", returncode=2)
    from onceward.cli.app import application  # noqa: PLC0415 - its packages are an extra
    from onceward.cli.launch import Launch  # noqa: PLC0415
    from onceward.integrations.django.project import project_inbox_name  # noqa: PLC0415 - once Django is set up

    def itself() -> list[str]:
        again = get_child_arguments()
        return [*again[: len(again) - len(sys.argv) + 1], "onceward", *path]

    launch = Launch(command=itself, words=words, inbox=project_inbox_name)
    try:
        application.main(args=words, prog_name="manage.py onceward", obj=launch)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
