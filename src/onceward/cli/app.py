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

# Where each command is and what it does, in the order in which they are needed. Each is imported when it is used: a
# worker process starts twice as fast without the packages that draw tables, and help needs none of them.
COMMANDS = {
    "demo": ("demonstration:demo", "Watch messages take effect exactly once, through duplicates, kill -9 and poison."),
    "migrate": ("schema:migrate", "Create or update the tables, or print them as SQL."),
    "run": ("processes:run", "Run the handlers until stopped, in one process or several."),
    "status": ("status:status", "Show the inbox in numbers."),
    "list": ("messages:list_messages", "List messages, newest first."),
    "show": ("messages:show", "Show everything known about one message."),
    "explain": ("explain:explain", "Tell one message's whole story, in order of time."),
    "try": ("trying:try_message", "Run a message's handler, show what it does, and undo it."),
    "redrive": ("dead_letters:redrive", "Run dead messages again, with a new budget."),
    "release": ("dead_letters:release", "Let a key go on without its dead message."),
    "discard": ("dead_letters:discard", "Take messages out for good."),
    "unsubscribe": ("retirement:unsubscribe", "Retire a consumer: it gets no further messages."),
    "quarantine": ("quarantine:quarantine", "Look at ids that came again otherwise, and decide."),
    "resolve": ("quarantine:resolve", "Decide about a case."),
    "effects": ("effects:effects", "Look at external calls with unknown outcome, and say what became of them."),
    "prune": ("upkeep:prune", "Remove what is older than the retention."),
    "archive": ("archives:archive", "Move old finished messages to files."),
    "replay": ("archives:replay", "Give finished messages to the inbox again."),
    "erase": ("erasure:erase", "Erase a person's data from messages."),
    "doctor": ("health:doctor", "Check settings, tables and messages, and say what to do."),
    "bench": ("bench:bench", "Measure what an inbox does in a second on this very store."),
    "dashboard": ("dashboard:dashboard", "Serve the dashboard in a browser."),
    "completion": ("completion:completion", "Print the completion script for a shell."),
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
        place, purpose = COMMANDS[cmd_name]
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(f"onceward.cli.{module}"), attribute)
        command.short_help = purpose
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List them without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, purpose) for name, (_, purpose) in COMMANDS.items()])

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
