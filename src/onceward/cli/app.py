"""The group of commands, and how every command ends when something goes wrong.

Exit codes: 0 done; 1 nothing matched, or a check failed; 2 wrong usage or configuration; 3 the database
cannot be used.
"""

from __future__ import annotations

import importlib
import sys
from difflib import get_close_matches
from typing import Any

import click

import onceward
from onceward.cli.failure import NOT_SO, UNAVAILABLE, WRONG_USAGE, Failure
from onceward.errors import ConfigurationError, InvalidMessage, OncewardError, StoreError

# Where each command is and what it does, by what it is for. Each is imported when it is used: a
# worker process starts twice as fast without the packages that draw tables, and help needs none of them.
GROUPS = {
    "Run": {
        "init": ("beginning:init", "Write a small service that runs at once."),
        "migrate": ("schema:migrate", "Create or update the tables, or print them as SQL."),
        "run": ("processes:run", "Run the handlers until stopped, in one process or several."),
        "dashboard": ("dashboard:dashboard", "Serve the dashboard in a browser."),
    },
    "Look": {
        "alerts": ("alerting:alerts", "Show what needs an operator, and test the hooks of alerts."),
        "status": ("status:status", "Show the number of messages in each status, and the workers."),
        "tail": ("tail:tail", "Follow what happens."),
        "list": ("messages:list_messages", "List messages, newest first."),
        "show": ("messages:show", "Show one message: its status, body, attempts and effects."),
        "explain": ("explain:explain", "Show everything that happened to a message, in order of time."),
        "history": ("history:history", "Show what happened, by minute, hour or day."),
        "keys": ("looking:keys", "List the keys that a message holds."),
        "sources": ("looking:sources", "List the sources: who sends, and how many copies."),
        "polls": ("looking:polls", "List the polled APIs."),
        "handlers": ("looking:handlers", "List handlers with policy, guarantee, circuit and pause."),
        "workers": ("looking:workers", "List the processes that run handlers."),
        "pauses": ("pausing:pauses", "List what is paused, since when, by whom and why."),
        "audit": ("looking:audit", "List what operators did."),
        "storage": ("looking:storage", "Show how much is kept, and since when."),
        "doctor": ("health:doctor", "Check settings, tables and messages, and show what to do."),
    },
    "Decide": {
        "redrive": ("dead_letters:redrive", "Run dead messages again, with a new budget."),
        "retry-now": ("dead_letters:retry_now", "Run messages that wait for another try now."),
        "edit": ("editing:edit", "Give a message that fails a corrected body, and run it again."),
        "unblock": ("dead_letters:unblock", "Let a key go on without its dead message."),
        "discard": ("dead_letters:discard", "Discard messages: they never run."),
        "cancel": ("dead_letters:cancel", "Discard messages that are still scheduled."),
        "interrupt": ("dead_letters:interrupt", "Take running messages from their workers."),
        "hasten": ("dead_letters:hasten", "Run scheduled messages now."),
        "pause": ("pausing:pause", "Stop a type, consumer, source or destination, or everything."),
        "resume": ("pausing:resume", "Let what is paused go on."),
        "quarantine": ("quarantine:quarantine", "List mismatches: known ids with other bytes or another type."),
        "resolve": ("quarantine:resolve", "Decide about a mismatch."),
        "effects": ("effects:effects", "List external calls with unknown outcome, and record what became of them."),
        "unsubscribe": ("retirement:unsubscribe", "Retire a consumer: it gets no further messages."),
    },
    "Maintain": {
        "prune": ("retention:prune", "Remove what is older than the retention."),
        "archive": ("archives:archive", "Move old finished messages to files."),
        "replay": ("archives:replay", "Receive finished messages again, from the database or an archive."),
        "import-ids": ("adoption:import_ids", "Import the ids of messages that were handled before onceward."),
        "erase": ("erasure:erase", "Erase a person's data from messages."),
    },
    "Develop": {
        "demo": (
            "demonstration:demo",
            "Watch messages take effect exactly once, through copies, kill -9 and poison.",
        ),
        "send": ("sending:send", "Deliver a test message, once or several times, signed as a provider signs."),
        "try": ("dry_run:dry_run", "Run a message's handler, show what it does, and undo it."),
        "prove": (
            "proving:prove",
            "Prove that a message's handler takes effect exactly once, through kills and lost connections.",
        ),
        "asyncapi": ("describing:asyncapi", "Print the messages that the inbox accepts, as an AsyncAPI document."),
        "bench": ("bench:bench", "Measure how many messages a second an inbox handles on your database."),
        "completion": ("completion:completion", "Print the completion script for a shell."),
    },
}
COMMANDS = {name: command for commands in GROUPS.values() for name, command in commands.items()}


class Application(click.Group):
    """Commands in the order in which they are needed; errors as sentences."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return them in the order in which they are needed, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        place, purpose = COMMANDS[cmd_name]
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(f"onceward.cli.{module}"), attribute)
        command.short_help = purpose
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command; of one that is not there, the nearest is named."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = get_close_matches(name, COMMANDS, n=3, cutoff=0.5)
            hint = f"Did you mean {' or '.join(near)}?" if near else "onceward --help lists them"
            raise Failure(f"There is no command {name!r}. {hint}", WRONG_USAGE)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List them without importing them."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, purpose) for name, (_, purpose) in commands.items()])

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
Every command takes MODULE:ATTR (for example shop:inbox, found from the current folder) or --store URL. Without
either: ONCEWARD_INBOX, ONCEWARD_STORE, or [tool.onceward] inbox = "shop:inbox" in pyproject.toml.
Exit codes: 0 done; 1 nothing matched, or a check failed; 2 wrong usage or configuration;
3 the database cannot be used.
"""


@click.group(
    cls=Application, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(onceward.__version__, prog_name="onceward")
def application() -> None:
    """The inbox for Python services: every message takes effect exactly once, in your own database."""
