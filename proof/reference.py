"""Makes the reference pages of the documentation from the code, for the site: `make docs`. They are not kept.

Names come from `__all__`, options from click, settings from their class, tables from the migrations: what is public is
in a page, whether somebody has written about it or not.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

import onceward
from onceward import Inbox, errors
from onceward.cli.app import COMMANDS, application
from onceward.domain.text import span
from onceward.observability import opentelemetry
from onceward.observability.prometheus import InboxCollector
from onceward.settings import Settings
from onceward.stores.statements import migrations
from onceward.testing import MemoryStore

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
MADE = "<!-- Made by python -m proof.reference, from the code. -->\n"
MODULES = {
    "onceward": "What a program imports.",
    "onceward.webhooks": "Webhooks in: one verifier for each provider.",
    "onceward.testing": "Proofs for your own handlers and stores.",
    "onceward.testing.store_suite": "The suite that defines a store.",
    "onceward.testing.broker_suite": "The suite that defines a broker.",
    "onceward.sinks.http": "Signed webhooks out.",
    "onceward.sinks.inbox": "Messages to another inbox.",
    "onceward.admin.messages": "What `inbox.admin` returns.",
    "onceward.admin.asyncapi": "The AsyncAPI document of an inbox.",
    "onceward.admin.alerts": "Alerts to a URL or a function.",
    "onceward.dashboard": "The dashboard, mounted in an application.",
    "onceward.integrations.fastapi": "FastAPI: the workers in its lifespan.",
    "onceward.integrations.faststream": "FastStream: received before it is acknowledged.",
    "onceward.integrations.idempotency": "`Idempotency-Key` for your own endpoints.",
}
OBJECTS = {"inbox.admin": "onceward.admin.admin:Admin", "inbox.retention": "onceward.retention.retention:Retention"}


def prose(text: str | None) -> str:
    """A docstring as Markdown: examples are code."""
    lines, inside = [], False
    for line in inspect.cleandoc(text or "").splitlines():
        example = line.startswith((">>> ", "... ")) or (inside and bool(line.strip()))
        if example != inside:
            lines.append("```pycon" if example else "```")
            if not example:
                lines.append("")
        inside = example
        lines.append(line)
    return "\n".join([*lines, *(["```"] if inside else [])])


def signature(thing: Any) -> str:
    """How a function is called, without what makes a line unreadable."""
    try:
        found = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return "()"
    found = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", found).replace("'", "")
    found = re.sub(r"<(?:object|built-in|function)[^<>]*>", "...", found)
    return re.sub(r"\(self(?:, )?", "(", found)


def members(thing: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class."""
    for name in dict.fromkeys(name for one in thing.__mro__[:-1] for name in vars(one)):
        value = inspect.getattr_static(thing, name)
        documented = inspect.isfunction(value) or isinstance(value, property | staticmethod | classmethod)
        if not name.startswith("_") and (documented or hasattr(value, "func")):
            yield name, value


def described(name: str, thing: Any, level: str) -> str:
    """A name of the API with everything below it."""
    if not (inspect.isclass(thing) or callable(thing)):
        return f"{level} `{name}`\n\n`{thing!r}`\n"
    parts = [f"{level} `{name}`", f"```text\n{name}{signature(thing)}\n```", prose(thing.__doc__)]
    if is_dataclass(thing) and isinstance(thing, type):
        parts.append("\n".join(f"- `{field.name}`" for field in fields(thing) if not field.name.startswith("_")))
    for member, value in members(thing) if inspect.isclass(thing) else ():
        called = getattr(value, "__func__", value)
        function = getattr(value, "fget", None) or getattr(value, "func", None)
        shown = member if function else f"{member}{signature(called)}"
        parts.append(f"**`{shown}`**\n\n{prose((function or called).__doc__)}")
    return "\n\n".join(part for part in parts if part) + "\n"


def api() -> str:
    """Every public name with its docstring."""
    parts = [
        MADE,
        "# API\n\nEvery public name. `await`ed forms begin with `a`: `areceive`, `aprocess`, `adrain`, `arun`.\n",
    ]
    for module, purpose in MODULES.items():
        found = importlib.import_module(module)
        names = getattr(found, "__all__", None) or [
            name for name, value in vars(found).items() if getattr(value, "__module__", "") == module and name[0] != "_"
        ]
        parts.append(f"## {module}\n\n{purpose}\n")
        parts += [described(name, getattr(found, name), "###") for name in sorted(names)]
    for name, place in OBJECTS.items():
        module, _, attribute = place.partition(":")
        parts.append(described(name, getattr(importlib.import_module(module), attribute), "##"))
    return "\n".join(parts)


def option(one: click.Parameter) -> str:
    """A row of a command's table."""
    if isinstance(one, click.Argument):
        return f"| `{one.make_metavar(click.Context(application))}` | |"
    assert isinstance(one, click.Option)
    names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
    default = one.get_default(click.Context(application), call=False)
    shown = f" Default: `{default}`." if one.show_default and default is not None else ""
    about = (one.help or "").replace("|", "\\|")
    return f"| {names} | {about}{shown} |"


