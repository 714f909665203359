"""The group of commands, and what every command does when something goes wrong.

Exit codes: 0 done; 1 what was asked for is not so, or a check failed; 2 wrong usage or configuration; 3 the database
cannot be used.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

import onceward
from onceward.cli.failure import NOT_SO, UNAVAILABLE, WRONG_USAGE, Failure
from onceward.errors import ConfigurationError, InvalidMessage, OncewardError, StoreError

# Where each command is, in the order in which they are needed. Each is imported when it is used: a worker process
# starts twice as fast without the packages that draw tables.
COMMANDS = {
    "demo": "demonstration:demo",
    "migrate": "schema:migrate",
    "run": "processes:run",
    "status": "status:status",
    "list": "messages:list_messages",
    "show": "messages:show",
    "explain": "explain:explain",
    "try": "trying:try_message",
    "redrive": "dead_letters:redrive",
    "release": "dead_letters:release",
    "discard": "dead_letters:discard",
    "quarantine": "quarantine:quarantine",
    "resolve": "quarantine:resolve",
    "effects": "effects:effects",
    "prune": "upkeep:prune",
    "archive": "archives:archive",
    "replay": "archives:replay",
    "erase": "erasure:erase",
    "doctor": "health:doctor",
    "bench": "bench:bench",
    "dashboard": "dashboard:dashboard",
    "completion": "completion:completion",
}


class Application(click.Group):
    """Commands in the order in which they are needed; errors as sentences."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """In the order in which they are needed, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import the command that is asked for."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"onceward.cli.{module}"), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of onceward's own becomes one sentence and an exit code."""
        for stream in (sys.stdout, sys.stderr):
            # A terminal that cannot show a character gets its number instead of an error.
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except (ConfigurationError, InvalidMessage) as error:
            raise Failure(str(error), WRONG_USAGE) from error
        except StoreError as error:
            raise Failure(str(error), UNAVAILABLE) from error
        except OncewardError as error:
            raise Failure(str(error), NOT_SO) from error


EPILOG = """\
\b
Every command takes MODULE:ATTR (for example shop:inbox, found from the current folder) or --store URL.
Exit codes: 0 done; 1 what was asked for is not so, or a check failed; 2 wrong usage or configuration;
3 the database cannot be used.
"""


@click.group(
    cls=Application, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(onceward.__version__, prog_name="onceward")
def application() -> None:
    """The inbox for Python services: every message takes effect exactly once, in your own database."""