def command(name: str, found: click.Command) -> str:
    """A command with its options, and the commands below it."""
    rows = [option(one) for one in found.params if not getattr(one, "hidden", False)]
    epilog = (found.epilog or "").replace("\b", "").replace("Examples:", "").strip("\n")
    examples = "\n".join(line.strip() for line in epilog.splitlines() if line.strip())
    parts = [f"## onceward {name}", inspect.cleandoc(found.help or "").replace("\b\n", "")]
    if rows:
        parts.append("| | |\n|---|---|\n" + "\n".join(rows))
    if examples:
        parts.append(f"```text\n{examples}\n```")
    below = found.commands.items() if isinstance(found, click.Group) else ()
    return "\n\n".join([*parts, *(command(f"{name} {one}", other) for one, other in below)]) + "\n"


def commands() -> str:
    """The command line, from click."""
    context = click.Context(application)
    intro = (application.epilog or "").replace("\b", "").strip()
    parts = [MADE, f"# Command line\n\n{intro}\n"]
    for name in COMMANDS:
        found = application.get_command(context, name)
        assert found is not None
        parts.append(command(name, found))
    return "\n".join(parts)


def settings() -> str:
    """Every setting with its default, and the variables of the environment."""
    rows, source = [], inspect.getsource(Settings)
    defaults = Settings()
    for field in fields(Settings):
        value = getattr(defaults, field.name)
        found = re.search(rf'^    {field.name}: .*\n(?:    "{{3}}((?:.|\n)*?)"{{3}})?', source, re.MULTILINE)
        about = " ".join((found[1] or "").split()) if found else ""
        shown = span(value.total_seconds()) if isinstance(value, timedelta) else repr(value)
        rows.append(f"| `{field.name}` | `{shown}` | {about} |")
    variables = sorted({*_variables()})
    return (
        f"{MADE}\n# Settings\n\n`Inbox(..., settings=Settings(name=value))`; durations are `timedelta`.\n\n"
        f"{prose(Settings.__doc__)}\n\n| name | default | |\n|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "## Environment\n\n" + "\n".join(f"- `{name}`" for name in variables) + "\n"
    )


def _variables() -> Iterator[str]:
    for path in (Path(onceward.__file__).parent).rglob("*.py"):
        if "demo" not in path.parts:
            yield from re.findall(r'"(ONCEWARD_[A-Z_]+)"', path.read_text())


def error_page() -> str:
    """Every error that a program may see, with its cause."""
    found = [
        thing
        for _, thing in sorted(vars(errors).items())
        if inspect.isclass(thing) and issubclass(thing, BaseException)
    ]
    rows = [
        f"## `{thing.__name__}`\n\n{prose(thing.__doc__)}\n\nA kind of `{thing.__mro__[1].__name__}`.\n"
        for thing in found
        if thing.__module__ == errors.__name__
    ]
    return f"{MADE}\n# Errors\n\nThe text of an error names what to do next.\n\n" + "\n".join(rows)


def metrics() -> str:
    """Every metric, as Prometheus is given it, and as OpenTelemetry is."""
    collector = InboxCollector(Inbox(MemoryStore()))
    found = [(one.name, one.documentation, one.samples) for one in collector.collect()]
    rows = [f"| `{name}` | {', '.join(samples[0].labels)} | {meaning} |" for name, meaning, samples in found]
    rows.append(
        "| `onceward_handler_seconds` | service, consumer, type, outcome | How long handlers take: a histogram. |"
    )
    source = inspect.getsource(opentelemetry)
    names = sorted({*re.findall(r'"((?:onceward|messaging)\.[a-z_.]+)"', source)})
    names += [
        f"onceward.{name}"
        for name in ("oldest_due_seconds", "duplicates", "failures", "done", "outbox_unsent", "workers")
    ]
    return (
        f"{MADE}\n# Metrics\n\nHow to collect them: [operations](../operations.md#metrics-traces-alerts-logs). "
        "All but the histogram are gauges: retention makes totals smaller again. `state` is a "
        "[status](../glossary.md#states-and-statuses). No label is an id or a key.\n\n"
        "| Prometheus | labels | |\n|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "OpenTelemetry (metrics, and attributes of spans): " + ", ".join(f"`{one}`" for one in names) + ".\n"
    )


def schema() -> str:
    """The tables, as the migrations make them."""
    parts = [f"{MADE}\n# Schema\n\nWhat each table is for: [architecture](../architecture.md#tables).\n"]
    for dialect in ("sqlite", "postgres"):
        parts.append(f"## {dialect}\n")
        for one in migrations(dialect, "onceward_"):
            statements = ";\n\n".join(statement.strip() for statement in one.statements)
            parts.append(f"### {one.version:04d}_{one.name} (deploy: {one.deploy})\n\n```text\n{statements};\n```\n")
    return "\n".join(parts)


def made() -> dict[str, str]:
    """Each page with its content."""
    return {
        "api.md": api(),
        "cli.md": commands(),
        "settings.md": settings(),
        "metrics.md": metrics(),
        "errors.md": error_page(),
        "schema.md": schema(),
    }


def main() -> None:
    """Write them."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in made().items():
        (FOLDER / name).write_text(re.sub(r"\n{3,}", "\n\n", text.rstrip()) + "\n")


if __name__ == "__main__":
    main()
